"""These tests need jax, which the ordinary test environment must not have; CI adds it for them."""

from __future__ import annotations

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("jax") else ["test_*.py"]
