"""Modified Bessel functions I0, I1, K0, K1 and their exponentially scaled forms.

I0, K0 and K1 are Chebyshev expansions with the coefficients of Cephes (Moshier, "Methods and
Programs for Mathematical Functions", 1989; `i0.c`, `k0.c`, `k1.c`), which ATen uses as well; I1 is
a CHLO op. The longer tables are in `cephes`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from lowering import hlo
from lowering.dtypes import spec_of
from lowering.mlir import chlo, ir, stablehlo
from lowering.ops.cephes import K0_FAR, K0_NEAR, K1_FAR, K1_NEAR
from lowering.ops.pointwise import register_unary, scaled, widened

aten = torch.ops.aten

# exp(-x) I0(x) on [0, 8] in x/2 - 2, highest order first.
_NEAR = (
    -4.4153416464793395e-18,
    3.3307945188222384e-17,
    -2.431279846547955e-16,
    1.715391285555133e-15,
    -1.1685332877993451e-14,
    7.676185498604936e-14,
    -4.856446783111929e-13,
    2.95505266312964e-12,
    -1.726826291441556e-11,
    9.675809035373237e-11,
    -5.189795601635263e-10,
    2.6598237246823866e-09,
    -1.300025009986248e-08,
    6.046995022541919e-08,
    -2.670793853940612e-07,
    1.1173875391201037e-06,
    -4.4167383584587505e-06,
    1.6448448070728896e-05,
    -5.754195010082104e-05,
    0.00018850288509584165,
    -0.0005763755745385824,
    0.0016394756169413357,
    -0.004324309995050576,
    0.010546460394594998,
    -0.02373741480589947,
    0.04930528423967071,
    -0.09490109704804764,
    0.17162090152220877,
    -0.3046826723431984,
    0.6767952744094761,
)

# exp(-x) sqrt(x) I0(x) on [8, inf) in 32/x - 2, highest order first.
_FAR = (
    -7.233180487874754e-18,
    -4.830504485944182e-18,
    4.46562142029676e-17,
    3.461222867697461e-17,
    -2.8276239805165836e-16,
    -3.425485619677219e-16,
    1.7725601330565263e-15,
    3.8116806693526224e-15,
    -9.554846698828307e-15,
    -4.150569347287222e-14,
    1.54008621752141e-14,
    3.8527783827421426e-13,
    7.180124451383666e-13,
    -1.7941785315068062e-12,
    -1.3215811840447713e-11,
    -3.1499165279632416e-11,
    1.1889147107846439e-11,
    4.94060238822497e-10,
    3.3962320257083865e-09,
    2.266668990498178e-08,
    2.0489185894690638e-07,
    2.8913705208347567e-06,
    6.889758346916825e-05,
    0.0033691164782556943,
    0.8044904110141088,
)


def chebyshev(argument: ir.Value, coefficients: Sequence[float]) -> ir.Value:
    """Return half the Chebyshev sum on [-2, 2] by Clenshaw's recurrence, as Cephes defines it.

    Terms too small for the dtype are left out.
    """
    least = torch.finfo(spec_of(argument).dtype).eps / 8
    kept = list(coefficients)
    while abs(kept[0]) < least:
        kept.pop(0)
    current = hlo.full_like(argument, kept[0])
    previous = before = hlo.full_like(argument, 0)
    for coefficient in kept[1:]:
        before, previous = previous, current
        current = stablehlo.subtract(stablehlo.multiply(argument, previous), before)
        current = stablehlo.add(current, hlo.full_like(argument, coefficient))
    return scaled(stablehlo.subtract(current, before), 0.5)


def scaled_i0(operand: ir.Value) -> ir.Value:
    """Return exp(-|x|) I0(x)."""
    magnitude = stablehlo.abs(operand)
    two = hlo.full_like(operand, 2)
    near = chebyshev(stablehlo.subtract(scaled(magnitude, 0.5), two), _NEAR)
    inverse = stablehlo.divide(hlo.full_like(operand, 32), magnitude)
    far = chebyshev(stablehlo.subtract(inverse, two), _FAR)
    far = stablehlo.divide(far, stablehlo.sqrt(magnitude))
    is_near = hlo.compare(magnitude, hlo.full_like(operand, 8), "LE")
    return hlo.select(is_near, near, far)


def _grown(scaled_value: ir.Value, operand: ir.Value) -> ir.Value:
    return stablehlo.multiply(stablehlo.exponential(stablehlo.abs(operand)), scaled_value)


def i0(operand: ir.Value) -> ir.Value:
    """Return I0(x)."""
    return _grown(scaled_i0(operand), operand)


def i1(operand: ir.Value) -> ir.Value:
    """Return I1(x)."""
    return _grown(chlo.bessel_i1e(operand), operand)


def _second_kind(operand: ir.Value, near: ir.Value, far: Sequence[float]) -> ir.Value:
    """Return exp(x) K(x) from its value up to 2 and the expansion of exp(x) sqrt(x) K(x) beyond.

    Infinite at zero, NaN below.
    """
    zero = hlo.full_like(operand, 0)
    inverse = stablehlo.divide(hlo.full_like(operand, 8), operand)
    beyond = chebyshev(stablehlo.subtract(inverse, hlo.full_like(operand, 2)), far)
    beyond = stablehlo.divide(beyond, stablehlo.sqrt(operand))
    is_near = hlo.compare(operand, hlo.full_like(operand, 2), "LE")
    value = hlo.select(is_near, near, beyond)
    value = hlo.select(hlo.compare(operand, zero, "LT"), hlo.full_like(operand, math.nan), value)
    infinity = hlo.full_like(operand, math.inf)
    return hlo.select(hlo.compare(operand, zero, "EQ"), infinity, value)


def _near_argument(operand: ir.Value) -> ir.Value:
    return stablehlo.subtract(stablehlo.multiply(operand, operand), hlo.full_like(operand, 2))


def scaled_k0(operand: ir.Value) -> ir.Value:
    """Return exp(x) K0(x)."""
    regular = chebyshev(_near_argument(operand), K0_NEAR)
    singular = stablehlo.multiply(stablehlo.log(scaled(operand, 0.5)), i0(operand))
    near = stablehlo.multiply(stablehlo.subtract(regular, singular), stablehlo.exponential(operand))
    return _second_kind(operand, near, K0_FAR)


def scaled_k1(operand: ir.Value) -> ir.Value:
    """Return exp(x) K1(x)."""
    regular = stablehlo.divide(chebyshev(_near_argument(operand), K1_NEAR), operand)
    singular = stablehlo.multiply(stablehlo.log(scaled(operand, 0.5)), i1(operand))
    near = stablehlo.multiply(stablehlo.add(regular, singular), stablehlo.exponential(operand))
    return _second_kind(operand, near, K1_FAR)


def _shrunk(scaled_value: ir.Value, operand: ir.Value) -> ir.Value:
    return stablehlo.multiply(stablehlo.exponential(stablehlo.negate(operand)), scaled_value)


def k0(operand: ir.Value) -> ir.Value:
    """Return K0(x)."""
    return _shrunk(scaled_k0(operand), operand)


def k1(operand: ir.Value) -> ir.Value:
    """Return K1(x)."""
    return _shrunk(scaled_k1(operand), operand)


register_unary(
    {
        aten.i0.default: widened(i0),
        aten.special_modified_bessel_i0.default: widened(i0),
        aten.special_i0e.default: widened(scaled_i0),
        aten.special_i1.default: widened(i1),
        aten.special_modified_bessel_i1.default: widened(i1),
        aten.special_i1e.default: widened(chlo.bessel_i1e),
        aten.special_modified_bessel_k0.default: widened(k0),
        aten.special_modified_bessel_k1.default: widened(k1),
        aten.special_scaled_modified_bessel_k0.default: widened(scaled_k0),
        aten.special_scaled_modified_bessel_k1.default: widened(scaled_k1),
    }
)
