"""Every op family, imported for its registrations; nothing may be registered afterwards."""

from __future__ import annotations

from lowering.ops import (
    activation,
    arithmetic,
    bessel,
    bitwise,
    comparison,
    complex_numbers,
    conversion,
    creation,
    extremes,
    pointwise,
    power,
    reduction,
    selection,
    special,
    unary,
)
from lowering.registry import REGISTRY

__all__ = [
    "activation",
    "arithmetic",
    "bessel",
    "bitwise",
    "comparison",
    "complex_numbers",
    "conversion",
    "creation",
    "extremes",
    "pointwise",
    "power",
    "reduction",
    "selection",
    "special",
    "unary",
]

REGISTRY.freeze()
