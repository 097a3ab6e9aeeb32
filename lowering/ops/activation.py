"""Activation functions that torch's decompositions leave whole."""

from __future__ import annotations

import math

import torch

from lowering import hlo
from lowering.context import LoweringContext
from lowering.dtypes import opmath_dtype
from lowering.mlir import chlo, ir, stablehlo
from lowering.ops.pointwise import register_unary, scaled
from lowering.registry import Padding, lowering

aten = torch.ops.aten

register_unary({aten.sigmoid.default: stablehlo.logistic})


@lowering(aten.relu.default, padding=Padding.FLOWS)
def relu(ctx: LoweringContext, operand: ir.Value) -> ir.Value:
    """max(operand, 0); NaN stays NaN; any real dtype."""
    return stablehlo.maximum(operand, hlo.full_like(operand, 0))


@lowering(aten.gelu.default, padding=Padding.FLOWS)
def gelu(ctx: LoweringContext, operand: ir.Value, *, approximate: str = "none") -> ir.Value:
    """Gaussian error linear unit (Hendrycks and Gimpel, 2016); `approximate` is none or tanh.

    none: x/2 * (1 + erf(x / sqrt(2))); tanh: x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))).
    """
    dtype = ctx.result.dtype
    operand = hlo.convert(operand, opmath_dtype(dtype))
    if approximate == "tanh":
        cube = stablehlo.multiply(operand, stablehlo.multiply(operand, operand))
        inner = stablehlo.add(operand, scaled(cube, 0.044715))
        inside = stablehlo.tanh(scaled(inner, math.sqrt(2 / math.pi)))
    elif approximate == "none":
        inside = chlo.erf(scaled(operand, math.sqrt(0.5)))
    else:
        raise ctx.unsupported(f"the approximation {approximate!r} of gelu is not known")
    weight = stablehlo.add(hlo.full_like(operand, 1), inside)
    return hlo.convert(stablehlo.multiply(scaled(operand, 0.5), weight), dtype)


@lowering(aten.elu.default, padding=Padding.FLOWS)
def elu(
    ctx: LoweringContext,
    operand: ir.Value,
    alpha: hlo.Scalar = 1,
    scale: hlo.Scalar = 1,
    input_scale: hlo.Scalar = 1,
) -> ir.Value:
    """Scale * x for positive x, else scale * alpha * (exp(input_scale * x) - 1)."""
    dtype = ctx.result.dtype
    operand = hlo.convert(operand, opmath_dtype(dtype))
    zero = hlo.full_like(operand, 0)
    negative = stablehlo.exponential_minus_one(scaled(operand, input_scale))
    return hlo.convert(
        hlo.select(
            hlo.compare(operand, zero, "GT"),
            scaled(operand, scale),
            stablehlo.multiply(negative, hlo.full_like(negative, alpha * scale)),
        ),
        dtype,
    )


@lowering(aten.leaky_relu.default, padding=Padding.FLOWS)
def leaky_relu(
    ctx: LoweringContext, operand: ir.Value, negative_slope: hlo.Scalar = 0.01
) -> ir.Value:
    """The operand where it is positive, else the operand times `negative_slope`."""
    dtype = ctx.result.dtype
    operand = hlo.convert(operand, opmath_dtype(dtype))
    positive = hlo.compare(operand, hlo.full_like(operand, 0), "GT")
    slope = stablehlo.multiply(operand, hlo.full_like(operand, negative_slope))
    return hlo.convert(hlo.select(positive, operand, slope), dtype)


@lowering(aten.hardtanh.default, padding=Padding.FLOWS)
def hardtanh(
    ctx: LoweringContext, operand: ir.Value, min_val: hlo.Scalar = -1, max_val: hlo.Scalar = 1
) -> ir.Value:
    """The operand limited to [min_val, max_val]; NaN stays NaN; integers stay integers."""
    low = stablehlo.maximum(operand, hlo.full_like(operand, min_val))
    return stablehlo.minimum(low, hlo.full_like(operand, max_val))
