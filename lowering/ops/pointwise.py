"""Arithmetic, comparison and elementary functions, element by element."""

from __future__ import annotations

import torch

from lowering import hlo
from lowering.context import LoweringContext
from lowering.mlir import ir, stablehlo
from lowering.registry import Padding, lowering

aten = torch.ops.aten


@lowering(aten.relu.default, padding=Padding.FLOWS)
def relu(ctx: LoweringContext, operand: ir.Value) -> ir.Value:
    """max(operand, 0); NaN stays NaN; any real dtype."""
    return stablehlo.maximum(operand, hlo.full_like(operand, 0))


@lowering(aten.add.Tensor, aten.add.Scalar, padding=Padding.FLOWS)
def add(
    ctx: LoweringContext, operand: ir.Value, other: ir.Value | hlo.Scalar, alpha: hlo.Scalar = 1
) -> ir.Value:
    """operand + alpha * other in the promoted dtype; integers wrap, bools are or-ed."""
    dtype = ctx.result.dtype
    left, right = ctx.broadcast_operands((operand, other), dtype)
    if alpha != 1:
        right = stablehlo.multiply(right, hlo.full_like(right, alpha))
    return stablehlo.add(left, right)
