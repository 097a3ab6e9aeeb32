"""jaxlib's MLIR bindings. Nothing else imports them: a new jaxlib release is this file's work."""

from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs._jax_mlir_ext import register_dialects
from jaxlib.mlir.dialects import chlo, func, stablehlo
from jaxlib.mlir.passmanager import PassManager

__all__ = ["PassManager", "chlo", "func", "ir", "register_dialects", "stablehlo"]
