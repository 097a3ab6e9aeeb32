"""Products of float8 matrices with scales."""

from __future__ import annotations

import math

import torch

from lowering import hlo
from lowering.bucketing.products import scaled_product
from lowering.context import LoweringContext
from lowering.dtypes import spec_of
from lowering.mlir import ir, stablehlo
from lowering.ops.matmul import contract
from lowering.registry import lowering

aten = torch.ops.aten


@lowering(aten._scaled_mm.default, padding=scaled_product)
def scaled_mm(
    ctx: LoweringContext,
    left: ir.Value,
    right: ir.Value,
    scale_a: ir.Value,
    scale_b: ir.Value,
    bias: ir.Value | None = None,
    scale_result: ir.Value | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> ir.Value:
    """(scale_a * left) @ (scale_b * right) + bias, in float32 and rounded once.

    Scales are one number, one a row of `left`, or one a column of `right`. A float8 result is
    divided by `scale_result`. `use_fast_accum` only steers other hardware.
    """
    # bfloat16 holds every float8 value, and the sums are float32.
    left, right = (hlo.convert(operand, torch.bfloat16) for operand in (left, right))
    product = contract(ctx, left, right, ([1], [0]))
    rows, columns = spec_of(product).shape
    for scale, allowed in ((scale_a, (rows, 1)), (scale_b, (1, columns))):
        if math.prod(spec_of(scale).shape) == 1:
            scale = hlo.reshape(scale, ())
        elif spec_of(scale).shape != allowed:
            raise ctx.unsupported("its scales are neither one number nor one a row or column")
        scale = hlo.broadcast_to(hlo.convert(scale, torch.float32), (rows, columns))
        product = stablehlo.multiply(product, scale)
    if bias is not None:
        bias = hlo.broadcast_to(hlo.convert(bias, torch.float32), (rows, columns))
        product = stablehlo.add(product, bias)
    if scale_result is not None and ctx.result.dtype.itemsize == 1:
        whole = hlo.convert(hlo.reshape(scale_result, ()), torch.float32)
        product = stablehlo.divide(product, hlo.broadcast_to(whole, (rows, columns)))
    return hlo.convert(product, ctx.result.dtype)
