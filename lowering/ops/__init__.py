"""Every op family, imported for its registrations; nothing may be registered afterwards."""

from __future__ import annotations

from lowering.ops import joining, padding, pointwise, strided, views
from lowering.registry import REGISTRY

__all__ = ["joining", "padding", "pointwise", "strided", "views"]

REGISTRY.freeze()
