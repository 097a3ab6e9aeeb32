"""Bessel functions J0, J1, Y0, Y1, the spherical j0, and the Airy function Ai.

Cephes' expansions with the coefficients in `cephes`, evaluated as ATen does. ATen leaves out the
leading coefficient 1 of some denominators, which puts it off by up to 7e-6 around x = 5; a compiled
program gives what eager PyTorch gives.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from lowering import hlo
from lowering.dtypes import spec_of
from lowering.mlir import ir, stablehlo
from lowering.ops import cephes
from lowering.ops.pointwise import register_unary, scaled, widened

aten = torch.ops.aten

# Squares of the first two zeros.
J0_ZEROS = (5.783185962946785, 30.471262343662087)
J1_ZEROS = (14.681970642123893, 49.2184563216946)

# Numerators and denominators of the factors of cosine and sine, by order.
WAVES = (
    (cephes.J0_COSINE_P, cephes.J0_COSINE_Q, cephes.J0_SINE_P, cephes.J0_SINE_Q),
    (cephes.J1_COSINE_P, cephes.J1_COSINE_Q, cephes.J1_SINE_P, cephes.J1_SINE_Q),
)

# Ai(0) and -Ai'(0).
AIRY_VALUE = 0.3550280538878172
AIRY_SLOPE = 0.2588194037928068


def polynomial(argument: ir.Value, coefficients: Sequence[float]) -> ir.Value:
    """Return the polynomial with `coefficients`, highest order first, by Horner's scheme."""
    value = hlo.full_like(argument, coefficients[0])
    for coefficient in coefficients[1:]:
        value = stablehlo.multiply(value, argument)
        value = stablehlo.add(value, hlo.full_like(argument, coefficient))
    return value


def rational(
    argument: ir.Value, numerator: Sequence[float], denominator: Sequence[float]
) -> ir.Value:
    """Return the quotient of two polynomials."""
    return stablehlo.divide(polynomial(argument, numerator), polynomial(argument, denominator))


def _less(operand: ir.Value, bound: float) -> ir.Value:
    return hlo.compare(operand, hlo.full_like(operand, bound), "LT")


def _at_most(operand: ir.Value, bound: float) -> ir.Value:
    return hlo.compare(operand, hlo.full_like(operand, bound), "LE")


def _shifted(operand: ir.Value, offset: float) -> ir.Value:
    return stablehlo.add(operand, hlo.full_like(operand, offset))


# --- J and Y ---------------------------------------------------------------------------------


def _wave(operand: ir.Value, order: int, *, second_kind: bool) -> ir.Value:
    """Return J or Y of order 0 or 1 from 5 on: sqrt(2/pi x) (p cos - q sin) of the phase."""
    tables = WAVES[order]
    inverse = stablehlo.divide(hlo.full_like(operand, 5), operand)
    square = stablehlo.multiply(inverse, inverse)
    cosine_factor = rational(square, *tables[:2])
    sine_factor = stablehlo.multiply(inverse, rational(square, *tables[2:]))
    phase = _shifted(operand, -(2 * order + 1) * math.pi / 4)
    cosine, sine = stablehlo.cosine(phase), stablehlo.sine(phase)
    if second_kind:
        wave = stablehlo.add(
            stablehlo.multiply(cosine_factor, sine), stablehlo.multiply(sine_factor, cosine)
        )
    else:
        wave = stablehlo.subtract(
            stablehlo.multiply(cosine_factor, cosine), stablehlo.multiply(sine_factor, sine)
        )
    return stablehlo.divide(scaled(wave, math.sqrt(2 / math.pi)), stablehlo.sqrt(operand))


def _between_zeros(square: ir.Value, zeros: tuple[float, float], ratio: ir.Value) -> ir.Value:
    value = stablehlo.multiply(_shifted(square, -zeros[0]), _shifted(square, -zeros[1]))
    return stablehlo.multiply(value, ratio)


def j0(operand: ir.Value) -> ir.Value:
    """Return the Bessel function of the first kind of order 0."""
    operand = stablehlo.abs(operand)
    square = stablehlo.multiply(operand, operand)
    near = _between_zeros(square, J0_ZEROS, rational(square, cephes.J0_P, cephes.J0_Q))
    tiny = stablehlo.subtract(hlo.full_like(square, 1), scaled(square, 0.25))
    near = hlo.select(_less(operand, 1e-5), tiny, near)
    return hlo.select(_at_most(operand, 5), near, _wave(operand, 0, second_kind=False))


def j1(operand: ir.Value) -> ir.Value:
    """Return the Bessel function of the first kind of order 1, an odd one."""
    magnitude = stablehlo.abs(operand)
    square = stablehlo.multiply(operand, operand)
    ratio = stablehlo.multiply(rational(square, cephes.J1_P, cephes.J1_Q), magnitude)
    near = _between_zeros(square, J1_ZEROS, ratio)
    value = hlo.select(_at_most(magnitude, 5), near, _wave(magnitude, 1, second_kind=False))
    return hlo.select(_less(operand, 0), stablehlo.negate(value), value)


def _second_kind(operand: ir.Value, near: ir.Value, order: int) -> ir.Value:
    """Return Y from its value up to 5; -inf at 0, NaN below."""
    value = hlo.select(_at_most(operand, 5), near, _wave(operand, order, second_kind=True))
    value = hlo.select(_less(operand, 0), hlo.full_like(operand, math.nan), value)
    is_zero = hlo.compare(operand, hlo.full_like(operand, 0), "EQ")
    return hlo.select(is_zero, hlo.full_like(operand, -math.inf), value)


def y0(operand: ir.Value) -> ir.Value:
    """Return the Bessel function of the second kind of order 0."""
    square = stablehlo.multiply(operand, operand)
    singular = stablehlo.multiply(scaled(stablehlo.log(operand), 2 / math.pi), j0(operand))
    near = stablehlo.add(rational(square, cephes.Y0_P, cephes.Y0_Q), singular)
    return _second_kind(operand, near, 0)


def y1(operand: ir.Value) -> ir.Value:
    """Return the Bessel function of the second kind of order 1."""
    square = stablehlo.multiply(operand, operand)
    regular = stablehlo.multiply(operand, rational(square, cephes.Y1_P, cephes.Y1_Q))
    singular = stablehlo.subtract(
        stablehlo.multiply(j1(operand), stablehlo.log(operand)),
        stablehlo.divide(hlo.full_like(operand, 1), operand),
    )
    near = stablehlo.add(regular, scaled(singular, 2 / math.pi))
    return _second_kind(operand, near, 1)


def spherical_j0(operand: ir.Value) -> ir.Value:
    """Return sin(x) / x, by its Taylor series around 0."""
    square = stablehlo.multiply(operand, operand)
    series = [(-1) ** k / math.factorial(2 * k + 1) for k in reversed(range(7))]
    value: ir.Value = stablehlo.divide(stablehlo.sine(operand), operand)
    magnitude = stablehlo.abs(operand)
    value = hlo.select(_less(magnitude, 0.5), polynomial(square, series), value)
    infinite = hlo.compare(magnitude, hlo.full_like(operand, math.inf), "EQ")
    return hlo.select(infinite, hlo.full_like(operand, 0), value)


# --- Airy --------------------------------------------------------------------------------------


def airy(operand: ir.Value) -> ir.Value:
    """Return the Airy function Ai; NaN at both infinities, as ATen has it."""
    magnitude = stablehlo.abs(operand)
    root = stablehlo.sqrt(magnitude)
    zeta = scaled(stablehlo.multiply(magnitude, root), 2 / 3)
    inverse = stablehlo.divide(hlo.full_like(zeta, 1), zeta)
    fourth_root = stablehlo.sqrt(root)

    right = rational(inverse, cephes.AIRY_P, cephes.AIRY_Q)
    right = stablehlo.multiply(scaled(right, 0.5 / math.sqrt(math.pi)), _decay(zeta))
    right = stablehlo.divide(right, fourth_root)

    square = stablehlo.multiply(inverse, inverse)
    sine_factor = rational(square, cephes.AIRY_SINE_P, cephes.AIRY_SINE_Q)
    sine_factor = _shifted(stablehlo.multiply(square, sine_factor), 1)
    cosine_factor = rational(square, cephes.AIRY_COSINE_P, cephes.AIRY_COSINE_Q)
    cosine_factor = stablehlo.multiply(inverse, cosine_factor)
    phase = _shifted(zeta, math.pi / 4)
    left = stablehlo.subtract(
        stablehlo.multiply(stablehlo.sine(phase), sine_factor),
        stablehlo.multiply(stablehlo.cosine(phase), cosine_factor),
    )
    left = stablehlo.divide(scaled(left, 1 / math.sqrt(math.pi)), fourth_root)

    value = hlo.select(_less(operand, 2.09), _airy_series(operand), right)
    value = hlo.select(_less(operand, -2.09), left, value)
    value = hlo.select(_at_most(operand, 103.892), value, hlo.full_like(operand, 0))
    undefined = stablehlo.or_(
        hlo.compare(magnitude, hlo.full_like(operand, math.inf), "EQ"), hlo.is_nan(operand)
    )
    return hlo.select(undefined, hlo.full_like(operand, math.nan), value)


def _decay(exponent: ir.Value) -> ir.Value:
    return stablehlo.exponential(stablehlo.negate(exponent))


def _airy_series(operand: ir.Value) -> ir.Value:
    """Return the Taylor series of Ai, for |x| up to 2.09."""
    bound = hlo.full_like(operand, 2.09)
    operand = stablehlo.clamp(stablehlo.negate(bound), operand, bound)
    cube = stablehlo.multiply(operand, stablehlo.multiply(operand, operand))
    least = torch.finfo(spec_of(operand).dtype).eps / 8
    even, odd = [1.0], [1.0]
    while even[-1] * 2.09 ** (3 * (len(even) - 1)) > least:
        k = 3 * len(even)
        even.append(even[-1] / ((k - 1) * k))
        odd.append(odd[-1] / (k * (k + 1)))
    first = scaled(polynomial(cube, even[::-1]), AIRY_VALUE)
    second = scaled(stablehlo.multiply(operand, polynomial(cube, odd[::-1])), AIRY_SLOPE)
    return stablehlo.subtract(first, second)


register_unary(
    {
        aten.special_bessel_j0.default: widened(j0),
        aten.special_bessel_j1.default: widened(j1),
        aten.special_bessel_y0.default: widened(y0),
        aten.special_bessel_y1.default: widened(y1),
        aten.special_spherical_bessel_j0.default: widened(spherical_j0),
        aten.special_airy_ai.default: widened(airy),
    }
)
