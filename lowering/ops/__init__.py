"""Every op family, imported for its registrations; nothing may be registered afterwards."""

from __future__ import annotations

from lowering.ops import indexing, joining, padding, pointwise, scan, scatter, strided, views
from lowering.registry import REGISTRY

__all__ = ["indexing", "joining", "padding", "pointwise", "scan", "scatter", "strided", "views"]

REGISTRY.freeze()
