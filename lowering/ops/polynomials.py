"""Orthogonal polynomials of Chebyshev, Hermite, Laguerre and Legendre; the degree may be a tensor.

Each family is its three-term recurrence, run in a loop up to the largest degree. As in ATen, the
Chebyshev polynomials of higher degrees are taken from their trigonometric form inside (-1, 1),
degrees are truncated to integers, and negative ones give 0.
(Abramowitz and Stegun, "Handbook of Mathematical Functions", 22.3 and 22.7.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from lowering import hlo
from lowering.context import LoweringContext
from lowering.dtypes import spec_of
from lowering.mlir import ir, stablehlo
from lowering.ops.pointwise import Operand, Unary, scaled
from lowering.registry import Padding, lowering

aten = torch.ops.aten

Step = Callable[[ir.Value, ir.Value, ir.Value, ir.Value], ir.Value]
"""The next polynomial from the argument, the degree so far (a float), the last but one, the last.
"""


@dataclass(frozen=True)
class Family:
    """A recurrence and where it is not used."""

    first: Unary
    """The polynomial of degree 1."""
    step: Step
    elsewhere: Callable[[ir.Value, ir.Value], tuple[ir.Value, ir.Value]] | None = None
    """From argument and degree (an i64): where not to run the recurrence, and the values there."""
    highest: Callable[[torch.dtype], int] | None = None
    """Beyond this degree ATen gives NaN."""


def _shifted(operand: ir.Value, offset: float) -> ir.Value:
    return operand if offset == 0 else stablehlo.add(operand, hlo.full_like(operand, offset))


def _degrees(degree: ir.Value) -> ir.Value:
    """Return the degree as i64; what does not fit is negative, as x86 converts it."""
    fits = hlo.compare(stablehlo.abs(degree), hlo.full_like(degree, 2.0**63), "LT")
    return hlo.convert(hlo.select(fits, degree, hlo.full_like(degree, -1)), torch.int64)


def evaluate(family: Family, argument: ir.Value, degree: ir.Value) -> ir.Value:
    """Return the polynomial of `family` at `argument`; both of one shape and floating dtype."""
    degree = _degrees(degree)
    one, zero = hlo.full_like(argument, 1), hlo.full_like(argument, 0)
    done, values = None, zero
    if family.elsewhere is not None:
        done, values = family.elsewhere(argument, degree)
    if family.highest is not None:
        limit = hlo.full_like(degree, family.highest(spec_of(argument).dtype))
        done, values = hlo.compare(degree, limit, "GT"), hlo.full_like(argument, math.nan)
    # A degree of 1 ends the loop at once.
    last = degree if done is None else hlo.select(done, hlo.full_like(degree, 1), degree)
    value = _run(family.step, argument, last, one, family.first(argument))
    if done is not None:
        value = hlo.select(done, values, value)
    value = hlo.select(hlo.compare(degree, hlo.full_like(degree, 0), "EQ"), one, value)
    return hlo.select(hlo.compare(degree, hlo.full_like(degree, 0), "LT"), zero, value)


def _run(
    step: Step, argument: ir.Value, last: ir.Value, zeroth: ir.Value, first: ir.Value
) -> ir.Value:
    """Return the polynomials of degrees `last`, at least 1, by the recurrence."""
    shape = spec_of(argument).shape

    def active(degree: ir.Value, current: ir.Value, last: ir.Value) -> ir.Value:
        grown = hlo.compare(hlo.broadcast_in_dim(degree, shape, []), last, "LT")
        return stablehlo.and_(grown, stablehlo.not_(hlo.is_nan(current)))

    def condition(degree: ir.Value, _: ir.Value, current: ir.Value, *fixed: ir.Value) -> ir.Value:
        running = active(degree, current, fixed[1])
        return hlo.reduce(running, range(len(shape)), False, stablehlo.or_)

    def body(
        degree: ir.Value, previous: ir.Value, current: ir.Value, *fixed: ir.Value
    ) -> list[ir.Value]:
        argument, last = fixed
        as_float = hlo.broadcast_in_dim(hlo.convert(degree, spec_of(current).dtype), shape, [])
        following = step(argument, as_float, previous, current)
        running = active(degree, current, last)
        return [
            stablehlo.add(degree, hlo.full_like(degree, 1)),
            hlo.select(running, current, previous),
            hlo.select(running, following, current),
            argument,
            last,
        ]

    start = hlo.scalar(1, torch.int64)
    return hlo.while_loop(condition, body, [start, zeroth, first, argument, last])[2]


# --- Chebyshev -----------------------------------------------------------------------------------


def _chebyshev_step(
    argument: ir.Value, degree: ir.Value, previous: ir.Value, current: ir.Value
) -> ir.Value:
    return stablehlo.subtract(stablehlo.multiply(scaled(argument, 2), current), previous)


def _alternating(degree: ir.Value, dtype: torch.dtype) -> ir.Value:
    """Return (-1)**degree."""
    odd = stablehlo.and_(degree, hlo.full_like(degree, 1))
    return _shifted(scaled(hlo.convert(odd, dtype), -2), 1)


def _quotient(
    of: Callable[[ir.Value], ir.Value], angle: ir.Value, degree: ir.Value, half: float
) -> ir.Value:
    numerator = of(stablehlo.multiply(_shifted(degree, half), angle))
    return stablehlo.divide(numerator, of(scaled(angle, half)))


def _trigonometric(kind: str, angle: ir.Value, degree: ir.Value) -> ir.Value:
    """Return the polynomial at cos(angle); `degree` is a float."""
    if kind == "t":
        return stablehlo.cosine(stablehlo.multiply(degree, angle))
    if kind == "u":
        return _quotient(stablehlo.sine, angle, degree, 1)
    of = stablehlo.cosine if kind == "v" else stablehlo.sine
    return _quotient(of, angle, degree, 0.5)


def _chebyshev(kind: str, offset: float, recurrence_up_to: int) -> Family:
    """Return the polynomials of the first to fourth kind: t, u, v, w."""

    def at_ends(degree: ir.Value, *, right: bool, dtype: torch.dtype) -> ir.Value:
        count = hlo.convert(degree, dtype)
        size = {"t": hlo.full_like(count, 1), "u": _shifted(count, 1)}.get(kind)
        if size is None:
            grows = right == (kind == "w")
            size = _shifted(scaled(count, 2), 1) if grows else hlo.full_like(count, 1)
        return size if right else stablehlo.multiply(size, _alternating(degree, dtype))

    def elsewhere(argument: ir.Value, degree: ir.Value) -> tuple[ir.Value, ir.Value]:
        dtype = spec_of(argument).dtype
        one = hlo.full_like(argument, 1)
        magnitude = stablehlo.abs(argument)
        is_end = hlo.compare(magnitude, one, "EQ")
        high = hlo.compare(degree, hlo.full_like(degree, recurrence_up_to), "GT")
        inside = stablehlo.and_(high, hlo.compare(magnitude, one, "LT"))
        angle = _arc_cosine(argument)
        inner = _trigonometric(kind, angle, hlo.convert(degree, dtype))
        right = at_ends(degree, right=True, dtype=dtype)
        left = at_ends(degree, right=False, dtype=dtype)
        is_right = hlo.compare(argument, hlo.full_like(argument, 0), "GT")
        ends = hlo.select(is_right, right, left)
        return stablehlo.or_(is_end, inside), hlo.select(is_end, ends, inner)

    def first(argument: ir.Value) -> ir.Value:
        return argument if kind == "t" else _shifted(scaled(argument, 2), offset)

    return Family(first, _chebyshev_step, elsewhere)


def _arc_cosine(argument: ir.Value) -> ir.Value:
    one = hlo.full_like(argument, 1)
    product = stablehlo.multiply(stablehlo.subtract(one, argument), stablehlo.add(one, argument))
    return stablehlo.atan2(stablehlo.sqrt(product), argument)


# --- Hermite, Laguerre, Legendre -----------------------------------------------------------------


def _hermite_step(factor: float) -> Step:
    def step(
        argument: ir.Value, degree: ir.Value, previous: ir.Value, current: ir.Value
    ) -> ir.Value:
        return stablehlo.subtract(
            stablehlo.multiply(scaled(argument, factor), current),
            stablehlo.multiply(scaled(degree, factor), previous),
        )

    return step


def _hermite_limit(dtype: torch.dtype) -> int:
    return 128 if dtype is torch.float32 else 512


def _laguerre_step(
    argument: ir.Value, degree: ir.Value, previous: ir.Value, current: ir.Value
) -> ir.Value:
    factor = stablehlo.add(scaled(degree, 2), _one_less(argument))
    value = stablehlo.subtract(
        stablehlo.multiply(factor, current), stablehlo.multiply(degree, previous)
    )
    return stablehlo.divide(value, _shifted(degree, 1))


def _one_less(argument: ir.Value) -> ir.Value:
    return stablehlo.subtract(hlo.full_like(argument, 1), argument)


def _laguerre_at_zero(argument: ir.Value, degree: ir.Value) -> tuple[ir.Value, ir.Value]:
    is_zero = hlo.compare(argument, hlo.full_like(argument, 0), "EQ")
    return is_zero, hlo.full_like(argument, 1)


def _legendre_step(
    argument: ir.Value, degree: ir.Value, previous: ir.Value, current: ir.Value
) -> ir.Value:
    factor = stablehlo.multiply(_shifted(scaled(degree, 2), 1), argument)
    value = stablehlo.subtract(
        stablehlo.multiply(factor, current), stablehlo.multiply(degree, previous)
    )
    return stablehlo.divide(value, _shifted(degree, 1))


def _legendre_at_ends(argument: ir.Value, degree: ir.Value) -> tuple[ir.Value, ir.Value]:
    one = hlo.full_like(argument, 1)
    is_right = hlo.compare(argument, hlo.full_like(argument, 0), "GT")
    ends = hlo.select(is_right, one, _alternating(degree, spec_of(argument).dtype))
    return hlo.compare(stablehlo.abs(argument), one, "EQ"), ends


# --- registration --------------------------------------------------------------------------------


def _register(name: str, family: Family, *, shifted: bool = False) -> None:
    packet = getattr(aten, f"special_{name}")

    def rule(ctx: LoweringContext, argument: Operand, degree: Operand) -> ir.Value:
        """The polynomial of the given degree at `argument`, broadcast."""
        argument, degree = ctx.broadcast_operands((argument, degree), ctx.result.dtype)
        if shifted:
            argument = _shifted(scaled(argument, 2), -1)
        return evaluate(family, argument, degree)

    overloads = (packet.default, packet.x_scalar, packet.n_scalar)
    lowering(*overloads, padding=Padding.FLOWS)(rule)


for _kind, _offset in (("t", 0), ("u", 0), ("v", -1), ("w", 1)):
    _plain = _chebyshev(_kind, _offset, 6 if _kind == "t" else 8)
    _register(f"chebyshev_polynomial_{_kind}", _plain)
    _near = _chebyshev(_kind, _offset, 4 if _kind == "w" else 6)
    _register(f"shifted_chebyshev_polynomial_{_kind}", _near, shifted=True)

_register(
    "hermite_polynomial_h",
    Family(lambda argument: scaled(argument, 2), _hermite_step(2), highest=_hermite_limit),
)
_register(
    "hermite_polynomial_he",
    Family(lambda argument: argument, _hermite_step(1), highest=_hermite_limit),
)
_register("laguerre_polynomial_l", Family(_one_less, _laguerre_step, _laguerre_at_zero))
_register(
    "legendre_polynomial_p",
    Family(lambda argument: argument, _legendre_step, _legendre_at_ends),
)
