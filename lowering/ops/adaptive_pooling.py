"""Adaptive pooling: windows chosen so that the output has a given size; forward and gradient.

Along a dim of `size` positions, output position `i` of `count` covers positions
`floor(i * size / count)` up to `ceil((i + 1) * size / count)`: neighbours may overlap, and their
lengths differ by at most two. Dims are independent of each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from lowering import hlo
from lowering.bucketing.batches import batched
from lowering.context import LoweringContext
from lowering.dtypes import spec_of
from lowering.hlo_indexing import linear_index, take
from lowering.mlir import ir, stablehlo
from lowering.ops.matmul import accumulation_dtype
from lowering.ops.pooling import CPU, NO_INDEX, later_maximum
from lowering.ops.pooling_backward import scatter_to_plane
from lowering.registry import lowering

aten = torch.ops.aten


class Segments(NamedTuple):
    """Ranges of positions along one dim: where each starts and how long it is."""

    starts: list[int]
    lengths: list[int]

    @classmethod
    def of(cls, size: int, count: int) -> Segments:
        """Return the `count` segments into which adaptive pooling cuts `size` positions."""
        starts = [i * size // count for i in range(count)]
        ends = [-(-(i + 1) * size // count) for i in range(count)]
        return cls(starts, [end - start for start, end in zip(starts, ends, strict=True)])

    def inverse(self, size: int) -> Segments:
        """Return for each of `size` positions which segments cover it; they are neighbours."""
        covering: list[list[int]] = [[] for _ in range(size)]
        for i, (start, length) in enumerate(zip(*self, strict=True)):
            for position in range(start, start + length):
                covering[position].append(i)
        return Segments([found[0] for found in covering], [len(found) for found in covering])

    def unfold(self, operand: ir.Value, dim: int, fill: hlo.Scalar) -> ir.Value:
        """Return `operand` with `dim` cut into two: segments, and positions within one.

        Segments shorter than the longest are filled up with `fill`.
        """
        spec = spec_of(operand)
        longest, size = max(self.lengths), spec.shape[dim]
        rows = [range(start, start + longest) for start in self.starts]
        shape = [*spec.shape[:dim], len(rows), longest, *spec.shape[dim + 1 :]]
        flat = [position for row in rows for position in row]
        if flat == list(range(size)):
            unfolded = hlo.reshape(operand, shape)
        else:
            positions = torch.tensor(flat, dtype=torch.int32, device=CPU).clamp(max=size - 1)
            unfolded = take(operand, [dim], [hlo.constant(positions.reshape(len(rows), longest))])
        if min(self.lengths) == longest:
            return unfolded
        inside = torch.tensor(
            [[i < length for i in range(longest)] for length in self.lengths], device=CPU
        )
        mask = hlo.broadcast_in_dim(hlo.constant(inside), shape, [dim, dim + 1])
        return hlo.select(mask, unfolded, hlo.full_like(unfolded, fill))

    def total(self, operand: ir.Value, dim: int) -> ir.Value:
        """Return the sum of each segment along `dim`."""
        return hlo.reduce_sum(self.unfold(operand, dim, 0), [dim + 1])

    def scale(self, operand: ir.Value, dim: int) -> ir.Value:
        """Return `operand`, which has one position a segment along `dim`, by their lengths."""
        spec = spec_of(operand)
        lengths = hlo.constant(torch.tensor(self.lengths, dtype=spec.dtype, device=CPU))
        return stablehlo.divide(operand, hlo.broadcast_in_dim(lengths, spec.shape, [dim]))


# --- average ---------------------------------------------------------------------------------


@lowering(aten._adaptive_avg_pool2d.default, padding=batched(self=2))
def adaptive_avg_pool2d(
    ctx: LoweringContext, operand: ir.Value, output_size: Sequence[int]
) -> ir.Value:
    """Mean of each segment of the last two dims."""
    return _adaptive_avg_pool(ctx, operand, 2)


@lowering(aten._adaptive_avg_pool3d.default, padding=batched(self=3))
def adaptive_avg_pool3d(
    ctx: LoweringContext, operand: ir.Value, output_size: Sequence[int]
) -> ir.Value:
    """Mean of each segment of the last three dims."""
    return _adaptive_avg_pool(ctx, operand, 3)


def _adaptive_avg_pool(ctx: LoweringContext, operand: ir.Value, rank: int) -> ir.Value:
    spec, result = spec_of(operand), ctx.result
    if 0 in result.shape:
        return hlo.full(result.shape, result.dtype, 0)
    mean = hlo.convert(operand, accumulation_dtype(spec.dtype))
    for dim in range(spec.rank - rank, spec.rank):
        segments = Segments.of(spec.shape[dim], result.shape[dim])
        mean = segments.scale(segments.total(mean, dim), dim)
    return hlo.convert(mean, result.dtype)


@lowering(aten._adaptive_avg_pool2d_backward.default, padding=batched(grad_output=2, self=2))
def adaptive_avg_pool2d_backward(
    ctx: LoweringContext, grad_output: ir.Value, operand: ir.Value
) -> ir.Value:
    """Sum over the segments that cover a position of their gradient by their length."""
    return _adaptive_avg_pool_backward(ctx, grad_output, 2)


@lowering(aten._adaptive_avg_pool3d_backward.default, padding=batched(grad_output=3, self=3))
def adaptive_avg_pool3d_backward(
    ctx: LoweringContext, grad_output: ir.Value, operand: ir.Value
) -> ir.Value:
    """Sum over the segments that cover a position of their gradient by their length."""
    return _adaptive_avg_pool_backward(ctx, grad_output, 3)


def _adaptive_avg_pool_backward(ctx: LoweringContext, grad_output: ir.Value, rank: int) -> ir.Value:
    spec, result = spec_of(grad_output), ctx.result
    if 0 in (*result.shape, *spec.shape):
        return hlo.full(result.shape, result.dtype, 0)
    grad = hlo.convert(grad_output, accumulation_dtype(spec.dtype))
    for dim in range(spec.rank - rank, spec.rank):
        size = result.shape[dim]
        segments = Segments.of(size, spec.shape[dim])
        grad = segments.inverse(size).total(segments.scale(grad, dim), dim)
    return hlo.convert(grad, result.dtype)


# --- max -------------------------------------------------------------------------------------


@lowering(aten.adaptive_max_pool2d.default, padding=batched(self=2))
def adaptive_max_pool2d(
    ctx: LoweringContext, operand: ir.Value, output_size: Sequence[int]
) -> tuple[ir.Value, ir.Value]:
    """Largest value of each segment of the last two dims and its plane position (int64)."""
    return _adaptive_max_pool(ctx, operand, 2)


@lowering(aten.adaptive_max_pool3d.default, padding=batched(self=3))
def adaptive_max_pool3d(
    ctx: LoweringContext, operand: ir.Value, output_size: Sequence[int]
) -> tuple[ir.Value, ir.Value]:
    """Largest value of each segment of the last three dims and its volume position (int64)."""
    return _adaptive_max_pool(ctx, operand, 3)


def _adaptive_max_pool(
    ctx: LoweringContext, operand: ir.Value, rank: int
) -> tuple[ir.Value, ir.Value]:
    spec, result = spec_of(operand), ctx.result
    if 0 in result.shape:
        return hlo.full(result.shape, spec.dtype, 0), hlo.full(result.shape, torch.int64, 0)
    lowest = hlo.lowest(spec.dtype)
    lead = spec.rank - rank
    values, positions = operand, linear_index(spec.shape[lead:])
    # From the last dim on, so that the dims still to be cut keep their numbers.
    for dim in reversed(range(rank)):
        segments = Segments.of(spec.shape[lead + dim], result.shape[lead + dim])
        values = segments.unfold(values, lead + dim, lowest)
        positions = segments.unfold(positions, dim, NO_INDEX)
    positions = hlo.broadcast_to(positions, values.type.shape)
    within = [lead + 2 * dim + 1 for dim in range(rank)]
    values, positions = hlo.reduce_many(
        [values, positions], within, [lowest, NO_INDEX], later_maximum
    )
    return values, hlo.convert(positions, torch.int64)


@lowering(
    aten.adaptive_max_pool2d_backward.default, padding=batched(grad_output=2, self=2, indices=2)
)
def adaptive_max_pool2d_backward(
    ctx: LoweringContext, grad_output: ir.Value, operand: ir.Value, indices: ir.Value
) -> ir.Value:
    """Gradients added up at their plane positions; shape of `operand`."""
    return scatter_to_plane(ctx, grad_output, indices, 2)


@lowering(
    aten.adaptive_max_pool3d_backward.default, padding=batched(grad_output=3, self=3, indices=3)
)
def adaptive_max_pool3d_backward(
    ctx: LoweringContext, grad_output: ir.Value, operand: ir.Value, indices: ir.Value
) -> ir.Value:
    """Gradients added up at their volume positions; shape of `operand`."""
    return scatter_to_plane(ctx, grad_output, indices, 3)
