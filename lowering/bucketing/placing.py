"""Moving real elements along one dim: to its front, by a distance, to computed positions.

What the padding rules of cutting, joining, indexing and sorting share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from lowering import hlo
from lowering.bucketing.atoms import (
    Dim,
    Layout,
    dim_of,
    is_padded,
    is_prefix,
    logical_size,
    physical_size,
)
from lowering.bucketing.call import Call
from lowering.bucketing.run_time import take_along
from lowering.dtypes import spec_of
from lowering.mlir import ir, stablehlo

Places = Callable[[ir.Value], ir.Value]
"""Takes the logical positions of a result (1-d i32), gives those to read there."""


def front(dim: Dim) -> Dim:
    """Return the dim of this size whose real positions come first."""
    return dim if is_prefix(dim) else dim_of(logical_size(dim), physical_size(dim))


def prefixed(call: Call, value: ir.Value, layout: Layout, dim: int) -> tuple[ir.Value, Dim]:
    """Return `value` with the real positions of `dim` first, and that dim."""
    source = layout.dims[dim]
    if is_prefix(source):
        return value, source
    target = dim_of(logical_size(source), physical_size(source))
    index = call.sizes.physical_index([source], call.sizes.linear_index([target]))
    return take_along(value, index, dim), target


def put_first(call: Call, name: str, dims: Sequence[int]) -> Layout:
    """Give the op's rule tensor `name` with real positions first along `dims`; its layout."""
    layout = call.layout(name)
    value, changed = call.value(name), list(layout.dims)
    for dim in dims:
        value, changed[dim] = prefixed(call, value, layout, dim)
    call.replace(name, value)
    zeros = {dim for dim in layout.zeros if changed[dim] == layout.dims[dim]}
    return Layout(tuple(changed), frozenset(zeros))


def with_dims(layout: Layout, changed: dict[int, Dim]) -> Layout:
    """Return `layout` with some dims replaced, whose padding may hold anything."""
    dims = [changed.get(position, dim) for position, dim in enumerate(layout.dims)]
    return Layout(tuple(dims), layout.zeros - changed.keys())


def cut(
    call: Call, value: ir.Value, start: Any, target: Dim, dim: int, *, step: int = 1
) -> ir.Value:
    """Return positions `start, start + step, ...` of a dim, as many as `target` has.

    `value` has the real positions of `dim` first. `start` is within the dim's logical size: a
    number, an expression, or a 0-d i32 value.
    """
    count, extent = physical_size(target), value.type.shape[dim]
    if isinstance(start, int):
        end = start + (count - 1) * step + 1
        start = min(start, extent)
        piece = hlo.slice_in_dim(value, start, max(min(end, extent), start), step, dim=dim)
        return hlo.resized(piece, count, dim)
    if step != 1:
        places = _scaled(hlo.iota([count], 0), step)
        first = hlo.broadcast_to(number(call, start), [count])
        return take_along(value, stablehlo.add(places, first), dim)
    # A piece that is padded may reach beyond the end, where XLA would move it.
    room = extent + count if is_padded(target) else max(extent, count)
    return shifted(hlo.resized(value, room, dim), number(call, start), count, dim)


def shifted(value: ir.Value, start: ir.Value, count: int, dim: int) -> ir.Value:
    """Return `count` positions of a dim from a run-time `start`, which XLA clamps."""
    shape = list(value.type.shape)
    if 0 in shape:
        return hlo.resized(value, count, dim)
    zero = hlo.scalar(0, torch.int32)
    starts = [start if position == dim else zero for position in range(len(shape))]
    shape[dim] = count
    return stablehlo.dynamic_slice(value, starts, shape)


def _scaled(operand: ir.Value, factor: int) -> ir.Value:
    return stablehlo.multiply(operand, hlo.full_like(operand, factor))


def rearranged(
    call: Call, value: ir.Value, source: Dim, target: Dim, dim: int, places: Places
) -> ir.Value:
    """Return `value` read along `dim`, at each position of `target`, where `places` says."""
    logical = places(call.sizes.linear_index([target]))
    index = logical if is_prefix(source) else call.sizes.physical_index([source], logical)
    return take_along(value, index, dim)


def number(call: Call, position: Any) -> ir.Value:
    """Return a number, an expression or a 0-d i32 value as the last."""
    return position if isinstance(position, ir.Value) else call.sizes.number(position)


def number_like(call: Call, size: Any, like: ir.Value) -> ir.Value:
    """Return a number or an expression at every position of an integer value."""
    spec = spec_of(like)
    return hlo.broadcast_to(call.sizes.number(size, spec.dtype), spec.shape)


def from_front(call: Call, position: Any, size: Any) -> Any:
    """Return a position that counts from the end where it is negative, from the front.

    A number or an expression; a 0-d i32 value if only the run tells its sign.
    """
    if isinstance(position, int):
        return position if position >= 0 else size + position
    if position.is_nonnegative or position.is_positive:
        return position
    if position.is_negative:
        return size + position
    value = call.sizes.number(position)
    behind = stablehlo.add(value, call.sizes.number(size))
    return hlo.select(hlo.compare(value, hlo.full_like(value, 0), "LT"), behind, value)
