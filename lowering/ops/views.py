"""Ops that are views in eager PyTorch, and their `_copy` variants: shape, order, parts.

A compiled program has no memory to look at, so a view gives back a value like any other op;
whether outputs alias is settled in `lowering.signature`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lowering import hlo
from lowering.bucketing.cutting import (
    diagonal_taken,
    narrowed,
    selected,
    sliced,
    split,
    unbound,
    windowed,
)
from lowering.bucketing.views import expanded, permuted, reshaped, with_dim, without_dims
from lowering.context import LoweringContext
from lowering.dtypes import spec_of
from lowering.hlo_indexing import take
from lowering.mlir import ir, stablehlo
from lowering.registry import Padding, lowering

aten = torch.ops.aten

# Up to this many pieces a sliding window is cheaper as slices than as a gather.
UNFOLD_SLICES = 32


@lowering(
    aten.view.default,
    aten.view_copy.default,
    aten._reshape_copy.default,
    aten._reshape_alias_copy.default,
    padding=reshaped,
)
def view(
    ctx: LoweringContext, operand: ir.Value, size: Sequence[int], stride: Sequence[int] = ()
) -> ir.Value:
    """The same elements in row-major order under the result's shape; any dtype."""
    return hlo.reshape(operand, ctx.result.shape)


@lowering(aten.permute.default, aten.permute_copy.default, padding=permuted)
def permute(ctx: LoweringContext, operand: ir.Value, dims: Sequence[int]) -> ir.Value:
    """Result dim `i` is operand dim `dims[i]`; any dtype."""
    rank = spec_of(operand).rank
    return hlo.transpose(operand, [dim % rank for dim in dims])


@lowering(aten.expand.default, padding=expanded)
def expand(
    ctx: LoweringContext, operand: ir.Value, size: Sequence[int], *, implicit: bool = False
) -> ir.Value:
    """`operand` broadcast to the result's shape; any dtype."""
    return hlo.broadcast_to(operand, ctx.result.shape)


@lowering(aten.unsqueeze.default, padding=with_dim)
def unsqueeze(ctx: LoweringContext, operand: ir.Value, dim: int) -> ir.Value:
    """`operand` with a dim of size 1 before `dim`; any dtype."""
    return hlo.reshape(operand, ctx.result.shape)


@lowering(aten.squeeze.dims, padding=without_dims)
def squeeze(ctx: LoweringContext, operand: ir.Value, dim: Sequence[int]) -> ir.Value:
    """`operand` without those of the dims that have size 1; any dtype."""
    return hlo.reshape(operand, ctx.result.shape)


# --- parts ---------------------------------------------------------------------------------------


@lowering(aten.select.int, aten.select_copy.int, padding=selected)
def select(ctx: LoweringContext, operand: ir.Value, dim: int, index: int | ir.Value) -> ir.Value:
    """`operand[..., index, ...]` along `dim`, which is dropped; negative `index` from the end."""
    spec = spec_of(operand)
    dim %= spec.rank
    if isinstance(index, ir.Value):
        size = hlo.full_like(index, spec.shape[dim])
        negative = hlo.compare(index, hlo.full_like(index, 0), "LT")
        index = hlo.select(negative, stablehlo.add(index, size), index)
        return hlo.dynamic_index(operand, hlo.convert(index, torch.int32), dim)
    index = index + spec.shape[dim] if index < 0 else index
    return hlo.reshape(hlo.slice_in_dim(operand, index, index + 1, dim=dim), ctx.result.shape)


def slice_bounds(start: int | None, end: int | None, size: int) -> tuple[int, int]:
    """Return start and end of a slice of a dim of `size`: from the front, clamped, end >= start."""
    start = 0 if start is None else start
    end = size if end is None else end
    start = min(max(start + size if start < 0 else start, 0), size)
    end = min(max(end + size if end < 0 else end, 0), size)
    return start, max(start, end)


@lowering(aten.slice.Tensor, aten.slice_copy.Tensor, padding=sliced)
def slice_(
    ctx: LoweringContext,
    operand: ir.Value,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> ir.Value:
    """`operand[..., start:end:step, ...]` along `dim`; bounds wrap once and are clamped."""
    spec = spec_of(operand)
    dim %= spec.rank
    start, end = slice_bounds(start, end, spec.shape[dim])
    return hlo.slice_in_dim(operand, start, end, step, dim=dim)


@lowering(aten.narrow_copy.default, padding=narrowed)
def narrow(ctx: LoweringContext, operand: ir.Value, dim: int, start: int, length: int) -> ir.Value:
    """`operand[..., start:start + length, ...]` along `dim`; negative `start` from the end."""
    spec = spec_of(operand)
    dim %= spec.rank
    start = start + spec.shape[dim] if start < 0 else start
    return hlo.slice_in_dim(operand, start, start + length, dim=dim)


@lowering(aten.split_with_sizes.default, padding=split)
def split_with_sizes(
    ctx: LoweringContext, operand: ir.Value, split_sizes: Sequence[int], dim: int = 0
) -> tuple[ir.Value, ...]:
    """Consecutive pieces of the given sizes along `dim`; any dtype."""
    return _pieces(operand, split_sizes, dim % spec_of(operand).rank)


def _pieces(operand: ir.Value, sizes: Sequence[int], dim: int) -> tuple[ir.Value, ...]:
    pieces, start = [], 0
    for size in sizes:
        pieces.append(hlo.slice_in_dim(operand, start, start + size, dim=dim))
        start += size
    return tuple(pieces)


@lowering(aten.split_copy.Tensor, padding=split)
def split_copy(
    ctx: LoweringContext, operand: ir.Value, split_size: int, dim: int = 0
) -> tuple[ir.Value, ...]:
    """Consecutive pieces of `split_size` along `dim`, the last one maybe shorter."""
    dim %= spec_of(operand).rank
    sizes = [spec.shape[dim] for spec in ctx.results if spec is not None]
    return _pieces(operand, sizes, dim)


@lowering(aten.unbind_copy.int, padding=unbound)
def unbind_copy(ctx: LoweringContext, operand: ir.Value, dim: int = 0) -> tuple[ir.Value, ...]:
    """Every position of `dim` as a tensor of its own."""
    spec = spec_of(operand)
    dim %= spec.rank
    shape = spec.shape[:dim] + spec.shape[dim + 1 :]
    return tuple(
        hlo.reshape(hlo.slice_in_dim(operand, index, index + 1, dim=dim), shape)
        for index in range(spec.shape[dim])
    )


@lowering(aten.diagonal.default, padding=diagonal_taken)
def diagonal(
    ctx: LoweringContext, operand: ir.Value, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> ir.Value:
    """The diagonal `offset` of the matrices in (dim1, dim2), as the last dim of the result.

    The square block that it runs through, laid flat, holds it at every (length + 1)-th element.
    """
    spec, result = spec_of(operand), ctx.result
    dim1, dim2 = dim1 % spec.rank, dim2 % spec.rank
    length = result.shape[-1]
    if length == 0:
        return hlo.full(result.shape, result.dtype, 0)
    row, column = max(-offset, 0), max(offset, 0)
    operand = hlo.slice_in_dim(operand, row, row + length, dim=dim1)
    operand = hlo.slice_in_dim(operand, column, column + length, dim=dim2)
    rest = [dim for dim in range(spec.rank) if dim not in (dim1, dim2)]
    flat = (*result.shape[:-1], length * length)
    operand = hlo.reshape(hlo.transpose(operand, [*rest, dim1, dim2]), flat)
    return hlo.slice_in_dim(operand, 0, length * length, length + 1, dim=len(rest))


@lowering(aten.unfold.default, padding=windowed)
def unfold(
    ctx: LoweringContext, operand: ir.Value, dimension: int, size: int, step: int
) -> ir.Value:
    """Windows of `size` at every `step` along `dimension`; positions in the window come last.

    `result[..., window, ..., i] = operand[..., window * step + i, ...]`.
    """
    spec, result = spec_of(operand), ctx.result
    if spec.rank == 0:
        return hlo.full((0,), spec.dtype, 0) if size == 0 else hlo.reshape(operand, (1,))
    dim = dimension % spec.rank
    windows = result.shape[dim]
    if 0 in result.shape:
        return hlo.full(result.shape, result.dtype, 0)
    if size <= UNFOLD_SLICES:
        pieces = [
            hlo.expand_dims(
                hlo.slice_in_dim(operand, start, start + (windows - 1) * step + 1, step, dim=dim),
                [spec.rank],
            )
            for start in range(size)
        ]
        return hlo.concatenate(pieces, spec.rank)
    starts = hlo.iota((windows, size), 0)
    starts = stablehlo.multiply(starts, hlo.full_like(starts, step))
    windowed = take(operand, [dim], [stablehlo.add(starts, hlo.iota((windows, size), 1))])
    order = [axis for axis in range(spec.rank + 1) if axis != dim + 1]
    return hlo.transpose(windowed, [*order, dim + 1])


@lowering(aten.detach_copy.default, padding=Padding.FLOWS)
def identity(ctx: LoweringContext, operand: ir.Value) -> Any:
    """`operand` itself."""
    return operand
