"""The only module that imports jaxlib's MLIR bindings; everyone else takes them from here.

jaxlib promises no stable interface for them, so a new jaxlib release is this file's work (and
that of `tpu_compile/runtime/pjrt.py` for the run-time half). It must not know torch.
"""

from __future__ import annotations

import io

from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import chlo, func, stablehlo

__all__ = ["chlo", "create_context", "func", "ir", "module_bytecode", "module_text", "stablehlo"]


def create_context() -> ir.Context:
    """Return a fresh MLIR context with every dialect of jaxlib loaded.

    A context owns all types, attributes and locations made in it, so one per lowering keeps a
    long-running process from growing.
    """
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context = ir.Context()
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    stablehlo.register_dialect(context)
    chlo.register_dialect(context)
    return context


def module_bytecode(module: ir.Module) -> bytes:
    """Return MLIR bytecode of `module`, locations included."""
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer)
    return buffer.getvalue()


def module_text(module: ir.Module, *, locations: bool = False) -> str:
    """Return the textual form of `module`; constants are printed whole."""
    return str(module.operation.get_asm(enable_debug_info=locations, use_local_scope=locations))
