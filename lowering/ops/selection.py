"""Choice between values: where, clamp."""

from __future__ import annotations

import torch

from lowering import hlo
from lowering.context import LoweringContext
from lowering.mlir import ir, stablehlo
from lowering.ops.pointwise import Operand
from lowering.registry import Padding, lowering

aten = torch.ops.aten


@lowering(aten.where.self, padding=Padding.FLOWS)
def where(
    ctx: LoweringContext, condition: ir.Value, on_true: ir.Value, on_false: ir.Value
) -> ir.Value:
    """`on_true` where the condition (bool, or uint8 read as one) holds, else `on_false`."""
    (condition,) = ctx.broadcast_operands((condition,), torch.bool)
    return hlo.select(condition, *ctx.broadcast_operands((on_true, on_false), ctx.result.dtype))


@lowering(aten.clamp.default, aten.clamp.Tensor, padding=Padding.FLOWS)
def clamp(
    ctx: LoweringContext,
    operand: ir.Value,
    minimum: Operand | None = None,
    maximum: Operand | None = None,
) -> ir.Value:
    """min(max(operand, minimum), maximum) in the promoted dtype.

    NaN in the operand or in a bound gives NaN; where the bounds cross, the upper one wins.
    """
    dtype = ctx.result.dtype
    (result,) = ctx.broadcast_operands((operand,), dtype)
    if minimum is not None:
        result = stablehlo.maximum(result, *ctx.broadcast_operands((minimum,), dtype))
    if maximum is not None:
        result = stablehlo.minimum(result, *ctx.broadcast_operands((maximum,), dtype))
    return result
