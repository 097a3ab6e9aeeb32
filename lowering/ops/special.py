"""Gamma, error and zeta functions; Bessel functions are in `bessel`.

Narrow floats are computed in float32, as in torch's CPU kernels.
"""

from __future__ import annotations

import math

import torch

from lowering import hlo
from lowering.context import LoweringContext
from lowering.mlir import chlo, ir, stablehlo
from lowering.ops.arithmetic import with_sign
from lowering.ops.pointwise import (
    opmath_dtype,
    register_binary,
    register_unary,
    scaled,
    widened,
    widened_binary,
)
from lowering.registry import Padding, lowering

aten = torch.ops.aten


def digamma(operand: ir.Value) -> ir.Value:
    """Return the logarithmic derivative of the gamma function.

    The poles are ATen's: zero gives an infinity of the other sign, negative integers NaN.
    """
    zero = hlo.full_like(operand, 0)
    infinity = hlo.full_like(operand, math.inf)
    pole = with_sign(infinity, stablehlo.negate(operand))
    return hlo.select(hlo.compare(operand, zero, "EQ"), pole, chlo.digamma(operand))


register_unary(
    {
        aten.erf.default: widened(chlo.erf),
        aten.erfc.default: widened(chlo.erfc),
        aten.erfinv.default: widened(chlo.erf_inv),
        aten.lgamma.default: widened(chlo.lgamma),
        aten.digamma.default: widened(digamma),
    }
)


def zeta(order: ir.Value, start: ir.Value) -> ir.Value:
    """Return the Hurwitz zeta function, the sum of (start + k) ** -order over k = 0, 1, ...

    Outside order > 1 and start > 0 it is what Cephes defines: infinite at order 1 and at starts
    0, -1, ...; NaN for smaller orders, and for fractional orders of negative starts.
    """
    infinity, nan = hlo.full_like(order, math.inf), hlo.full_like(order, math.nan)
    one, zero = hlo.full_like(order, 1), hlo.full_like(order, 0)
    whole_start = hlo.compare(start, stablehlo.floor(start), "EQ")
    whole_order = hlo.compare(order, stablehlo.floor(order), "EQ")
    value: ir.Value = chlo.zeta(order, start)
    left = hlo.select(whole_start, infinity, hlo.select(whole_order, value, nan))
    value = hlo.select(hlo.compare(start, zero, "LE"), left, value)
    value = hlo.select(hlo.compare(order, one, "LT"), nan, value)
    return hlo.select(hlo.compare(order, one, "EQ"), infinity, value)


register_binary(
    {
        aten.special_zeta.default: widened_binary(zeta),
        aten.special_zeta.other_scalar: widened_binary(zeta),
        aten.special_zeta.self_scalar: widened_binary(zeta),
    }
)


def trigamma(operand: ir.Value) -> ir.Value:
    """Return the derivative of digamma, reflected below one half.

    (NIST Handbook of Mathematical Functions, 5.15.6.)
    """
    one = hlo.full_like(operand, 1)
    below = hlo.compare(operand, hlo.full_like(operand, 0.5), "LT")
    positive = hlo.select(below, stablehlo.subtract(one, operand), operand)
    value = chlo.zeta(hlo.full_like(operand, 2), positive)
    sine = stablehlo.sine(scaled(operand, math.pi))
    pole = stablehlo.divide(hlo.full_like(operand, math.pi**2), stablehlo.multiply(sine, sine))
    return hlo.select(below, stablehlo.subtract(pole, value), value)


@lowering(aten.polygamma.default, padding=Padding.FLOWS)
def polygamma(ctx: LoweringContext, order: int, operand: ir.Value) -> ir.Value:
    """The derivative of digamma of the given order: (-1)**(n + 1) * n! * zeta(n + 1, operand)."""
    dtype = ctx.result.dtype
    operand = hlo.convert(operand, opmath_dtype(dtype))
    if order < 2:
        return hlo.convert(digamma(operand) if order == 0 else trigamma(operand), dtype)
    value = zeta(hlo.full_like(operand, order + 1), operand)
    sign = 1 if order % 2 else -1
    return hlo.convert(scaled(value, sign * math.exp(math.lgamma(order + 1))), dtype)
