"""The only package that imports jaxlib's MLIR bindings; everyone else takes them from here.

jaxlib promises no stable interface for them, so a new jaxlib release is this package's work (and
that of `tpu_compile/runtime/pjrt.py` for the run-time half). It must not know torch.
"""

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import chlo, func

from lowering.mlir import stablehlo
from lowering.mlir.context import Context, create_context, memo, module_bytecode, module_text

__all__ = [
    "Context",
    "chlo",
    "create_context",
    "func",
    "ir",
    "memo",
    "module_bytecode",
    "module_text",
    "stablehlo",
]
