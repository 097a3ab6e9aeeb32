"""Order: sort, topk, kthvalue, median, mode. NaN counts as the largest number throughout."""

from __future__ import annotations

import math

import torch

from lowering import hlo
from lowering.bucketing.ordered import sorts, takes_counted_place, takes_place, takes_top
from lowering.context import LoweringContext
from lowering.dtypes import spec_of
from lowering.hlo_indexing import take_along
from lowering.hlo_scan import last_true
from lowering.mlir import chlo, ir, stablehlo
from lowering.registry import lowering

aten = torch.ops.aten

Sorted = tuple[ir.Value, ir.Value]
"""Values, and the positions (i32) that they came from."""


def sort_with_positions(operand: ir.Value, dim: int, *, descending: bool = False) -> Sorted:
    """Return `operand` sorted along `dim`, equal elements in their old order."""
    spec = spec_of(operand)

    def before(left: ir.Value, right: ir.Value, *_: ir.Value) -> ir.Value:
        ordered = hlo.compare(left, right, "GT" if descending else "LT")
        if not spec.dtype.is_floating_point:
            return ordered
        last, other = (right, left) if not descending else (left, right)
        nan_decides = stablehlo.and_(hlo.is_nan(last), stablehlo.not_(hlo.is_nan(other)))
        return stablehlo.or_(ordered, nan_decides)

    values, positions = hlo.sort([operand, hlo.iota(spec.shape, dim)], dim, before)
    return values, positions


def _as_rows(operand: ir.Value) -> ir.Value:
    """Return `operand`, a 0-d tensor as a row of one element."""
    return hlo.reshape(operand, spec_of(operand).shape or (1,))


@lowering(aten.sort.default, padding=sorts)
def sort(
    ctx: LoweringContext, operand: ir.Value, dim: int = -1, descending: bool = False
) -> tuple[ir.Value, ir.Value]:
    """Values sorted along `dim` and their old positions (int64); always stable."""
    return _sort(operand, dim, descending)


def _sort(operand: ir.Value, dim: int, descending: bool) -> Sorted:
    shape = spec_of(operand).shape
    rows = _as_rows(operand)
    axis = hlo.canonical_dim(dim, len(shape))
    values, positions = sort_with_positions(rows, axis, descending=descending)
    return hlo.reshape(values, shape), hlo.reshape(hlo.convert(positions, torch.int64), shape)


@lowering(aten.sort.stable, padding=sorts)
def sort_stable(
    ctx: LoweringContext,
    operand: ir.Value,
    *,
    stable: bool | None,
    dim: int = -1,
    descending: bool = False,
) -> tuple[ir.Value, ir.Value]:
    """As `sort`."""
    return _sort(operand, dim, descending)


@lowering(aten.topk.default, padding=takes_top)
def topk(
    ctx: LoweringContext,
    operand: ir.Value,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
) -> tuple[ir.Value, ir.Value]:
    """The `k` largest (or smallest) along `dim`, in order, and their positions (int64).

    The largest come from CHLO's top_k, which XLA has fast code for; the smallest from a sort.
    Which of equal elements are chosen may differ from eager, where it is undefined.
    """
    result = ctx.result
    if 0 in result.shape:
        return hlo.full(result.shape, result.dtype, 0), hlo.full(result.shape, torch.int64, 0)
    rows = _as_rows(operand)
    rank = spec_of(rows).rank
    dim = hlo.canonical_dim(dim, rank)
    if largest:
        values, positions = _largest(rows, k, dim)
    else:
        values, positions = (
            hlo.slice_in_dim(part, 0, k, dim=dim) for part in sort_with_positions(rows, dim)
        )
    positions = hlo.convert(positions, torch.int64)
    return hlo.reshape(values, result.shape), hlo.reshape(positions, result.shape)


def _largest(operand: ir.Value, k: int, dim: int) -> Sorted:
    spec = spec_of(operand)
    if spec.dtype.is_floating_point:
        # top_k orders by sign bit: a NaN of negative sign would come last.
        nan = hlo.full_like(operand, math.nan)
        operand = hlo.select(hlo.is_nan(operand), nan, operand)
    swapped = list(range(spec.rank))
    swapped[dim], swapped[-1] = swapped[-1], swapped[dim]
    values, positions = chlo.TopKOp(hlo.transpose(operand, swapped), k).results
    return hlo.transpose(values, swapped), hlo.transpose(positions, swapped)


# --- one place in the order ----------------------------------------------------------------------


def _pick(ctx: LoweringContext, ordered: Sorted, place: ir.Value, dim: int) -> Sorted:
    """Return value and position (int64) at `place` ([..., 1, ...], i32) of a sorted dim."""
    values, positions = (take_along(part, place, dim) for part in ordered)
    shape = ctx.result.shape
    return hlo.reshape(values, shape), hlo.reshape(hlo.convert(positions, torch.int64), shape)


def _one_place(ctx: LoweringContext, rows: ir.Value, place: int | ir.Value, dim: int) -> Sorted:
    """Return value and position (int64) at one place of the sorted dim, the same for all rows."""
    ordered = sort_with_positions(rows, dim)
    if isinstance(place, ir.Value):
        alone = [1 if axis == dim else size for axis, size in enumerate(spec_of(rows).shape)]
        return _pick(ctx, ordered, hlo.broadcast_to(place, alone), dim)
    values, positions = (hlo.slice_in_dim(part, place, place + 1, dim=dim) for part in ordered)
    shape = ctx.result.shape
    return hlo.reshape(values, shape), hlo.reshape(hlo.convert(positions, torch.int64), shape)


@lowering(aten.kthvalue.default, padding=takes_place)
def kthvalue(
    ctx: LoweringContext, operand: ir.Value, k: int | ir.Value, dim: int = -1, keepdim: bool = False
) -> tuple[ir.Value, ir.Value]:
    """The `k`-th smallest along `dim` and its position (int64).

    Of equal elements, the position is that of a stable sort; eager leaves it undefined.
    """
    rows = _as_rows(operand)
    if isinstance(k, ir.Value):
        place: int | ir.Value = stablehlo.subtract(k, hlo.full_like(k, 1))
    else:
        place = k - 1
    return _one_place(ctx, rows, place, hlo.canonical_dim(dim, spec_of(rows).rank))


@lowering(aten.median.dim, padding=takes_counted_place)
def median(
    ctx: LoweringContext,
    operand: ir.Value,
    dim: int,
    keepdim: bool = False,
    *,
    size: ir.Value | None = None,
) -> tuple[ir.Value, ir.Value]:
    """The lower median along `dim` and its position (int64); the first NaN if there is one."""
    rows = _as_rows(operand)
    dim = hlo.canonical_dim(dim, spec_of(rows).rank)
    return _median(ctx, rows, dim, size, ignore_nan=False)


@lowering(aten.nanmedian.dim, padding=takes_counted_place)
def nanmedian(
    ctx: LoweringContext,
    operand: ir.Value,
    dim: int,
    keepdim: bool = False,
    *,
    size: ir.Value | None = None,
) -> tuple[ir.Value, ir.Value]:
    """The lower median of what is not NaN along `dim`, and its position (int64)."""
    rows = _as_rows(operand)
    dim = hlo.canonical_dim(dim, spec_of(rows).rank)
    return _median(ctx, rows, dim, size, ignore_nan=True)


def _median(
    ctx: LoweringContext, rows: ir.Value, dim: int, size: ir.Value | None, *, ignore_nan: bool
) -> Sorted:
    """Return the median of the first `size` (i32) elements of `dim`; the others sort last."""
    spec = spec_of(rows)
    middle: int | ir.Value = (spec.shape[dim] - 1) // 2
    if size is not None:
        middle = stablehlo.divide(
            stablehlo.subtract(size, hlo.full_like(size, 1)), hlo.full_like(size, 2)
        )
    if 0 in ctx.result.shape:
        return hlo.full(ctx.result.shape, spec.dtype, 0), hlo.full(ctx.result.shape, torch.int64, 0)
    if not spec.dtype.is_floating_point:
        return _one_place(ctx, rows, middle, dim)
    ordered = sort_with_positions(rows, dim)
    # Sorted, the NaNs stand behind the numbers: the first of them at place `count`.
    number = hlo.convert(stablehlo.not_(hlo.is_nan(rows)), torch.int32)
    count = hlo.expand_dims(hlo.reduce_sum(number, [dim]), [dim])
    if ignore_nan:
        last = stablehlo.subtract(count, hlo.full_like(count, 1))
        last = stablehlo.maximum(last, hlo.full_like(last, 0))
        place: ir.Value = stablehlo.divide(last, hlo.full_like(last, 2))
    else:
        whole, middle = (
            hlo.broadcast_to(ctx.as_value(number, torch.int32), spec_of(count).shape)
            for number in (spec.shape[dim] if size is None else size, middle)
        )
        place = hlo.select(hlo.compare(count, whole, "EQ"), middle, count)
    return _pick(ctx, ordered, place, dim)


def _median_of_all(
    ctx: LoweringContext, operand: ir.Value, size: ir.Value | None, *, ignore_nan: bool
) -> ir.Value:
    dtype = ctx.result.dtype
    count = math.prod(spec_of(operand).shape)
    if count == 0:
        return hlo.scalar(math.nan if dtype.is_floating_point else torch.iinfo(dtype).min, dtype)
    return _median(ctx, hlo.reshape(operand, (count,)), 0, size, ignore_nan=ignore_nan)[0]


@lowering(aten.median.default, padding=takes_counted_place)
def median_of_all(
    ctx: LoweringContext, operand: ir.Value, *, size: ir.Value | None = None
) -> ir.Value:
    """The lower median of all elements; NaN if any is, or if there are none."""
    return _median_of_all(ctx, operand, size, ignore_nan=False)


@lowering(aten.nanmedian.default, padding=takes_counted_place)
def nanmedian_of_all(
    ctx: LoweringContext, operand: ir.Value, *, size: ir.Value | None = None
) -> ir.Value:
    """The lower median of the elements that are not NaN; NaN if there are none."""
    return _median_of_all(ctx, operand, size, ignore_nan=True)


@lowering(aten.mode.default, padding=takes_counted_place)
def mode(
    ctx: LoweringContext,
    operand: ir.Value,
    dim: int = -1,
    keepdim: bool = False,
    *,
    size: ir.Value | None = None,
) -> tuple[ir.Value, ir.Value]:
    """The most frequent value along `dim`, the smallest of several, and its last position (int64).

    NaNs equal nothing, not even each other.
    """
    rows = _as_rows(operand)
    spec = spec_of(rows)
    dim = hlo.canonical_dim(dim, spec.rank)
    extent = spec.shape[dim]
    if 0 in ctx.result.shape:
        return hlo.full(ctx.result.shape, spec.dtype, 0), hlo.full(ctx.result.shape, torch.int64, 0)
    ordered = sort_with_positions(rows, dim)
    values = ordered[0]
    place = hlo.iota(spec.shape, dim)
    changes = hlo.compare(
        hlo.slice_in_dim(values, 1, extent, dim=dim),
        hlo.slice_in_dim(values, 0, extent - 1, dim=dim),
        "NE",
    )
    low = [int(axis == dim) for axis in range(spec.rank)]
    starts = hlo.pad(changes, low, [0] * spec.rank, True)
    # How many equal elements there are up to each place; the first longest run wins.
    length = stablehlo.subtract(place, last_true(starts, dim))
    if size is not None:
        # Runs of what sorts behind the first `size` elements do not count.
        counts = hlo.compare(place, hlo.broadcast_to(size, spec.shape), "LT")
        length = hlo.select(counts, length, hlo.full_like(length, -1))
    longest = hlo.reduce_max(length, [dim])
    kept = [axis for axis in range(spec.rank) if axis != dim]
    is_longest = hlo.compare(length, hlo.broadcast_in_dim(longest, spec.shape, kept), "EQ")
    first = hlo.reduce(
        hlo.select(is_longest, place, hlo.full_like(place, extent)),
        [dim],
        extent,
        stablehlo.minimum,
    )
    return _pick(ctx, ordered, hlo.expand_dims(first, [dim]), dim)
