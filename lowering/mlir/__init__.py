"""MLIR for everyone else: jaxlib's bindings, contexts that remember, quick builders of StableHLO.

jaxlib promises no stable interface for its bindings; `bindings` alone imports them (and
`tpu_compile/runtime/pjrt/bindings.py` those of the run time). The package must not know torch.
"""

from lowering.mlir import stablehlo
from lowering.mlir.bindings import chlo, func, ir
from lowering.mlir.context import (
    Context,
    create_context,
    memo,
    module_bytecode,
    module_text,
    portable_artifact,
)

__all__ = [
    "Context",
    "chlo",
    "create_context",
    "func",
    "ir",
    "memo",
    "module_bytecode",
    "module_text",
    "portable_artifact",
    "stablehlo",
]
