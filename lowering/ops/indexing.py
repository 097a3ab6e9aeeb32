"""Reading by index tensors: advanced indexing, gather, embedding, masked reads of static size.

Where eager PyTorch raises for an index out of range, a compiled program reads the nearest
position in range (XLA clamps). Boolean masks that select give a shape that depends on data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import fx

from lowering import hlo
from lowering.bucketing.indexed import embedded, gathered, index_selected, indexed
from lowering.bucketing.scattered import mask_scattered, nonzero_found
from lowering.context import LoweringContext
from lowering.dtypes import spec_of
from lowering.hlo_indexing import put, take, take_along, wrap_negative
from lowering.hlo_scan import cumulative_sum
from lowering.mlir import ir, stablehlo
from lowering.registry import lowering

aten = torch.ops.aten

MASKS = (torch.bool, torch.uint8)


def advanced_dims(indices: Sequence[ir.Value | None]) -> tuple[list[int], int]:
    """Return the indexed dims, and before which of the other dims the index dims come.

    Index tensors side by side put their dims where the first stands; with a gap between them
    the dims go to the front.
    """
    dims = [dim for dim, index in enumerate(indices) if index is not None]
    adjacent = dims == list(range(dims[0], dims[0] + len(dims)))
    return dims, dims[0] if adjacent else 0


def index_positions(
    operand: ir.Value, indices: Sequence[ir.Value | None], dims: Sequence[int]
) -> list[ir.Value]:
    """Return the index tensors broadcast to one shape, as positions from the front."""
    shape = spec_of(operand).shape
    wrapped = []
    for dim in dims:
        index = indices[dim]
        assert index is not None
        wrapped.append(wrap_negative(index, shape[dim]))
    return hlo.broadcast(*wrapped)


def is_mask(index: torch.Tensor | None) -> bool:
    """Whether an index tensor selects by truth instead of by position."""
    return index is not None and index.dtype in MASKS


def _check_no_mask(node: fx.Node) -> str | None:
    indices = node.args[1]
    assert isinstance(indices, (list, tuple))
    if any(isinstance(index, fx.Node) and is_mask(index.meta["val"]) for index in indices):
        return "the output shape depends on data (a boolean index)"
    return None


@lowering(aten.index.Tensor, padding=indexed, check=_check_no_mask)
def index(ctx: LoweringContext, operand: ir.Value, indices: Sequence[ir.Value | None]) -> ir.Value:
    """`operand[indices]` as NumPy has it: None keeps a dim, index tensors broadcast together.

    Negative indices count from the end; further ones out of range are clamped.
    """
    dims, at = advanced_dims(indices)
    return take(operand, dims, index_positions(operand, indices, dims), at=at)


@lowering(aten.gather.default, padding=gathered)
def gather(
    ctx: LoweringContext,
    operand: ir.Value,
    dim: int,
    index: ir.Value,
    *,
    sparse_grad: bool = False,
) -> ir.Value:
    """`operand[..., index[..., i, ...], ...]` along `dim`; shape of `index`.

    Indices out of range (negative ones too) are clamped.
    """
    if spec_of(operand).rank == 0:
        return hlo.broadcast_to(operand, spec_of(index).shape)
    rank = spec_of(operand).rank
    positions = index if spec_of(index).rank else hlo.reshape(index, (1,) * rank)
    taken = take_along(operand, positions, dim % rank)
    return hlo.reshape(taken, ctx.result.shape)


@lowering(aten.index_select.default, padding=index_selected)
def index_select(ctx: LoweringContext, operand: ir.Value, dim: int, index: ir.Value) -> ir.Value:
    """Positions `index` (1-d or 0-d) of `dim`; indices out of range are clamped."""
    rank = spec_of(operand).rank
    if rank == 0:
        return operand
    index = hlo.reshape(index, (math.prod(spec_of(index).shape),))
    return take(operand, [dim % rank], [index])


@lowering(aten.embedding.default, padding=embedded)
def embedding(
    ctx: LoweringContext,
    weight: ir.Value,
    indices: ir.Value,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> ir.Value:
    """Rows of `weight` [rows, width] at `indices`; out of range is clamped.

    The three options concern the gradient only.
    """
    return take(weight, [0], [indices])


@lowering(aten.masked_scatter.default, padding=mask_scattered)
def masked_scatter(
    ctx: LoweringContext, operand: ir.Value, mask: ir.Value, source: ir.Value
) -> ir.Value:
    """`operand` with the k-th true position of `mask` replaced by the k-th element of `source`.

    `operand` and `mask` broadcast together. A source that is too short (an error in eager)
    repeats its last element.
    """
    result = ctx.result
    operand, mask = hlo.broadcast_to(operand, result.shape), hlo.broadcast_to(mask, result.shape)
    count = math.prod(spec_of(source).shape)
    if count == 0 or 0 in result.shape:
        return operand
    source = hlo.reshape(source, (count,))
    chosen = take(source, [0], [true_rank(mask)])
    return hlo.select(mask, chosen, operand)


def true_rank(mask: ir.Value) -> ir.Value:
    """Return, where `mask` holds, how many true positions come before in row-major order."""
    shape = spec_of(mask).shape
    flat = hlo.convert(hlo.reshape(mask, (math.prod(shape),)), torch.int32)
    rank = stablehlo.subtract(cumulative_sum(flat, 0), hlo.full_like(flat, 1))
    return hlo.reshape(rank, shape)


@lowering(aten.nonzero_static.default, padding=nonzero_found)
def nonzero_static(
    ctx: LoweringContext, operand: ir.Value, *, size: int, fill_value: int = -1
) -> ir.Value:
    """The coordinates of the first `size` nonzero elements, [size, rank] int64.

    Rows beyond the number of such elements hold `fill_value`.
    """
    spec, result = spec_of(operand), ctx.result
    if 0 in result.shape or 0 in spec.shape:
        return hlo.full(result.shape, torch.int64, fill_value)
    mask = hlo.convert(operand, torch.bool)
    # Positions that are not chosen are written behind the end, which drops them.
    rank = hlo.select(mask, true_rank(mask), hlo.full(spec.shape, torch.int32, size))
    columns = []
    for dim in range(spec.rank):
        empty = hlo.full((size,), torch.int64, fill_value)
        coordinate = hlo.iota(spec.shape, dim, torch.int64)
        columns.append(hlo.expand_dims(put(empty, [0], [rank], coordinate), [1]))
    return hlo.concatenate(columns, 1)
