"""Distances between points, by p-norms: of all pairs of two sets, of the pairs within one.

The differences of all pairs feed one reduction, which XLA fuses; they are not held in memory.
"""

from __future__ import annotations

import math

import torch

from lowering import hlo, hlo_indexing
from lowering.bucketing.pairs import distances, distances_backward, pairs_within
from lowering.context import LoweringContext
from lowering.dtypes import spec_of
from lowering.mlir import ir, stablehlo
from lowering.ops import matrices
from lowering.registry import lowering

aten = torch.ops.aten

# Eager's: beyond as many points, Euclidean distances come from a matrix product.
_MOST_POINTS_WITHOUT_PRODUCT = 25
_ALWAYS_BY_PRODUCT = 1
_NEVER_BY_PRODUCT = 2


def norm_over_last(difference: ir.Value, p: float) -> ir.Value:
    """Return the p-norm over the last dim; for p = 0 the number of entries that are not zero."""
    size = stablehlo.abs(difference)
    last = [spec_of(size).rank - 1]
    if p == 0:
        # NaN stays NaN, and an infinity counts once.
        one = stablehlo.minimum(stablehlo.ceil(size), hlo.full_like(size, 1))
        return hlo.reduce_sum(one, last)
    if p == 1:
        return hlo.reduce_sum(size, last)
    if p == 2:
        return stablehlo.sqrt(hlo.reduce_sum(stablehlo.multiply(size, size), last))
    if math.isinf(p):
        return hlo.reduce(size, last, 0, stablehlo.maximum)
    total = hlo.reduce_sum(stablehlo.power(size, hlo.full_like(size, p)), last)
    return stablehlo.power(total, hlo.full_like(total, 1 / p))


def norm_gradient(
    difference: ir.Value, distance: ir.Value, gradient: ir.Value, p: float
) -> ir.Value:
    """Return the gradient of the p-norm over the last dim with respect to `difference`.

    `distance` is the norm, `gradient` what flows into it. Points that coincide get zero, as in
    eager; for p < 1 so does an equal coordinate, whose derivative is infinite.
    """
    shape = spec_of(difference).shape
    distance = matrices.spread(distance, shape[-1])
    gradient = matrices.spread(gradient, shape[-1])
    zero = hlo.full_like(difference, 0)
    if p == 0:
        return zero
    size, sign = stablehlo.abs(difference), stablehlo.sign(difference)
    if p == 1:
        return stablehlo.multiply(sign, gradient)
    if math.isinf(p):
        farthest = hlo.compare(size, distance, "EQ")
        return hlo.select(farthest, stablehlo.multiply(sign, gradient), zero)
    flat = hlo.compare(distance, zero, "EQ")
    if p == 2:
        slope = stablehlo.divide(difference, distance)
    else:
        power = hlo.full_like(size, p - 1)
        steep = stablehlo.power(size, power)
        slope = stablehlo.multiply(sign, steep)
        slope = stablehlo.divide(slope, stablehlo.power(distance, power))
        if p < 1:
            flat = stablehlo.or_(flat, hlo.compare(difference, zero, "EQ"))
    return hlo.select(flat, zero, stablehlo.multiply(slope, gradient))


def _pairwise_difference(left: ir.Value, right: ir.Value) -> ir.Value:
    """Return left[..., i, None, :] - right[..., None, j, :]; batch dims broadcast."""
    left, right = matrices.broadcast_batches(left, right)
    *batch, count, size = spec_of(left).shape
    other_count = spec_of(right).shape[-2]
    rank = len(batch)
    shape = (*batch, count, other_count, size)
    return stablehlo.subtract(
        hlo.broadcast_to(hlo.expand_dims(left, [rank + 1]), shape),
        hlo.broadcast_to(hlo.expand_dims(right, [rank]), shape),
    )


@lowering(aten._cdist_forward.default, padding=distances)
def cdist_forward(
    ctx: LoweringContext, left: ir.Value, right: ir.Value, p: float, compute_mode: int | None
) -> ir.Value:
    """`[..., n, m]` distances of `[..., n, size]` from `[..., m, size]`.

    Where eager takes a matrix product for p = 2 (`compute_mode`, or more than 25 points), so does
    this: faster, less exact for points that nearly coincide.
    """
    many = max(spec_of(left).shape[-2], spec_of(right).shape[-2]) > _MOST_POINTS_WITHOUT_PRODUCT
    by_product = compute_mode == _ALWAYS_BY_PRODUCT or (compute_mode != _NEVER_BY_PRODUCT and many)
    if p == 2 and by_product and 0 not in ctx.result.shape:
        return _euclidean_by_product(ctx, left, right)
    return norm_over_last(_pairwise_difference(left, right), float(p))


def _euclidean_by_product(ctx: LoweringContext, left: ir.Value, right: ir.Value) -> ir.Value:
    """Return sqrt(|x|^2 + |y|^2 - 2 x.y)."""
    left, right = matrices.broadcast_batches(left, right)
    last = [spec_of(left).rank - 1]
    across = hlo.reduce_sum(stablehlo.multiply(right, right), last)
    down = hlo.reduce_sum(stablehlo.multiply(left, left), last)
    dots = matrices.product(ctx, left, matrices.transpose(right))
    shape = spec_of(dots).shape
    rank = len(shape)
    squares = stablehlo.add(
        hlo.broadcast_to(hlo.expand_dims(down, [rank - 1]), shape),
        hlo.broadcast_to(hlo.expand_dims(across, [rank - 2]), shape),
    )
    squares = stablehlo.subtract(squares, stablehlo.multiply(dots, hlo.full_like(dots, 2)))
    return stablehlo.sqrt(stablehlo.maximum(squares, hlo.full_like(squares, 0)))


@lowering(aten._cdist_backward.default, padding=distances_backward)
def cdist_backward(
    ctx: LoweringContext,
    gradient: ir.Value,
    left: ir.Value,
    right: ir.Value,
    p: float,
    distance: ir.Value,
) -> ir.Value:
    """The gradient with respect to `left`, `[..., n, size]` with the broadcast batch dims."""
    difference = _pairwise_difference(left, right)
    batch = spec_of(difference).shape[:-1]
    if 0 in spec_of(difference).shape:
        return hlo.full(ctx.result.shape, ctx.result.dtype, 0)
    slopes = norm_gradient(
        difference, hlo.broadcast_to(distance, batch), hlo.broadcast_to(gradient, batch), float(p)
    )
    return hlo.reshape(hlo.reduce_sum(slopes, [len(batch) - 1]), ctx.result.shape)


def _pairs(count: int) -> tuple[ir.Value, ir.Value]:
    """Return the first and second point (i32) of each pair i < j, in lexicographic order."""
    first, second = torch.triu_indices(count, count, 1, dtype=torch.int32)
    return hlo.constant(first), hlo.constant(second)


def _difference_of_pairs(points: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Return points[i] - points[j] for each pair, and the pairs."""
    first, second = _pairs(spec_of(points).shape[0])
    taken = [hlo_indexing.take(points, [0], [index]) for index in (first, second)]
    return stablehlo.subtract(*taken), first, second


@lowering(aten._pdist_forward.default, padding=pairs_within)
def pdist_forward(ctx: LoweringContext, points: ir.Value, p: float = 2) -> ir.Value:
    """The distances of the pairs of `[n, size]` points, `[n * (n - 1) / 2]`."""
    if 0 in ctx.result.shape:
        return hlo.full(ctx.result.shape, ctx.result.dtype, 0)
    return norm_over_last(_difference_of_pairs(points)[0], float(p))


@lowering(aten._pdist_backward.default, padding=pairs_within)
def pdist_backward(
    ctx: LoweringContext, gradient: ir.Value, points: ir.Value, p: float, distance: ir.Value
) -> ir.Value:
    """The gradient with respect to the points: what a pair gives one, it takes from the other."""
    total = hlo.full_like(points, 0)
    if 0 in spec_of(distance).shape or 0 in spec_of(points).shape:
        return total
    difference, first, second = _difference_of_pairs(points)
    slopes = norm_gradient(difference, distance, gradient, float(p))
    total = hlo_indexing.put(total, [0], [first], slopes, stablehlo.add)
    return hlo_indexing.put(total, [0], [second], stablehlo.negate(slopes), stablehlo.add)
