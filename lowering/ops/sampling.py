"""Random choices: dropout, coin flips, permutations, draws from given probabilities."""

from __future__ import annotations

from typing import Any

import torch

from lowering import hlo
from lowering.bucketing.randomness import draws, draws_categories, permutes
from lowering.context import LoweringContext
from lowering.dtypes import spec_of
from lowering.hlo_scan import cumulative_sum
from lowering.mlir import chlo, ir, stablehlo
from lowering.ops.random import computed_in
from lowering.registry import lowering
from lowering.threefry import Source, chance, positive_exponential, scaled, unit_interval

aten = torch.ops.aten


@lowering(aten.native_dropout.default, padding=draws)
def native_dropout(
    ctx: LoweringContext, operand: ir.Value, p: float, train: bool | None
) -> tuple[ir.Value, ir.Value]:
    """(operand * mask / (1 - p), mask), where the mask is true with probability 1 - p.

    Without training the operand itself and a mask of ones. NaN stays NaN under a zero, as in eager.
    """
    shape, dtype = ctx.result
    if train is False or 0 in shape:
        return operand, hlo.full(shape, torch.bool, True)
    keep = chance(Source(ctx).words(shape), 1.0 - p)
    scale = 0.0 if p == 1 else 1.0 / (1.0 - p)
    wide = hlo.convert(operand, computed_in(dtype))
    # XLA takes a product with a converted boolean for a select, which would lose a NaN.
    kept = hlo.select(keep, wide, scaled(wide, 0.0))
    return hlo.convert(scaled(kept, scale), dtype), keep


@lowering(aten.bernoulli.p, padding=draws)
def bernoulli_p(ctx: LoweringContext, operand: ir.Value, p: float) -> ir.Value:
    """Ones with probability `p`, else zeros, with the shape and dtype of `operand`."""
    shape, dtype = ctx.result
    return hlo.convert(chance(Source(ctx).words(shape), p), dtype)


@lowering(aten.bernoulli.Tensor, padding=draws)
def bernoulli_tensor(ctx: LoweringContext, operand: ir.Value, p: ir.Value) -> ir.Value:
    """Ones with the probabilities `p` (broadcast), with the shape and dtype of `operand`."""
    shape, dtype = ctx.result
    parts = computed_in(spec_of(p).dtype)
    number = unit_interval(Source(ctx).words(shape), parts)
    p = hlo.broadcast_to(hlo.convert(p, parts), shape)
    return hlo.convert(hlo.compare(number, p, "LT"), dtype)


@lowering(aten.randperm.default, padding=permutes)
def randperm(
    ctx: LoweringContext,
    n: int,
    *args: Any,
    dtype: torch.dtype | None = None,
    padding: ir.Value | None = None,
) -> ir.Value:
    """The integers below `n` in random order: sorted by 64 random bits each.

    Where `padding` (bool) is true they come last.
    """
    shape, dtype = ctx.result
    words = Source(ctx).words(shape)
    keys = [hlo.iota(shape, 0), *words, *([] if padding is None else [padding])]

    def before(*pairs: ir.Value) -> ir.Value:
        _, _, first, other_first, second, other_second, *last = pairs
        tied = hlo.compare(first, other_first, "EQ")
        by_second = stablehlo.and_(tied, hlo.compare(second, other_second, "LT"))
        sooner = stablehlo.or_(hlo.compare(first, other_first, "LT"), by_second)
        if not last:
            return sooner
        is_padding, other_is_padding = last
        same = hlo.compare(is_padding, other_is_padding, "EQ")
        return hlo.select(same, sooner, other_is_padding)

    return hlo.convert(hlo.sort(keys, 0, before)[0], dtype)


@lowering(aten.multinomial.default, padding=draws_categories)
def multinomial(
    ctx: LoweringContext, operand: ir.Value, num_samples: int, replacement: bool = False
) -> ir.Value:
    """Categories drawn by the weights in the last dim of `operand`, int64 [..., num_samples].

    Each category gets its weight divided by an exponential number, and the largest win: an exact
    draw without replacement, and of one sample. Further draws with replacement look up a uniform
    number among the running sums. A category of weight zero comes up only when nothing else is
    left. Eager raises for negative or non-finite weights; a compiled program does not look.
    """
    spec = spec_of(operand)
    dtype = computed_in(spec.dtype)
    weights = hlo.convert(operand, dtype)
    if 0 in ctx.result.shape:
        return hlo.full(ctx.result.shape, torch.int64, 0)
    source = Source(ctx)
    if replacement and num_samples > 1:
        chosen = _by_running_sum(source, weights, num_samples)
    else:
        race = positive_exponential(source.words(spec.shape), dtype)
        chosen = chlo.TopKOp(stablehlo.divide(weights, race), num_samples).results[1]
    return hlo.convert(chosen, torch.int64)


def _by_running_sum(source: Source, weights: ir.Value, num_samples: int) -> ir.Value:
    """Return the first category with a weight whose running sum exceeds a uniform number."""
    spec = spec_of(weights)
    last = spec.rank - 1
    categories = spec.shape[last]
    sums = cumulative_sum(weights, last)
    total = hlo.slice_in_dim(sums, categories - 1, categories, dim=last)
    shape = (*spec.shape[:last], num_samples)
    uniform = unit_interval(source.words(shape), spec.dtype)
    target = stablehlo.multiply(uniform, hlo.broadcast_in_dim(total, shape, range(spec.rank)))

    grid = (*shape, categories)
    across = [*range(last), last + 1]
    positive = hlo.compare(weights, hlo.full_like(weights, 0), "GT")
    positive = hlo.broadcast_in_dim(positive, grid, across)
    reached = hlo.compare(
        hlo.broadcast_in_dim(sums, grid, across),
        hlo.broadcast_in_dim(target, grid, range(spec.rank)),
        "GT",
    )
    index = hlo.iota(grid, last + 1)
    beyond = hlo.full_like(index, categories)
    first = hlo.reduce(
        hlo.select(stablehlo.and_(positive, reached), index, beyond),
        [last + 1],
        categories,
        stablehlo.minimum,
    )
    # Rounding may leave a number above every sum: that one goes to the last category with a weight.
    fallback = hlo.reduce(
        hlo.select(positive, index, hlo.full_like(index, 0)), [last + 1], 0, stablehlo.maximum
    )
    return hlo.select(hlo.compare(first, hlo.full_like(first, categories), "EQ"), fallback, first)
