"""Core ATen FX graphs lowered to StableHLO modules.

Knows `torch.fx` and MLIR; knows nothing of Dynamo, PJRT or devices. Importing it opens no device.
"""

from __future__ import annotations

import lowering.composites  # (fills the decompositions)
import lowering.ops  # noqa: F401  (fills the registry)
from lowering.context import LoweringContext, LoweringOptions
from lowering.dtypes import TensorSpec
from lowering.errors import LoweringError, TpuCompileError, UnsupportedOpError
from lowering.importer import LoweredGraph, lower_graph
from lowering.registry import REGISTRY, Padding, unsupported_reason

__all__ = [
    "REGISTRY",
    "LoweredGraph",
    "LoweringContext",
    "LoweringError",
    "LoweringOptions",
    "Padding",
    "TensorSpec",
    "TpuCompileError",
    "UnsupportedOpError",
    "lower_graph",
    "unsupported_reason",
]
