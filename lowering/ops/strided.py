"""Views by strides: as_strided and its scatter, read from the element order of a value.

A value has no memory, but its fake tensor says how torch would have laid it out, and
`as_strided` speaks about that memory. Functional graphs apply it to gapless tensors; memory that
the operand does not cover cannot be read.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import fx

from lowering import hlo
from lowering.bucketing.strides import strided, strided_written
from lowering.context import LoweringContext
from lowering.dtypes import spec_of
from lowering.hlo_indexing import position_dtype, put, take
from lowering.mlir import ir, stablehlo
from lowering.registry import Padding, lowering
from lowering.signature import dense_order

aten = torch.ops.aten


class _Window(NamedTuple):
    """Sizes and strides of a view, and its offset from the operand's first element."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @property
    def last(self) -> int:
        """The farthest element that the view reaches."""
        reach = sum((size - 1) * step for size, step in zip(self.size, self.stride, strict=True))
        return self.offset + reach


def _check_gapless(node: fx.Node) -> str | None:
    value = node.args[0].meta["val"]  # type: ignore[union-attr]
    sizes = (*value.shape, *value.stride())
    if all(isinstance(size, int) for size in sizes) and (
        dense_order(tuple(value.shape), tuple(value.stride())) is None
    ):
        return "its operand has gaps or overlaps in memory"
    return None


def _window(
    ctx: LoweringContext, size: Sequence[int], stride: Sequence[int], storage_offset: int | None
) -> tuple[_Window, tuple[int, ...]]:
    """Return the view relative to the operand, and the operand's memory order."""
    value = ctx.argument(0)
    shape, strides = ctx.sizes.shape(value.shape), ctx.sizes.shape(value.stride())
    own_offset = ctx.sizes.resolve(value.storage_offset())
    offset = 0 if storage_offset is None else storage_offset - own_offset
    window = _Window(tuple(size), tuple(stride), offset)
    order = dense_order(shape, strides)
    if order is None:
        raise ctx.unsupported("its operand has gaps or overlaps in memory")
    if 0 not in window.size and not 0 <= offset <= window.last < math.prod(shape):
        raise ctx.unsupported("it reads memory that its operand does not cover")
    return window, order


@lowering(
    aten.as_strided.default,
    aten.as_strided_copy.default,
    padding=strided,
    check=_check_gapless,
)
def as_strided(
    ctx: LoweringContext,
    operand: ir.Value,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> ir.Value:
    """The elements at `storage_offset + sum(index * stride)` of the operand's memory.

    Nested strides become reshapes and slices, stride 0 a broadcast, any others a gather.
    """
    window, order = _window(ctx, size, stride, storage_offset)
    if 0 in window.size:
        return hlo.full(window.size, ctx.result.dtype, 0)
    flat = _flatten(operand, order)
    nested = _nested_dims(window)
    if nested is None:
        return take(flat, [0], [_positions(window)])
    return _read_nested(flat, window, nested)


def _flatten(operand: ir.Value, order: Sequence[int]) -> ir.Value:
    return hlo.reshape(hlo.transpose(operand, order), (math.prod(operand.type.shape),))


def _nested_dims(window: _Window) -> list[int] | None:
    """Return the dims that walk through memory, outermost first; None if strides overlap."""
    walking = [
        dim
        for dim, (size, step) in enumerate(zip(window.size, window.stride, strict=True))
        if size > 1 and step > 0
    ]
    walking.sort(key=lambda dim: -window.stride[dim])
    for outer, inner in itertools.pairwise(walking):
        if window.stride[outer] < window.size[inner] * window.stride[inner]:
            return None
    return walking


def _read_nested(flat: ir.Value, window: _Window, nested: Sequence[int]) -> ir.Value:
    """Cut the memory into rows of the outermost stride, those into rows of the next, and so on."""
    rows: list[int] = []
    length = window.size[nested[0]] * window.stride[nested[0]] if nested else 1
    have = spec_of(flat).shape[0] - window.offset
    piece = hlo.slice_in_dim(flat, window.offset, window.offset + min(length, have), dim=0)
    piece = hlo.pad(piece, [0], [max(length - have, 0)])
    for position, dim in enumerate(nested):
        size, step = window.size[dim], window.stride[dim]
        piece = hlo.slice_in_dim(piece, 0, size * step, dim=position)
        rows.append(size)
        piece = hlo.reshape(piece, (*rows, step))
    piece = hlo.slice_in_dim(piece, 0, 1, dim=len(nested))
    order = sorted(range(len(nested)), key=lambda position: nested[position])
    piece = hlo.transpose(hlo.reshape(piece, rows), order)
    return hlo.broadcast_in_dim(piece, window.size, sorted(nested))


def _positions(window: _Window) -> ir.Value:
    """Return the element of the operand's memory behind each position of the view."""
    dtype = position_dtype(window.last)
    total = hlo.full(window.size, dtype, window.offset)
    for dim, (size, step) in enumerate(zip(window.size, window.stride, strict=True)):
        if size > 1 and step > 0:
            index = hlo.iota(window.size, dim, dtype)
            total = stablehlo.add(total, stablehlo.multiply(index, hlo.full_like(index, step)))
    return total


@lowering(aten.as_strided_scatter.default, padding=strided_written, check=_check_gapless)
def as_strided_scatter(
    ctx: LoweringContext,
    operand: ir.Value,
    src: ir.Value,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> ir.Value:
    """`operand` with the view of its memory replaced by `src`.

    Where a view overlaps itself, which of the elements is kept is as undefined as in eager.
    """
    window, order = _window(ctx, size, stride, storage_offset)
    spec = spec_of(operand)
    flat = _flatten(operand, order)
    unique = _nested_dims(window) is not None and all(window.stride)
    src = hlo.broadcast_to(hlo.convert(src, spec.dtype), window.size)
    written = put(flat, [0], [_positions(window)], src, unique=unique)
    in_memory = hlo.reshape(written, tuple(spec.shape[dim] for dim in order))
    return hlo.transpose(in_memory, [list(order).index(dim) for dim in range(spec.rank)])


@lowering(aten.resize.default, padding=Padding.EXACT, check=_check_gapless)
def resize(ctx: LoweringContext, operand: ir.Value, size: Sequence[int]) -> ir.Value:
    """The leading elements of the operand's memory under another shape.

    What eager leaves uninitialized, behind the operand's last element, is zero.
    """
    _, order = _window(ctx, (0,), (1,), None)
    flat = hlo.reshape(hlo.transpose(operand, order), (math.prod(spec_of(operand).shape),))
    missing = math.prod(size) - spec_of(flat).shape[0]
    return hlo.reshape(hlo.pad(flat, [0], [missing]), tuple(size))
