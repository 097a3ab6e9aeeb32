"""Joining, repeating and reordering whole tensors, and writing a block into one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from lowering import hlo
from lowering.bucketing.joining import (
    diagonal_written,
    flipped,
    joined,
    repeated,
    rolled,
    slice_written,
)
from lowering.context import LoweringContext
from lowering.dtypes import spec_of
from lowering.hlo_indexing import write_at
from lowering.mlir import ir, stablehlo
from lowering.ops.views import slice_bounds
from lowering.registry import lowering

aten = torch.ops.aten


@lowering(aten.cat.default, padding=joined)
def cat(ctx: LoweringContext, tensors: Sequence[ir.Value], dim: int = 0) -> ir.Value:
    """The tensors joined along `dim` in their promoted dtype; 1-d empty ones are passed over.

    Skipping a tensor of shape [0] whatever the rank of the others is an old rule of torch; such
    a tensor still takes part in promotion.
    """
    result = ctx.result
    dim = hlo.canonical_dim(dim, len(result.shape))
    pieces = [
        hlo.convert(tensor, result.dtype)
        for tensor in tensors
        if spec_of(tensor).shape != (0,) and spec_of(tensor).shape[dim] > 0
    ]
    if not pieces:
        return hlo.full(result.shape, result.dtype, 0)
    return hlo.concatenate(pieces, dim)


@lowering(aten.repeat.default, padding=repeated)
def repeat(ctx: LoweringContext, operand: ir.Value, repeats: Sequence[int]) -> ir.Value:
    """`operand` laid side by side `repeats[i]` times along result dim `i`; new dims come first."""
    shape = spec_of(operand).shape
    shape = (1,) * (len(repeats) - len(shape)) + shape
    tiled: list[int] = []
    for count, size in zip(repeats, shape, strict=True):
        tiled += [count, size]
    positions = range(1, 2 * len(shape), 2)
    spread = hlo.broadcast_in_dim(hlo.reshape(operand, shape), tiled, positions)
    return hlo.reshape(spread, ctx.result.shape)


@lowering(aten.flip.default, padding=flipped)
def flip(ctx: LoweringContext, operand: ir.Value, dims: Sequence[int]) -> ir.Value:
    """`operand` with the order along `dims` reversed; any dtype."""
    rank = spec_of(operand).rank
    if rank == 0 or not dims:
        return operand
    return stablehlo.reverse(operand, [dim % rank for dim in dims])


@lowering(aten.roll.default, padding=rolled)
def roll(
    ctx: LoweringContext, operand: ir.Value, shifts: Sequence[int], dims: Sequence[int] = ()
) -> ir.Value:
    """`operand` shifted around by `shifts` along `dims`; without dims, as one flat row."""
    spec = spec_of(operand)
    if spec.rank == 0 or 0 in spec.shape:
        return operand
    if not dims:
        flat = hlo.reshape(operand, (math.prod(spec.shape),))
        return hlo.reshape(_roll(flat, shifts[0], 0), spec.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        operand = _roll(operand, shift, dim % spec.rank)
    return operand


def _roll(operand: ir.Value, shift: int, dim: int) -> ir.Value:
    size = spec_of(operand).shape[dim]
    cut = -shift % size
    if cut == 0:
        return operand
    tail = hlo.slice_in_dim(operand, cut, size, dim=dim)
    return hlo.concatenate([tail, hlo.slice_in_dim(operand, 0, cut, dim=dim)], dim)


# --- writing a block -----------------------------------------------------------------------------


@lowering(aten.slice_scatter.default, padding=slice_written)
def slice_scatter(
    ctx: LoweringContext,
    operand: ir.Value,
    src: ir.Value,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> ir.Value:
    """`operand` with `operand[..., start:end:step, ...]` along `dim` replaced by `src`."""
    spec = spec_of(operand)
    dim %= spec.rank
    size = spec.shape[dim]
    start, end = slice_bounds(start, end, size)
    count = -(-(end - start) // step)
    target = (*spec.shape[:dim], count, *spec.shape[dim + 1 :])
    if 0 in target:
        return operand
    src = hlo.broadcast_to(hlo.convert(src, spec.dtype), target)
    if step == 1:
        starts = [start if axis == dim else 0 for axis in range(spec.rank)]
        return write_at(operand, src, starts)
    reach = (count - 1) * step + 1
    low, high, interior = [0] * spec.rank, [0] * spec.rank, [0] * spec.rank
    low[dim], high[dim], interior[dim] = start, size - start - reach, step - 1
    spread = hlo.pad(src, low, high, interior=interior)
    written = hlo.pad(hlo.full(target, torch.bool, True), low, high, False, interior=interior)
    return hlo.select(written, spread, operand)


@lowering(aten.diagonal_scatter.default, padding=diagonal_written)
def diagonal_scatter(
    ctx: LoweringContext,
    operand: ir.Value,
    src: ir.Value,
    offset: int = 0,
    dim1: int = 0,
    dim2: int = 1,
) -> ir.Value:
    """`operand` with the diagonal `offset` of the matrices in (dim1, dim2) replaced by `src`."""
    spec = spec_of(operand)
    dim1, dim2 = dim1 % spec.rank, dim2 % spec.rank
    if 0 in spec_of(src).shape:
        return operand
    rest = [dim for dim in range(spec.rank) if dim not in (dim1, dim2)]
    # Element j of the diagonal stands in row j + max(-offset, 0).
    low = max(-offset, 0)
    high = spec.shape[dim1] - low - spec_of(src).shape[-1]
    rows = hlo.pad(
        hlo.convert(src, spec.dtype), [*(0 for _ in rest), low], [*(0 for _ in rest), high]
    )
    order = sorted(range(len(rest) + 1), key=lambda axis: [*rest, dim1][axis])
    rows = hlo.transpose(rows, order)
    spread = hlo.broadcast_in_dim(rows, spec.shape, sorted([*rest, dim1]))
    row = stablehlo.add(hlo.iota(spec.shape, dim1), hlo.full(spec.shape, torch.int32, offset))
    on_diagonal = hlo.compare(row, hlo.iota(spec.shape, dim2), "EQ")
    return hlo.select(on_diagonal, spread, operand)
