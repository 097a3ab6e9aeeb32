"""Every op family: each module here is imported for its registrations, then the table is closed.

A new family is a new file; nothing lists the files.
"""

from __future__ import annotations

import importlib
import pkgutil

from lowering.registry import REGISTRY

for _module in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name):
    importlib.import_module(f"{__name__}.{_module.name}")

REGISTRY.freeze()
