"""Finding the bin of a number: searchsorted, bucketize, histc."""

from __future__ import annotations

import math

import torch

from lowering import hlo
from lowering.bucketing.binning import bucketized, searched, tallied
from lowering.context import LoweringContext
from lowering.dtypes import TensorSpec, spec_of
from lowering.hlo_indexing import put, take, take_along
from lowering.mlir import ir, stablehlo
from lowering.registry import lowering

aten = torch.ops.aten

# Up to this many boundaries, or bins, comparing with all of them beats a search, or a scatter.
FEW = 256


@lowering(aten.searchsorted.Tensor, aten.searchsorted.Scalar, padding=searched)
def searchsorted(
    ctx: LoweringContext,
    sorted_sequence: ir.Value,
    values: ir.Value | hlo.Scalar,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: ir.Value | None = None,
) -> ir.Value:
    """How many boundaries lie below each value (or not above it, to the right).

    `sorted_sequence` is [n], or [..., n] for values [..., m]. Among unsorted or NaN boundaries the
    answer may differ from eager's.
    """
    dtype = ctx.promoted_dtype(0, 1)
    bounds = hlo.convert(sorted_sequence, dtype)
    if sorter is not None:
        bounds = take_along(bounds, sorter, spec_of(bounds).rank - 1)
    upper = right or side == "right"
    return _search(ctx.result, bounds, ctx.as_value(values, dtype), upper=upper)


@lowering(aten.bucketize.Tensor, aten.bucketize.Scalar, padding=bucketized)
def bucketize(
    ctx: LoweringContext,
    values: ir.Value | hlo.Scalar,
    boundaries: ir.Value,
    *,
    out_int32: bool = False,
    right: bool = False,
) -> ir.Value:
    """How many of the 1-d `boundaries` lie below each value (or not above it, to the right)."""
    dtype = ctx.promoted_dtype(0, 1)
    bounds = hlo.convert(boundaries, dtype)
    return _search(ctx.result, bounds, ctx.as_value(values, dtype), upper=right)


def _search(result: TensorSpec, bounds: ir.Value, values: ir.Value, *, upper: bool) -> ir.Value:
    if 0 in result.shape or spec_of(bounds).shape[-1] == 0:
        return hlo.full(result.shape, result.dtype, 0)
    few = spec_of(bounds).shape[-1] <= FEW
    found = (_count_below if few else _bisect)(bounds, values, upper=upper)
    return hlo.convert(found, result.dtype)


def _is_below(bound: ir.Value, value: ir.Value, *, upper: bool) -> ir.Value:
    """Return where the bin starts behind `bound`; every bound is below a NaN."""
    return stablehlo.not_(hlo.compare(bound, value, "GT" if upper else "GE"))


def _count_below(bounds: ir.Value, values: ir.Value, *, upper: bool) -> ir.Value:
    shape, rank = spec_of(values).shape, spec_of(bounds).rank
    grid = (*shape, spec_of(bounds).shape[-1])
    across = [len(shape)] if rank == 1 else [*range(rank - 1), len(shape)]
    below = _is_below(
        hlo.broadcast_in_dim(bounds, grid, across),
        hlo.broadcast_in_dim(values, grid, range(len(shape))),
        upper=upper,
    )
    return hlo.reduce_sum(hlo.convert(below, torch.int32), [len(shape)])


def _bisect(bounds: ir.Value, values: ir.Value, *, upper: bool) -> ir.Value:
    """Return the same by halving the range log2(n) times, each time reading one bound a value."""
    shape, rank = spec_of(values).shape, spec_of(bounds).rank
    count = spec_of(bounds).shape[-1]
    low, high = hlo.full(shape, torch.int32, 0), hlo.full(shape, torch.int32, count)
    for _ in range(count.bit_length()):
        middle = stablehlo.add(low, high)
        middle = stablehlo.shift_right_logical(middle, hlo.full_like(middle, 1))
        bound = take(bounds, [0], [middle]) if rank == 1 else take_along(bounds, middle, rank - 1)
        is_open = hlo.compare(low, high, "LT")
        below = _is_below(bound, values, upper=upper)
        rises = stablehlo.and_(is_open, below)
        falls = stablehlo.and_(is_open, stablehlo.not_(below))
        behind = stablehlo.add(middle, hlo.full_like(middle, 1))
        low, high = hlo.select(rises, behind, low), hlo.select(falls, middle, high)
    return low


@lowering(aten.histc.default, padding=tallied)
def histc(
    ctx: LoweringContext,
    operand: ir.Value,
    bins: int = 100,
    min: hlo.Scalar = 0,
    max: hlo.Scalar = 0,
    *,
    real: ir.Value | None = None,
) -> ir.Value:
    """How many elements fall in each of `bins` equal parts of [min, max], in the operand's dtype.

    What lies outside, and NaN, is not counted. With min equal to max the range is that of the
    data; a single value then gets a margin of 1 on both sides. Eager raises if that range is not
    finite; a compiled program does not look. Only the `real` elements (all if None) count.
    """
    result = ctx.result
    count = math.prod(spec_of(operand).shape)
    if count == 0:
        return hlo.full(result.shape, result.dtype, 0)
    values = hlo.reshape(operand, (count,))
    real = None if real is None else hlo.reshape(real, (count,))
    low, high = hlo.scalar(min, result.dtype), hlo.scalar(max, result.dtype)
    if min == max:
        low, high = _data_range(values, real)
    low, high = (hlo.broadcast_to(edge, (count,)) for edge in (low, high))
    inside = stablehlo.and_(hlo.compare(values, low, "GE"), hlo.compare(values, high, "LE"))
    if real is not None:
        inside = stablehlo.and_(inside, real)
    scaled = stablehlo.multiply(stablehlo.subtract(values, low), hlo.full_like(values, bins))
    scaled = stablehlo.divide(scaled, stablehlo.subtract(high, low))
    place = hlo.convert(hlo.select(inside, scaled, hlo.full_like(scaled, 0)), torch.int32)
    # The upper edge belongs to the last bin.
    place = stablehlo.minimum(place, hlo.full_like(place, bins - 1))
    place = hlo.select(inside, place, hlo.full_like(place, bins))
    return hlo.convert(_tally(place, bins), result.dtype)


def _data_range(values: ir.Value, real: ir.Value | None) -> tuple[ir.Value, ir.Value]:
    dtype = spec_of(values).dtype
    lows = highs = values
    if real is not None:
        lows = hlo.select(real, values, hlo.full_like(values, hlo.highest(dtype)))
        highs = hlo.select(real, values, hlo.full_like(values, hlo.lowest(dtype)))
    low = hlo.reduce(lows, [0], hlo.highest(dtype), stablehlo.minimum)
    high = hlo.reduce_max(highs, [0])
    single = hlo.compare(low, high, "EQ")
    margin = hlo.full_like(low, 1)
    return (
        hlo.select(single, stablehlo.subtract(low, margin), low),
        hlo.select(single, stablehlo.add(high, margin), high),
    )


def _tally(places: ir.Value, bins: int) -> ir.Value:
    """Return how often each number below `bins` occurs in `places` (1-d, i32)."""
    count = spec_of(places).shape[0]
    if bins > FEW:
        ones = hlo.full((count,), torch.int32, 1)
        return put(hlo.full((bins,), torch.int32, 0), [0], [places], ones, stablehlo.add)
    grid = (bins, count)
    hit = hlo.compare(hlo.broadcast_in_dim(places, grid, [1]), hlo.iota(grid, 0), "EQ")
    return hlo.reduce_sum(hlo.convert(hit, torch.int32), [1])
