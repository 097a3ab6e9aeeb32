"""Padding: with a constant, by reflection, by repeating the edge; and the backward of the last."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lowering import hlo
from lowering.bucketing.bordering import (
    filled_around,
    reflected,
    replicated,
    replicated_backward,
)
from lowering.context import LoweringContext
from lowering.dtypes import spec_of
from lowering.mlir import ir, stablehlo
from lowering.registry import lowering

aten = torch.ops.aten


def pads_by_dim(pad: Sequence[int], rank: int) -> list[tuple[int, int, int]]:
    """Return (dim, before, after) for torch's list of paddings, which starts at the last dim."""
    return [
        (rank - 1 - position, pad[2 * position], pad[2 * position + 1])
        for position in range(len(pad) // 2)
    ]


@lowering(aten.constant_pad_nd.default, padding=filled_around)
def constant_pad_nd(
    ctx: LoweringContext, operand: ir.Value, pad: Sequence[int], value: hlo.Scalar = 0
) -> ir.Value:
    """`operand` with `value` around it; negative paddings cut instead."""
    rank = spec_of(operand).rank
    low, high = [0] * rank, [0] * rank
    for dim, before, after in pads_by_dim(pad, rank):
        low[dim], high[dim] = before, after
    if 0 in ctx.result.shape:
        return hlo.full(ctx.result.shape, ctx.result.dtype, 0)
    return hlo.pad(operand, low, high, value)


def _kept(operand: ir.Value, dim: int, before: int, after: int) -> ir.Value:
    """Return what negative paddings leave of `operand`."""
    size = spec_of(operand).shape[dim]
    return hlo.slice_in_dim(operand, max(-before, 0), size - max(-after, 0), dim=dim)


@lowering(
    aten.reflection_pad1d.default,
    aten.reflection_pad2d.default,
    aten.reflection_pad3d.default,
    padding=reflected,
)
def reflection_pad(ctx: LoweringContext, operand: ir.Value, padding: Sequence[int]) -> ir.Value:
    """`operand` continued by its mirror image about its first and last elements.

    Kept whole: slices and reversals, where torch's decomposition gathers by computed indices.
    """
    for dim, before, after in pads_by_dim(padding, spec_of(operand).rank):
        size = spec_of(operand).shape[dim]
        pieces = [_kept(operand, dim, before, after)]
        if before > 0:
            mirrored = hlo.slice_in_dim(operand, 1, 1 + before, dim=dim)
            pieces.insert(0, stablehlo.reverse(mirrored, [dim]))
        if after > 0:
            mirrored = hlo.slice_in_dim(operand, size - 1 - after, size - 1, dim=dim)
            pieces.append(stablehlo.reverse(mirrored, [dim]))
        operand = hlo.concatenate(pieces, dim)
    return operand


@lowering(
    aten.replication_pad1d.default,
    aten.replication_pad2d.default,
    aten.replication_pad3d.default,
    padding=replicated,
)
def replication_pad(ctx: LoweringContext, operand: ir.Value, padding: Sequence[int]) -> ir.Value:
    """`operand` continued by its first and last elements; kept whole as `reflection_pad` is."""
    for dim, before, after in pads_by_dim(padding, spec_of(operand).rank):
        spec = spec_of(operand)
        pieces = [_kept(operand, dim, before, after)]
        for count, edge, place in ((before, 0, 0), (after, spec.shape[dim] - 1, len(pieces) + 1)):
            if count > 0:
                shape = (*spec.shape[:dim], count, *spec.shape[dim + 1 :])
                end = hlo.slice_in_dim(operand, edge, edge + 1, dim=dim)
                pieces.insert(place, hlo.broadcast_in_dim(end, shape, range(spec.rank)))
        operand = hlo.concatenate(pieces, dim)
    return operand


@lowering(
    aten.replication_pad1d_backward.default,
    aten.replication_pad2d_backward.default,
    aten.replication_pad3d_backward.default,
    padding=replicated_backward,
)
def replication_pad_backward(
    ctx: LoweringContext, grad_output: ir.Value, operand: ir.Value, padding: Sequence[int]
) -> ir.Value:
    """Gradient of `replication_pad`: what fell on the padding is added to the edges.

    Sums are taken in float32 for the half types.
    """
    dtype = ctx.result.dtype
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    grad = hlo.convert(grad_output, wide)
    shape = spec_of(operand).shape
    for dim, before, after in pads_by_dim(padding, len(shape)):
        grad = _fold_edges(grad, dim, shape[dim], before, after)
    return hlo.convert(grad, dtype)


def _fold_edges(grad: ir.Value, dim: int, size: int, before: int, after: int) -> ir.Value:
    """Return `grad` of the padded `dim` folded to `size` positions."""
    total = spec_of(grad).shape[dim]
    body = hlo.slice_in_dim(grad, max(before, 0), total - max(after, 0), dim=dim)
    low, high = [0] * spec_of(grad).rank, [0] * spec_of(grad).rank
    low[dim], high[dim] = max(-before, 0), max(-after, 0)
    folded = hlo.pad(body, low, high)
    for count, start, place in ((before, 0, 0), (after, total - after, size - 1)):
        if count > 0:
            edge = hlo.slice_in_dim(grad, start, start + count, dim=dim)
            edge = hlo.expand_dims(hlo.reduce_sum(edge, [dim]), [dim])
            low[dim], high[dim] = place, size - 1 - place
            folded = stablehlo.add(folded, hlo.pad(edge, low, high))
    return folded
