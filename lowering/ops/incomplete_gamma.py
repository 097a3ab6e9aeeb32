"""Regularized incomplete gamma functions P (`igamma`) and Q = 1 - P (`igammac`).

By region, as in ATen: a power series for P, a continued fraction for Q at x above a, a series for Q
where both are small, and Temme's uniform expansion where a is large and x near it.
(DLMF 8.7.1, 8.9.2, 8.12; Temme: "The asymptotic expansion of the incomplete gamma functions",
SIAM J. Math. Anal. 10, 1979.)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import torch

from lowering import hlo
from lowering.dtypes import spec_of
from lowering.mlir import chlo, ir, stablehlo
from lowering.ops.pointwise import register_binary, scaled, widened_binary

aten = torch.ops.aten

# Temme's expansion holds from this order on, for x within this part of it.
LARGE_ORDER = 20.0
NEAR = 0.3

# Stirling's series holds from this order on.
STIRLING_ORDER = 8.0
BERNOULLI = ("1/6", "-1/30", "1/42", "-1/30", "5/66", "-691/2730", "7/6", "-3617/510")

# Loops end here at the latest, as ATen's do.
MOST_STEPS = 2000


def _shifted(operand: ir.Value, offset: float) -> ir.Value:
    return stablehlo.add(operand, hlo.full_like(operand, offset))


def _where(condition: ir.Value, operand: ir.Value, otherwise: float) -> ir.Value:
    return hlo.select(condition, operand, hlo.full_like(operand, otherwise))


def _compare(operand: ir.Value, bound: float, direction: str) -> ir.Value:
    return hlo.compare(operand, hlo.full_like(operand, bound), direction)


def _polynomial(argument: ir.Value, coefficients: Sequence[float]) -> ir.Value:
    """Return the polynomial with `coefficients`, lowest order first."""
    value = hlo.full_like(argument, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = _shifted(stablehlo.multiply(value, argument), coefficient)
    return value


def _by_precision(operand: ir.Value, single: int, double: int) -> int:
    return double if spec_of(operand).dtype is torch.float64 else single


# --- building blocks -----------------------------------------------------------------------------


def _ratio(order: ir.Value, x: ir.Value) -> ir.Value:
    """Return (x - a) / a."""
    return stablehlo.divide(stablehlo.subtract(x, order), order)


def _log_less(order: ir.Value, x: ir.Value) -> ir.Value:
    """Return log(1 + t) - t for t = (x - a) / a, by its series near 0."""
    ratio = _ratio(order, x)
    terms = _by_precision(ratio, 16, 34)
    series = [(-1) ** (n + 1) / n for n in range(2, terms)]
    near = stablehlo.multiply(stablehlo.multiply(ratio, ratio), _polynomial(ratio, series))
    # The difference x - a has lost digits of a small x, the quotient has not.
    far = stablehlo.subtract(stablehlo.log(stablehlo.divide(x, order)), ratio)
    return hlo.select(_compare(stablehlo.abs(ratio), NEAR, "LE"), near, far)


def _log_gamma_1p(operand: ir.Value) -> ir.Value:
    """Return log(Gamma(1 + a)) for a >= 0, with relative accuracy near 0 (DLMF 5.7.3)."""
    terms = _by_precision(operand, 20, 48)
    orders = torch.arange(2, terms, dtype=torch.float64)
    values = torch.special.zeta(orders, 1.0) / orders * (-1) ** orders
    euler = -float(torch.special.digamma(torch.tensor(1.0, dtype=torch.float64)))
    small = stablehlo.multiply(operand, _polynomial(operand, [-euler, *values.tolist()]))
    return hlo.select(_compare(operand, 0.5, "LE"), small, chlo.lgamma(_shifted(operand, 1)))


def density(order: ir.Value, x: ir.Value) -> ir.Value:
    """Return x**a * exp(-x) / Gamma(a + 1), with Stirling's formula for large a.

    To a count a, the probability that a Poisson distribution of mean x gives it.
    """
    small = stablehlo.subtract(stablehlo.multiply(order, stablehlo.log(x)), x)
    small = stablehlo.exponential(stablehlo.subtract(small, _log_gamma_1p(order)))

    inverse = stablehlo.divide(hlo.full_like(order, 1), order)
    corrections = [
        float(Fraction(number)) / (2 * k * (2 * k - 1)) for k, number in enumerate(BERNOULLI, 1)
    ]
    correction = _polynomial(stablehlo.multiply(inverse, inverse), corrections)
    exponent = stablehlo.subtract(
        stablehlo.multiply(order, _log_less(order, x)), stablehlo.multiply(inverse, correction)
    )
    large = stablehlo.exponential(exponent)
    large = stablehlo.multiply(large, stablehlo.rsqrt(scaled(order, 2 * math.pi)))
    return hlo.select(_compare(order, STIRLING_ORDER, "GT"), large, small)


def _until_small(
    step: Callable[..., tuple[Sequence[ir.Value], ir.Value]], carried: Sequence[ir.Value]
) -> list[ir.Value]:
    """Return the carried values after steps until the relative change is within the precision.

    Each element stops by itself: going on would add up rounding errors. `step` takes the step's
    number (from 1, a float of the carried shape) and the values; it gives the new values and the
    relative change.
    """
    shape, dtype = spec_of(carried[0])

    def condition(number: ir.Value, is_open: ir.Value, *_: ir.Value) -> ir.Value:
        some = hlo.reduce(is_open, range(len(shape)), False, stablehlo.or_)
        return stablehlo.and_(some, _compare(number, MOST_STEPS, "LE"))

    def body(number: ir.Value, is_open: ir.Value, *values: ir.Value) -> list[ir.Value]:
        following, change = step(hlo.broadcast_in_dim(number, shape, []), *values)
        kept = [hlo.select(is_open, *pair) for pair in zip(following, values, strict=True)]
        large = _compare(stablehlo.abs(change), torch.finfo(dtype).eps, "GT")
        return [_shifted(number, 1), stablehlo.and_(is_open, large), *kept]

    start = [hlo.scalar(1, dtype), hlo.full(shape, torch.bool, True), *carried]
    return hlo.while_loop(condition, body, start)[2:]


# --- the four ways ---------------------------------------------------------------------------


def _lower_series(order: ir.Value, x: ir.Value) -> ir.Value:
    """Return P = density * (1 + x/(a+1) + x^2/((a+1)(a+2)) + ...)."""

    def step(
        number: ir.Value, term: ir.Value, total: ir.Value, order: ir.Value, x: ir.Value
    ) -> tuple[list[ir.Value], ir.Value]:
        quotient = stablehlo.divide(x, stablehlo.add(order, number))
        term = stablehlo.multiply(term, quotient)
        total = stablehlo.add(total, term)
        return [term, total, order, x], stablehlo.divide(term, total)

    one = hlo.full_like(x, 1)
    total = _until_small(step, [one, one, order, x])[1]
    return stablehlo.multiply(density(order, x), total)


def _upper_fraction(order: ir.Value, x: ir.Value) -> ir.Value:
    """Return Q = a * density / (x + 1 - a - (1 - a)/(x + 3 - a - ...)) by Lentz's method."""

    def step(
        number: ir.Value, base: ir.Value, c: ir.Value, d: ir.Value, value: ir.Value, order: ir.Value
    ) -> tuple[list[ir.Value], ir.Value]:
        one = hlo.full_like(base, 1)
        numerator = stablehlo.multiply(number, stablehlo.subtract(order, number))
        base = _shifted(base, 2)
        c = stablehlo.add(base, stablehlo.divide(numerator, c))
        d = stablehlo.divide(one, stablehlo.add(base, stablehlo.multiply(numerator, d)))
        factor = stablehlo.multiply(c, d)
        value = stablehlo.multiply(value, factor)
        return [base, c, d, value, order], stablehlo.subtract(factor, one)

    base = stablehlo.subtract(_shifted(x, 1), order)
    inverse = stablehlo.divide(hlo.full_like(x, 1), base)
    # The first step divides by c: infinity makes it the base itself.
    start = [base, hlo.full_like(x, math.inf), inverse, inverse, order]
    value = _until_small(step, start)[3]
    return stablehlo.multiply(stablehlo.multiply(density(order, x), order), value)


def _upper_series(order: ir.Value, x: ir.Value) -> ir.Value:
    """Return Q = 1 - x**a/Gamma(1 + a) * (1 + a * sum over n of (-x)**n / n! / (a + n))."""
    total = hlo.full_like(x, 0)
    for n in range(_by_precision(x, 10, 20), 0, -1):
        # Horner's scheme with a factor -x/n a term.
        inner = stablehlo.divide(hlo.full_like(x, 1), _shifted(order, n))
        total = stablehlo.multiply(stablehlo.add(inner, total), scaled(x, -1 / n))
    exponent = stablehlo.subtract(stablehlo.multiply(order, stablehlo.log(x)), _log_gamma_1p(order))
    power = stablehlo.multiply(stablehlo.exponential(exponent), order)
    first = stablehlo.negate(stablehlo.exponential_minus_one(exponent))
    return stablehlo.subtract(first, stablehlo.multiply(power, total))


@functools.cache
def temme_coefficients(rows: int, columns: int) -> tuple[tuple[float, ...], ...]:
    """Return the Taylor coefficients in eta of Temme's c_k, one row a k (DLMF 8.12.9 and 8.12.10).

    The numbers g_k of Stirling's series, which occur there, follow from the poles of each c_k
    having to cancel.
    """
    length = columns + 2 * rows
    # mu as a power series in eta, from eta**2 / 2 = mu - log(1 + mu).
    series = [Fraction(0), Fraction(1)]
    for n in range(2, length + 3):
        known = sum(j * series[j] * series[n + 1 - j] for j in range(2, n))
        series.append((series[n - 1] - known) / (n + 1))
    # 1 / mu = 1 / eta + inverse[1] + inverse[2] * eta + ...
    inverse = [Fraction(1)]
    for n in range(1, length + 1):
        inverse.append(-sum((series[j + 1] * inverse[n - j] for j in range(1, n + 1)), Fraction(0)))
    regular = inverse[1:]
    row = regular
    table = [row]
    for _ in range(1, rows):
        row = [(n + 2) * row[n + 2] - row[1] * regular[n] for n in range(len(row) - 2)]
        table.append(row)
    return tuple(tuple(float(number) for number in row[:columns]) for row in table)


def _uniform(order: ir.Value, x: ir.Value, *, upper: bool) -> ir.Value:
    """Return Q or P by Temme's expansion around x = a."""
    sign = 1.0 if upper else -1.0
    half_square = stablehlo.negate(_log_less(order, x))
    eta: ir.Value = stablehlo.sqrt(scaled(half_square, 2))
    eta = hlo.select(hlo.compare(x, order, "LT"), stablehlo.negate(eta), eta)
    inverse = stablehlo.divide(hlo.full_like(order, 1), order)
    total = hlo.full_like(order, 0)
    rows, columns = _by_precision(order, 5, 14), _by_precision(order, 9, 18)
    for row in reversed(temme_coefficients(rows, columns)):
        total = stablehlo.add(stablehlo.multiply(total, inverse), _polynomial(eta, row))
    exponential = stablehlo.exponential(stablehlo.negate(stablehlo.multiply(order, half_square)))
    rest = stablehlo.multiply(exponential, total)
    rest = stablehlo.multiply(rest, stablehlo.rsqrt(scaled(order, 2 * math.pi)))
    argument = stablehlo.multiply(eta, stablehlo.sqrt(scaled(order, 0.5)))
    body = scaled(chlo.erfc(scaled(argument, sign)), 0.5)
    return stablehlo.add(body, scaled(rest, sign))


# --- the functions ---------------------------------------------------------------------------


def _regularized(order: ir.Value, x: ir.Value, *, upper: bool) -> ir.Value:
    one = hlo.full_like(x, 1)
    inner = stablehlo.and_(
        stablehlo.and_(_compare(order, 0, "GT"), _compare(x, 0, "GT")),
        stablehlo.and_(_compare(order, math.inf, "LT"), _compare(x, math.inf, "LT")),
    )
    uniform = stablehlo.and_(
        _compare(order, LARGE_ORDER, "GT"), _compare(stablehlo.abs(_ratio(order, x)), NEAR, "LT")
    )
    beyond = stablehlo.and_(_compare(x, 1.1, "GT"), hlo.compare(x, order, "GE"))
    iterated = stablehlo.and_(inner, stablehlo.not_(uniform))

    # Elements of other regions go through each way as harmless ones.
    by_fraction = stablehlo.and_(iterated, beyond)
    fraction = _upper_fraction(_where(by_fraction, order, 1), _where(by_fraction, x, 2))
    by_series = stablehlo.and_(iterated, stablehlo.not_(beyond))
    series = _lower_series(_where(by_series, order, 1), _where(by_series, x, 0.5))
    if upper:
        value: ir.Value = stablehlo.subtract(one, series)
        is_small = _compare(x, 0.5, "LE")
        bound: ir.Value = stablehlo.divide(hlo.full_like(x, -0.4), stablehlo.log(x))
        bound = hlo.select(is_small, bound, scaled(x, 1.1))
        both_small = stablehlo.and_(_compare(x, 1.1, "LE"), hlo.compare(order, bound, "LE"))
        value = hlo.select(both_small, _upper_series(order, x), value)
        value = hlo.select(beyond, fraction, value)
    else:
        value = hlo.select(beyond, stablehlo.subtract(one, fraction), series)
    value = hlo.select(uniform, _uniform(order, x, upper=upper), value)
    return hlo.select(inner, value, _edges(order, x, upper=upper))


def _edges(order: ir.Value, x: ir.Value, *, upper: bool) -> ir.Value:
    """Return the value where an argument is zero, infinite, negative or NaN, as ATen has it.

    A NaN counts for nothing beside a zero x or an infinite argument.
    """
    nan = hlo.full_like(x, math.nan)
    none, everything = hlo.full_like(x, float(upper)), hlo.full_like(x, float(not upper))
    endless_x = _compare(x, math.inf, "EQ")
    value = hlo.select(endless_x, everything, nan)
    endless_order = _compare(order, math.inf, "EQ")
    value = hlo.select(endless_order, hlo.select(endless_x, nan, none), value)
    value = hlo.select(_compare(x, 0, "EQ"), none, value)
    at_zero = hlo.select(_compare(x, 0, "GT"), everything, nan)
    value = hlo.select(_compare(order, 0, "EQ"), at_zero, value)
    negative = stablehlo.or_(_compare(order, 0, "LT"), _compare(x, 0, "LT"))
    return hlo.select(negative, nan, value)


def igamma(order: ir.Value, x: ir.Value) -> ir.Value:
    """Return P(a, x), the integral of t**(a-1) exp(-t) / Gamma(a) from 0 to x."""
    return _regularized(order, x, upper=False)


def igammac(order: ir.Value, x: ir.Value) -> ir.Value:
    """Return Q(a, x), the rest of the integral, from x on."""
    return _regularized(order, x, upper=True)


register_binary(
    {
        aten.igamma.default: widened_binary(igamma),
        aten.igammac.default: widened_binary(igammac),
    }
)
