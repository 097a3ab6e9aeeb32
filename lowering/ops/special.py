"""Gamma, error and zeta functions, and the inverse of the normal distribution.

Bessel functions are in `bessel` and `bessel_oscillating`, incomplete gamma functions in
`incomplete_gamma`, polynomials in `polynomials`.

Narrow floats are computed in float32, as in torch's CPU kernels.
"""

from __future__ import annotations

import math

import torch

from lowering import hlo
from lowering.context import LoweringContext
from lowering.dtypes import opmath_dtype, spec_of
from lowering.mlir import chlo, ir, stablehlo
from lowering.ops import cephes
from lowering.ops.bessel_oscillating import rational
from lowering.ops.pointwise import register_binary, register_unary, scaled, widened, widened_binary
from lowering.ops.unary import with_sign
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


def scaled_erfc(operand: ir.Value) -> ir.Value:
    """Return exp(x**2) * erfc(x).

    As written up to 2 or so, where exp(x**2) is exact enough; from there on by the continued
    fraction of DLMF 7.9.1, and below zero by reflection.
    """
    double = spec_of(operand).dtype is torch.float64
    magnitude = stablehlo.abs(operand)
    square = stablehlo.exponential(stablehlo.multiply(magnitude, magnitude))
    near = stablehlo.multiply(square, chlo.erfc(magnitude))
    tail = magnitude
    for n in range(40 if double else 14, 0, -1):
        tail = stablehlo.add(magnitude, stablehlo.divide(hlo.full_like(tail, n / 2), tail))
    far = stablehlo.divide(hlo.full_like(tail, 1 / math.sqrt(math.pi)), tail)
    cut = hlo.full_like(operand, 2.5 if double else 2.0)
    value = hlo.select(hlo.compare(magnitude, cut, "LT"), near, far)
    negative = hlo.compare(operand, hlo.full_like(operand, 0), "LT")
    return hlo.select(negative, stablehlo.subtract(scaled(square, 2), value), value)


def normal_quantile(operand: ir.Value) -> ir.Value:
    """Return the inverse of the standard normal distribution function (Cephes, `ndtri.c`)."""
    cut = math.exp(-2)
    one = hlo.full_like(operand, 1)
    upper = hlo.compare(operand, hlo.full_like(operand, 1 - cut), "GT")
    tail = hlo.select(upper, stablehlo.subtract(one, operand), operand)

    centred = stablehlo.subtract(tail, hlo.full_like(tail, 0.5))
    square = stablehlo.multiply(centred, centred)
    ratio = rational(square, cephes.NDTRI_MIDDLE_P, cephes.NDTRI_MIDDLE_Q)
    middle: ir.Value = stablehlo.multiply(stablehlo.multiply(centred, square), ratio)
    middle = scaled(stablehlo.add(centred, middle), math.sqrt(2 * math.pi))

    distance = stablehlo.sqrt(scaled(stablehlo.log(tail), -2))
    inverse = stablehlo.divide(one, distance)
    near = rational(inverse, cephes.NDTRI_TAIL_P, cephes.NDTRI_TAIL_Q)
    far = rational(inverse, cephes.NDTRI_FAR_P, cephes.NDTRI_FAR_Q)
    is_near = hlo.compare(distance, hlo.full_like(distance, 8), "LT")
    correction = stablehlo.multiply(inverse, hlo.select(is_near, near, far))
    logarithm = stablehlo.divide(stablehlo.log(distance), distance)
    outer: ir.Value = stablehlo.subtract(stablehlo.subtract(distance, logarithm), correction)
    outer = hlo.select(upper, outer, stablehlo.negate(outer))

    value = hlo.select(hlo.compare(tail, hlo.full_like(tail, cut), "GT"), middle, outer)
    infinity, zero = hlo.full_like(operand, math.inf), hlo.full_like(operand, 0)
    value = hlo.select(hlo.compare(operand, zero, "EQ"), stablehlo.negate(infinity), value)
    value = hlo.select(hlo.compare(operand, one, "EQ"), infinity, value)
    outside = stablehlo.or_(hlo.compare(operand, zero, "LT"), hlo.compare(operand, one, "GT"))
    return hlo.select(outside, hlo.full_like(operand, math.nan), value)


register_unary(
    {
        aten.special_erfcx.default: widened(scaled_erfc),
        aten.special_ndtri.default: widened(normal_quantile),
        aten.erf.default: widened(chlo.erf),
        aten.erfc.default: widened(chlo.erfc),
        aten.erfinv.default: widened(chlo.erf_inv),
        aten.lgamma.default: widened(chlo.lgamma),
        aten.digamma.default: widened(digamma),
    }
)


# From this order on the first term of zeta is all of it: (1 + 1 / start) ** -order is beyond the
# last digit wherever start ** -order is not zero, even in float64. XLA's series overflows there.
_LARGE_ORDER = 1000


def _hurwitz(order: ir.Value, start: ir.Value) -> ir.Value:
    """Return zeta for order > 1 and start > 0, the limit for an infinite order."""
    is_large = hlo.compare(order, hlo.full_like(order, _LARGE_ORDER), "GE")
    first_term = stablehlo.power(start, stablehlo.negate(order))
    return hlo.select(is_large, first_term, chlo.zeta(order, start))


def zeta(order: ir.Value, start: ir.Value) -> ir.Value:
    """Return the Hurwitz zeta function, the sum of (start + k) ** -order over k = 0, 1, ...

    Outside order > 1 and start > 0 it is what Cephes defines: infinite at order 1 and at starts
    0, -1, ...; NaN for smaller orders, and for fractional orders of negative starts.
    """
    infinity, nan = hlo.full_like(order, math.inf), hlo.full_like(order, math.nan)
    one, zero = hlo.full_like(order, 1), hlo.full_like(order, 0)
    whole_start = hlo.compare(start, stablehlo.floor(start), "EQ")
    whole_order = hlo.compare(order, stablehlo.floor(order), "EQ")
    is_left = hlo.compare(start, zero, "LE")
    value: ir.Value = _hurwitz(order, hlo.select(is_left, one, start))
    # Cephes multiplies zero by infinity there.
    endless = hlo.compare(order, infinity, "EQ")
    endless = stablehlo.and_(endless, hlo.compare(start, one, "GT"))
    value = hlo.select(endless, nan, value)
    left = hlo.select(whole_order, _zeta_left(order, start), nan)
    value = hlo.select(is_left, hlo.select(whole_start, infinity, left), value)
    value = hlo.select(hlo.compare(order, one, "LT"), nan, value)
    return hlo.select(hlo.compare(order, one, "EQ"), infinity, value)


def _zeta_left(order: ir.Value, start: ir.Value) -> ir.Value:
    """Return zeta for a whole order and a start below zero between two poles.

    The terms below zero run, but for their sign, from the distance to the pole above up to -start:
    they are the difference of two zeta functions.
    """
    one, zero = hlo.full_like(order, 1), hlo.full_like(order, 0)
    left = hlo.compare(start, zero, "LT")
    mirrored = hlo.select(left, stablehlo.negate(start), hlo.full_like(start, 0.5))
    distance: ir.Value = stablehlo.subtract(mirrored, stablehlo.floor(mirrored))
    distance = hlo.select(hlo.compare(distance, zero, "EQ"), hlo.full_like(start, 0.5), distance)
    below: ir.Value = stablehlo.subtract(
        _hurwitz(order, distance), _hurwitz(order, stablehlo.add(mirrored, one))
    )
    half = scaled(order, 0.5)
    even = hlo.compare(half, stablehlo.floor(half), "EQ")
    below = hlo.select(even, below, stablehlo.negate(below))
    return stablehlo.add(_hurwitz(order, stablehlo.subtract(one, distance)), below)


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
    # The largest factorial in float64 is that of 170.
    factorial = float(math.factorial(order)) if order <= 170 else math.inf
    return hlo.convert(scaled(value, factorial if order % 2 else -factorial), dtype)
