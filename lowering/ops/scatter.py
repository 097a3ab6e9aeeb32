"""Writing by index tensors: scatter along a dim, index_put, index_reduce, put.

Where eager PyTorch raises for an index out of range, a compiled program drops the write. Which of
several writes to one place stays is undefined in eager too; sums, products and means of the half
types are taken in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import fx

from lowering import hlo
from lowering.bucketing.scattered import index_reduced, index_written, put_in_row, scattered
from lowering.context import LoweringContext
from lowering.dtypes import is_integer, is_unsigned, spec_of
from lowering.hlo import Combiner
from lowering.hlo_indexing import overwrite, put, put_along, take, wrap_negative
from lowering.hlo_scan import accumulation_dtype
from lowering.mlir import ir, stablehlo
from lowering.ops.indexing import advanced_dims, index_positions, is_mask, true_rank
from lowering.registry import lowering

aten = torch.ops.aten


class _Reduction(NamedTuple):
    """How values that fall on one place are combined, and the neutral value."""

    combine: Combiner
    identity: Callable[[torch.dtype], hlo.Scalar]
    widens: bool
    """Whether half types are combined in float32."""


_REDUCTIONS = {
    "sum": _Reduction(stablehlo.add, lambda dtype: 0, True),
    "mean": _Reduction(stablehlo.add, lambda dtype: 0, True),
    "prod": _Reduction(stablehlo.multiply, lambda dtype: 1, True),
    "amax": _Reduction(stablehlo.maximum, hlo.lowest, False),
    "amin": _Reduction(stablehlo.minimum, hlo.highest, False),
}
_REDUCTIONS["add"] = _REDUCTIONS["sum"]
_REDUCTIONS["multiply"] = _REDUCTIONS["prod"]

Write = Callable[[ir.Value, ir.Value, Combiner], ir.Value]
"""Takes operand, updates and how to combine; knows the indices."""


# --- along one dim -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _AlongDim:
    """The operands of a scatter along a dim, with 0-d tensors made 1-d."""

    operand: ir.Value
    positions: ir.Value
    updates: ir.Value
    dim: int

    def write(self, operand: ir.Value, updates: ir.Value, combine: Combiner) -> ir.Value:
        """Return `operand` with `updates` combined in."""
        return put_along(operand, self.positions, self.dim, updates, combine)


def _along_dim(
    operand: ir.Value, dim: int, index: ir.Value, src: ir.Value | hlo.Scalar
) -> _AlongDim:
    spec = spec_of(operand)
    rank = max(spec.rank, 1)
    operand = hlo.reshape(operand, spec.shape or (1,))
    shape = spec_of(index).shape
    index = hlo.reshape(index, shape or (1,) * rank)
    if isinstance(src, ir.Value):
        updates = hlo.reshape(src, spec_of(src).shape or (1,) * rank)
        for axis, size in enumerate(spec_of(index).shape):
            updates = hlo.slice_in_dim(updates, 0, size, dim=axis)
        updates = hlo.convert(updates, spec.dtype)
    else:
        updates = hlo.full(spec_of(index).shape, spec.dtype, src)
    return _AlongDim(operand, index, updates, dim % rank)


@lowering(aten.scatter.src, aten.scatter.value, padding=scattered)
def scatter(
    ctx: LoweringContext,
    operand: ir.Value,
    dim: int,
    index: ir.Value,
    src: ir.Value | hlo.Scalar,
) -> ir.Value:
    """`result[..., index[..., i, ...], ...] = src[..., i, ...]` along `dim`, else `operand`.

    `src` is a number, or a tensor at least as large as `index`.
    """
    along = _along_dim(operand, dim, index, src)
    written = along.write(along.operand, along.updates, overwrite)
    return hlo.reshape(written, ctx.result.shape)


@lowering(aten.scatter_add.default, padding=scattered)
def scatter_add(
    ctx: LoweringContext, operand: ir.Value, dim: int, index: ir.Value, src: ir.Value
) -> ir.Value:
    """`result[..., index[..., i, ...], ...] += src[..., i, ...]` along `dim`; bools are or-ed."""
    return _scatter_reduce(ctx, _along_dim(operand, dim, index, src), "sum", include_self=True)


@lowering(
    aten.scatter_reduce.two,
    aten.scatter.reduce,
    aten.scatter.value_reduce,
    padding=scattered,
)
def scatter_reduce(
    ctx: LoweringContext,
    operand: ir.Value,
    dim: int,
    index: ir.Value,
    src: ir.Value | hlo.Scalar,
    reduce: str,
    *,
    include_self: bool = True,
) -> ir.Value:
    """What falls on one place, combined by `reduce`, the operand's own value too if asked.

    Modes sum (add), prod (multiply), mean, amax, amin; integer means round down. Places that no
    index names keep their value.
    """
    along = _along_dim(operand, dim, index, src)
    return _scatter_reduce(ctx, along, reduce, include_self=include_self)


def _scatter_reduce(
    ctx: LoweringContext, along: _AlongDim, reduce: str, *, include_self: bool
) -> ir.Value:
    reduced = _reduce_into(
        along.operand, along.updates, reduce, along.write, include_self=include_self
    )
    return hlo.reshape(reduced, ctx.result.shape)


def _reduce_into(
    operand: ir.Value, updates: ir.Value, reduce: str, write: Write, *, include_self: bool
) -> ir.Value:
    """Return `operand` with `updates` combined in by `reduce`, a key of `_REDUCTIONS`."""
    reduction = _REDUCTIONS[reduce]
    spec = spec_of(operand)
    dtype = accumulation_dtype(spec.dtype) if reduction.widens else spec.dtype
    start = hlo.convert(operand, dtype)
    if not include_self:
        named = write(
            hlo.full(spec.shape, torch.bool, False),
            hlo.full(spec_of(updates).shape, torch.bool, True),
            overwrite,
        )
        start = hlo.select(named, hlo.full_like(start, reduction.identity(dtype)), start)
    total = write(start, hlo.convert(updates, dtype), reduction.combine)
    if reduce == "mean":
        count = hlo.full(spec.shape, torch.int32, int(include_self))
        count = write(count, hlo.full(spec_of(updates).shape, torch.int32, 1), stablehlo.add)
        count = stablehlo.maximum(count, hlo.full_like(count, 1))
        total = _divide(total, hlo.convert(count, dtype))
    return hlo.convert(total, spec.dtype)


def _divide(total: ir.Value, count: ir.Value) -> ir.Value:
    """Return total / count, rounded down for integers; `count` is positive."""
    dtype = spec_of(total).dtype
    quotient = stablehlo.divide(total, count)
    if not is_integer(dtype) or is_unsigned(dtype):
        return quotient
    remainder = stablehlo.remainder(total, count)
    negative = hlo.compare(remainder, hlo.full_like(remainder, 0), "LT")
    return stablehlo.subtract(quotient, hlo.convert(negative, dtype))


@lowering(aten.index_reduce.default, padding=index_reduced)
def index_reduce(
    ctx: LoweringContext,
    operand: ir.Value,
    dim: int,
    index: ir.Value,
    source: ir.Value,
    reduce: str,
    *,
    include_self: bool = True,
) -> ir.Value:
    """Slice `i` of `source` combined into slice `index[i]` of `operand` along `dim`.

    Modes prod, mean, amax, amin, as in `scatter_reduce`.
    """
    spec = spec_of(operand)
    rank = max(spec.rank, 1)
    dim %= rank
    positions = [hlo.reshape(index, (math.prod(spec_of(index).shape),))]
    source = hlo.reshape(source, spec_of(source).shape or (1,))

    def write(into: ir.Value, updates: ir.Value, combine: Combiner) -> ir.Value:
        return put(into, [dim], positions, updates, combine)

    operand = hlo.reshape(operand, spec.shape or (1,))
    reduced = _reduce_into(operand, source, reduce, write, include_self=include_self)
    return hlo.reshape(reduced, spec.shape)


# --- index_put -----------------------------------------------------------------------------------


def _check_masks(node: fx.Node) -> str | None:
    indices = node.args[1]
    assert isinstance(indices, (list, tuple))
    given = [index for index in indices if isinstance(index, fx.Node)]
    masks = [index for index in given if is_mask(index.meta["val"])]
    if masks and len(given) > 1:
        return "a boolean index stands beside another index"
    if masks and masks[0].meta["val"].dim() == 0:
        return "a boolean index has no dims"
    return None


@lowering(
    aten.index_put.default,
    aten._index_put_impl.default,
    padding=index_written,
    check=_check_masks,
)
def index_put(
    ctx: LoweringContext,
    operand: ir.Value,
    indices: Sequence[ir.Value | None],
    values: ir.Value,
    accumulate: bool = False,
    unsafe: bool = False,
) -> ir.Value:
    """`operand` with `operand[indices] = values`, or `+= values` if `accumulate`.

    `values` broadcast to the shape of `operand[indices]`. A boolean mask becomes a select.
    """
    dims, at = advanced_dims(indices)
    first = indices[dims[0]]
    assert first is not None
    if spec_of(first).dtype in (torch.bool, torch.uint8):
        return _put_where(operand, first, dims[0], values, accumulate=accumulate)
    spec = spec_of(operand)
    positions = index_positions(operand, indices, dims)
    kept = [size for dim, size in enumerate(spec.shape) if dim not in dims]
    shape = (*kept[:at], *spec_of(positions[0]).shape, *kept[at:])
    dtype = accumulation_dtype(spec.dtype) if accumulate else spec.dtype
    updates = hlo.broadcast_to(hlo.convert(values, dtype), shape)
    combine = stablehlo.add if accumulate else overwrite
    written = put(hlo.convert(operand, dtype), dims, positions, updates, combine, at=at)
    return hlo.convert(written, spec.dtype)


def _put_where(
    operand: ir.Value, mask: ir.Value, at: int, values: ir.Value, *, accumulate: bool
) -> ir.Value:
    """Return `operand` with `values` where `mask`, lying along the dims from `at`, holds.

    With one entry for all true positions the values are broadcast; else the k-th true position
    takes entry k, and there must be as many entries as true positions (an error in eager).
    """
    spec, mask_shape = spec_of(operand), spec_of(mask).shape
    if 0 in spec.shape:
        return operand
    mask = hlo.convert(mask, torch.bool)
    after = at + len(mask_shape)
    rest = (*spec.shape[:at], *spec.shape[after:])
    values = hlo.convert(values, spec.dtype)
    shape = spec_of(values).shape
    shape = (1,) * (len(rest) + 1 - len(shape)) + shape
    entries = shape[at]
    if entries == 0:
        return operand
    values = hlo.broadcast_to(hlo.reshape(values, shape), (*rest[:at], entries, *rest[at:]))
    if entries == 1:
        single = hlo.reshape(values, (*rest[:at], *(1 for _ in mask_shape), *rest[at:]))
        chosen = hlo.broadcast_to(single, spec.shape)
    else:
        chosen = take(values, [at], [true_rank(mask)])
    if accumulate:
        chosen = stablehlo.add(operand, chosen)
    return hlo.select(hlo.broadcast_in_dim(mask, spec.shape, range(at, after)), chosen, operand)


@lowering(aten.put.default, padding=put_in_row)
def put_flat(
    ctx: LoweringContext,
    operand: ir.Value,
    index: ir.Value,
    source: ir.Value,
    accumulate: bool = False,
) -> ir.Value:
    """`operand`, taken as one row, with `row[index] = source`, or `+= source` if `accumulate`."""
    spec = spec_of(operand)
    count, updates = math.prod(spec.shape), math.prod(spec_of(index).shape)
    dtype = accumulation_dtype(spec.dtype) if accumulate else spec.dtype
    position = wrap_negative(hlo.reshape(index, (updates,)), count)
    source = hlo.reshape(hlo.convert(source, dtype), (updates,))
    flat = hlo.reshape(hlo.convert(operand, dtype), (count,))
    written = put(flat, [0], [position], source, stablehlo.add if accumulate else overwrite)
    return hlo.convert(hlo.reshape(written, spec.shape), spec.dtype)
