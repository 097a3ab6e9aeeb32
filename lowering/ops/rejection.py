"""Random numbers drawn by rejection: gamma, Dirichlet, Poisson and binomial.

Every round of the loop draws for all elements, keyed by round and index, and the elements that
accept keep their number: what one of them gets does not depend on the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from lowering import hlo
from lowering.bucketing.randomness import draws_by_rejection, draws_dirichlet
from lowering.context import LoweringContext
from lowering.dtypes import spec_of
from lowering.mlir import ir, stablehlo
from lowering.ops.incomplete_gamma import density
from lowering.ops.pointwise import scaled
from lowering.ops.random import computed_in
from lowering.registry import lowering
from lowering.threefry import Source, normal_pair, open_interval

aten = torch.ops.aten

# The mean from which counts are drawn by transformed rejection rather than by waiting times.
LARGE_MEAN = 10.0


def _shifted(operand: ir.Value, offset: float) -> ir.Value:
    return stablehlo.add(operand, hlo.full_like(operand, offset))


def _compare(operand: ir.Value, bound: float, direction: str) -> ir.Value:
    return hlo.compare(operand, hlo.full_like(operand, bound), direction)


def _and(*conditions: ir.Value) -> ir.Value:
    value = conditions[0]
    for condition in conditions[1:]:
        value = stablehlo.and_(value, condition)
    return value


def _until_all_accept(
    source: Source,
    start: Sequence[ir.Value],
    fixed: Sequence[ir.Value],
    attempt: Callable[..., tuple[ir.Value, Sequence[ir.Value]]],
) -> list[ir.Value]:
    """Return the state of each element from the round in which it was accepted.

    `attempt` takes the round's source, the state and the fixed values; it gives where it accepts,
    and the new state. All have one shape.
    """
    shape, count = spec_of(start[0]).shape, len(start)
    index = source.given_index
    end = 3 + len(index)

    def condition(_: ir.Value, __: ir.Value, is_open: ir.Value, *values: ir.Value) -> ir.Value:
        return hlo.reduce(is_open, range(len(shape)), False, stablehlo.or_)

    def body(
        key: ir.Value, number: ir.Value, is_open: ir.Value, *values: ir.Value
    ) -> list[ir.Value]:
        index, values = values[: len(source.given_index)], values[len(source.given_index) :]
        old, fixed = values[:count], values[count:]
        accepted, new = attempt(source.for_round(key, number, index), *old, *fixed)
        state = [hlo.select(is_open, *pair) for pair in zip(new, old, strict=True)]
        still_open = _and(is_open, stablehlo.not_(accepted))
        number = stablehlo.add(number, hlo.full_like(number, 1))
        return [key, number, still_open, *index, *state, *fixed]

    opened = hlo.full(shape, torch.bool, True)
    carried = [source.key, hlo.scalar(0, torch.uint32), opened, *index, *start, *fixed]
    return hlo.while_loop(condition, body, carried)[end : end + count]


# --- gamma and Dirichlet -------------------------------------------------------------------------


def _gamma(source: Source, shape_parameter: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return a positive number and a logarithm: a gamma number is number * exp(logarithm).

    Marsaglia and Tsang, "A simple method for generating gamma variables" (2000). Below 1 the
    parameter is raised by 1 and the number multiplied with a power of a uniform one.
    """
    shape, dtype = spec_of(shape_parameter)
    small = _compare(shape_parameter, 1, "LT")
    raised = hlo.select(small, _shifted(shape_parameter, 1), shape_parameter)
    d = _shifted(raised, -1 / 3)

    def attempt(source: Source, _: ir.Value, d: ir.Value) -> tuple[ir.Value, Sequence[ir.Value]]:
        normal, _ = normal_pair(source, shape, dtype)
        root = _shifted(stablehlo.multiply(normal, stablehlo.rsqrt(scaled(d, 9))), 1)
        cube = stablehlo.multiply(root, stablehlo.multiply(root, root))
        uniform = open_interval(source.words(shape, stream=2), dtype)
        bound = stablehlo.subtract(_shifted(stablehlo.log(cube), 1), cube)
        bound = stablehlo.add(
            scaled(stablehlo.multiply(normal, normal), 0.5), stablehlo.multiply(d, bound)
        )
        likely = hlo.compare(stablehlo.log(uniform), bound, "LT")
        accepted = _and(_compare(root, 0, "GT"), likely)
        # A NaN would never be accepted.
        return stablehlo.or_(accepted, hlo.is_nan(d)), [stablehlo.multiply(d, cube)]

    (number,) = _until_all_accept(source, [d], [d], attempt)
    uniform = open_interval(source.words(shape), dtype)
    power = stablehlo.divide(stablehlo.log(uniform), shape_parameter)
    return number, hlo.select(small, power, hlo.full_like(power, 0))


@lowering(aten._standard_gamma.default, padding=draws_by_rejection)
def standard_gamma(ctx: LoweringContext, operand: ir.Value) -> ir.Value:
    """Gamma numbers of rate 1 with the shape parameters `operand`; never 0, as in eager."""
    dtype = ctx.result.dtype
    if 0 in ctx.result.shape:
        return operand
    number, logarithm = _gamma(Source(ctx), hlo.convert(operand, computed_in(dtype)))
    number = hlo.convert(stablehlo.multiply(number, stablehlo.exponential(logarithm)), dtype)
    return stablehlo.maximum(number, hlo.full_like(number, torch.finfo(dtype).tiny))


@lowering(aten._sample_dirichlet.default, padding=draws_dirichlet)
def sample_dirichlet(ctx: LoweringContext, operand: ir.Value) -> ir.Value:
    """Gamma numbers of the parameters `operand`, divided by their sum along the last dim.

    In logarithms, so that parameters near 0, whose numbers underflow, keep their ratios.
    """
    shape, dtype = ctx.result
    if 0 in shape:
        return operand
    last = len(shape) - 1
    number, logarithm = _gamma(Source(ctx), hlo.convert(operand, computed_in(dtype)))
    logarithm = stablehlo.add(stablehlo.log(number), logarithm)
    largest = hlo.broadcast_in_dim(hlo.reduce_max(logarithm, [last]), shape, range(last))
    weight = stablehlo.exponential(stablehlo.subtract(logarithm, largest))
    total = hlo.broadcast_in_dim(hlo.reduce_sum(weight, [last]), shape, range(last))
    share = hlo.convert(stablehlo.divide(weight, total), dtype)
    limits = torch.finfo(dtype)
    return stablehlo.clamp(
        hlo.scalar(limits.tiny, dtype), share, hlo.scalar(1 - limits.eps / 2, dtype)
    )


# --- counts --------------------------------------------------------------------------------------


def _two_uniforms(source: Source, dtype: torch.dtype, shape: Sequence[int]) -> list[ir.Value]:
    """Return two independent numbers in (0, 1] a position."""
    if dtype is torch.float64:
        return [open_interval(source.words(shape, stream=stream), dtype) for stream in range(2)]
    words = source.words(shape)
    return [open_interval(words, dtype), open_interval((words[1], words[0]), dtype)]


def _proposal(
    uniform: ir.Value, a: ir.Value, b: ir.Value, centre: ir.Value
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Return the count that a uniform number proposes, its distance to the ends, and the density.

    Hoermann: "The transformed rejection method for generating Poisson random variables" (1993).
    """
    centred = _shifted(uniform, -0.5)
    us = stablehlo.subtract(hlo.full_like(centred, 0.5), stablehlo.abs(centred))
    slope = stablehlo.add(stablehlo.divide(scaled(a, 2), us), b)
    count = stablehlo.floor(stablehlo.add(stablehlo.multiply(slope, centred), centre))
    squared = stablehlo.multiply(us, us)
    return count, us, stablehlo.add(stablehlo.divide(a, squared), b)


@lowering(aten.poisson.default, padding=draws_by_rejection)
def poisson(ctx: LoweringContext, operand: ir.Value) -> ir.Value:
    """Poisson counts of the means `operand`; NaN for means that are not finite.

    Means below 10: how many exponential waiting times fit in. Above, Hoermann's PTRS.
    """
    shape, dtype = ctx.result
    if 0 in shape:
        return operand
    inner = computed_in(dtype)
    mean = hlo.convert(operand, inner)
    finite = _compare(stablehlo.abs(mean), math.inf, "LT")
    safe = hlo.select(finite, mean, hlo.full_like(mean, 0))

    def attempt(
        source: Source, count: ir.Value, waited: ir.Value, mean: ir.Value
    ) -> tuple[ir.Value, Sequence[ir.Value]]:
        first, second = _two_uniforms(source, inner, shape)
        waited = stablehlo.subtract(waited, stablehlo.log(first))
        over = hlo.compare(waited, mean, "GT")

        root = stablehlo.sqrt(mean)
        b = _shifted(scaled(root, 2.53), 0.931)
        a = _shifted(scaled(b, 0.02483), -0.059)
        proposed, us, steepness = _proposal(first, a, b, _shifted(mean, 0.43))
        inverse = stablehlo.divide(hlo.full_like(b, 1.1328), _shifted(b, -3.4))
        level = stablehlo.divide(stablehlo.multiply(second, _shifted(inverse, 1.1239)), steepness)
        valid = _and(_compare(proposed, 0, "GE"), _compare(us, 0, "GT"))
        proposed = hlo.select(valid, proposed, hlo.full_like(proposed, 0))
        likely = hlo.compare(level, density(proposed, mean), "LE")
        quick: ir.Value = stablehlo.subtract(
            hlo.full_like(b, 0.9277), stablehlo.divide(hlo.full_like(b, 3.6224), _shifted(b, -2))
        )
        quick = _and(_compare(us, 0.07, "GE"), hlo.compare(second, quick, "LE"))

        large = _compare(mean, LARGE_MEAN, "GE")
        accepted = hlo.select(large, _and(valid, stablehlo.or_(quick, likely)), over)
        grown = hlo.select(over, count, _shifted(count, 1))
        return accepted, [hlo.select(large, proposed, grown), waited]

    zero = hlo.full_like(mean, 0)
    count = _until_all_accept(Source(ctx), [zero, zero], [safe], attempt)[0]
    return hlo.convert(hlo.select(finite, count, hlo.full_like(count, math.nan)), dtype)


@lowering(aten.binomial.default, padding=draws_by_rejection)
def binomial(ctx: LoweringContext, count: ir.Value, prob: ir.Value) -> ir.Value:
    """How many of `count` trials succeed with probability `prob`, broadcast.

    Up to 10 expected: how many geometric waiting times fit in. Above, Hoermann's BTRS ("The
    generation of binomial random variates", 1993). Probabilities above 1/2 count the failures.
    """
    shape, dtype = ctx.result
    if 0 in shape:
        return hlo.full(shape, dtype, 0)
    inner = computed_in(dtype)
    trials, prob = ctx.broadcast_operands((count, prob), inner)
    mirrored = _compare(prob, 0.5, "GT")
    one, zero = hlo.full_like(prob, 1), hlo.full_like(prob, 0)
    chance = hlo.select(mirrored, stablehlo.subtract(one, prob), prob)
    inside = _and(_compare(trials, 0, "GT"), _compare(chance, 0, "GT"))
    safe_trials = hlo.select(inside, trials, one)
    safe_chance = hlo.select(inside, chance, hlo.full_like(chance, 0.5))

    def likelihood(successes: ir.Value, trials: ir.Value, chance: ir.Value) -> ir.Value:
        """Return the probability of a count, up to a factor that only `trials` decides."""
        mean = stablehlo.multiply(trials, chance)
        failures = stablehlo.subtract(trials, successes)
        return stablehlo.multiply(
            density(successes, mean), density(failures, stablehlo.subtract(trials, mean))
        )

    def attempt(
        source: Source,
        successes: ir.Value,
        waited: ir.Value,
        trials: ir.Value,
        chance: ir.Value,
        mode_likelihood: ir.Value,
    ) -> tuple[ir.Value, Sequence[ir.Value]]:
        first, second = _two_uniforms(source, inner, shape)
        steps = stablehlo.divide(
            stablehlo.log(first), stablehlo.log_plus_one(stablehlo.negate(chance))
        )
        # A uniform number of 1 waits for one trial, as any other does at least.
        steps = stablehlo.maximum(stablehlo.ceil(steps), hlo.full_like(steps, 1))
        waited = stablehlo.add(waited, steps)
        over = hlo.compare(waited, trials, "GT")

        mean = stablehlo.multiply(trials, chance)
        failing = stablehlo.subtract(hlo.full_like(chance, 1), chance)
        deviation = stablehlo.sqrt(stablehlo.multiply(mean, failing))
        b = _shifted(scaled(deviation, 2.53), 1.15)
        a = stablehlo.add(_shifted(scaled(b, 0.0248), -0.0873), scaled(chance, 0.01))
        proposed, us, steepness = _proposal(first, a, b, _shifted(mean, 0.5))
        inverse = stablehlo.divide(hlo.full_like(b, 5.1), b)
        alpha = stablehlo.multiply(_shifted(inverse, 2.83), deviation)
        level = stablehlo.divide(stablehlo.multiply(second, alpha), steepness)
        valid = _and(
            _compare(proposed, 0, "GE"),
            hlo.compare(proposed, trials, "LE"),
            _compare(us, 0, "GT"),
        )
        proposed = hlo.select(valid, proposed, hlo.full_like(proposed, 0))
        level = stablehlo.multiply(level, mode_likelihood)
        likely = hlo.compare(level, likelihood(proposed, trials, chance), "LE")
        quick: ir.Value = stablehlo.subtract(
            hlo.full_like(b, 0.92), stablehlo.divide(hlo.full_like(b, 4.2), b)
        )
        quick = _and(_compare(us, 0.07, "GE"), hlo.compare(second, quick, "LE"))

        large = _compare(mean, LARGE_MEAN, "GE")
        accepted = hlo.select(large, _and(valid, stablehlo.or_(quick, likely)), over)
        grown = hlo.select(over, successes, _shifted(successes, 1))
        return accepted, [hlo.select(large, proposed, grown), waited]

    mode = stablehlo.floor(stablehlo.multiply(_shifted(safe_trials, 1), safe_chance))
    fixed = [safe_trials, safe_chance, likelihood(mode, safe_trials, safe_chance)]
    successes = _until_all_accept(Source(ctx), [zero, zero], fixed, attempt)[0]
    successes = hlo.select(inside, successes, zero)
    successes = hlo.select(mirrored, stablehlo.subtract(trials, successes), successes)
    # No trials, no successes, whatever the probability.
    successes = hlo.select(_compare(trials, 0, "GT"), successes, zero)
    undefined = stablehlo.or_(hlo.is_nan(trials), hlo.is_nan(prob))
    return hlo.convert(hlo.select(undefined, hlo.full_like(prob, math.nan), successes), dtype)
