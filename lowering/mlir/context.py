"""MLIR contexts with jaxlib's dialects, what they remember, and modules as text and bytes."""

from __future__ import annotations

import functools
import io
from typing import Any

from lowering.mlir.bindings import PassManager, chlo, ir, register_dialects, stablehlo


class Context(ir.Context):
    """An MLIR context that remembers types and attributes, which the bindings are slow to make.

    What it remembers refers back to the context, so leaving it forgets everything: else neither
    would ever be freed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.memo: dict[Any, Any] = {}

    def __exit__(self, *error: object) -> None:
        self.memo.clear()
        super().__exit__(*error)


def memo() -> dict[Any, Any]:
    """Return what the current context remembers."""
    return ir.Context.current.memo


def create_context() -> Context:
    """Return a fresh MLIR context with every dialect of jaxlib loaded.

    A context owns all types, attributes and locations made in it, so one per lowering keeps a
    long-running process from growing.
    """
    registry = ir.DialectRegistry()
    register_dialects(registry)
    context = Context()
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


@functools.cache
def _register_passes() -> None:
    stablehlo.register_stablehlo_passes()


def portable_artifact(module: ir.Module) -> bytes:
    """Return `module` in StableHLO's versioned form (VHLO), which later versions can read.

    CHLO, which has no such form, is first expanded to StableHLO.
    """
    _register_passes()
    copy = ir.Module.parse(str(module.operation.get_asm(enable_debug_info=True)), module.context)
    PassManager.parse("builtin.module(func.func(chlo-legalize-to-stablehlo))", module.context).run(
        copy.operation
    )
    return bytes(
        stablehlo.serialize_portable_artifact(copy, stablehlo.get_current_version(), False)
    )
