"""The padding rules of what joins, repeats and reorders tensors, or writes a block into one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lowering import hlo
from lowering.bucketing.atoms import (
    Atom,
    Dim,
    Layout,
    is_padded,
    is_prefix,
    logical_size,
    merged,
    physical_size,
)
from lowering.bucketing.call import Call, Outcome
from lowering.bucketing.placing import (
    from_front,
    number,
    number_like,
    prefixed,
    put_first,
    rearranged,
    shifted,
)
from lowering.bucketing.rules import matched
from lowering.bucketing.run_time import take_along
from lowering.mlir import ir, stablehlo
from lowering.run_time_numbers import remainder


def joined(call: Call) -> Outcome:
    """Tensors one after the other along a dim, each at the real end of the one before."""
    layouts = [layout for layout in call.layouts("tensors") if layout is not None]
    values = list(call.value("tensors"))
    # torch lets a 1-d tensor of size 0 be joined to anything.
    rank = len(call.result_sizes())
    pieces = [(v, lay) for v, lay in zip(values, layouts, strict=True) if len(lay.dims) == rank]
    dim = call.value("dim", 0) % rank
    dims = pieces[0][1].dims
    target = call.plain().dims[dim]
    values = []
    for value, layout in pieces:
        wanted = [layout.dims[dim] if position == dim else d for position, d in enumerate(dims)]
        value = call.sizes.relayout(value, layout.dims, wanted)
        values.append(prefixed(call, value, Layout(tuple(wanted)), dim)[0])
    sizes = [logical_size(layout.dims[dim]) for _, layout in pieces]
    value = _laid_in(call, values, sizes, dim, physical_size(target))
    result = [target if position == dim else d for position, d in enumerate(dims)]
    return value, [Layout(tuple(result))]


def _laid_in(
    call: Call, values: Sequence[ir.Value], sizes: Sequence[Any], dim: int, extent: int
) -> ir.Value:
    """Return the pieces one after the other in a dim of `extent` positions."""
    shapes = [list(value.type.shape) for value in values]
    dtype = call.result.dtype
    values = [hlo.convert(value, dtype) for value in values]
    if all(isinstance(size, int) for size in sizes[:-1]):
        whole = hlo.concatenate(values, dim)
        return hlo.resized(whole, extent, dim)
    # A padded piece may reach beyond the end of the result, where XLA would move it. The padding
    # of a piece is overwritten by the next.
    padded = [shape[dim] for shape, size in zip(shapes, sizes, strict=True) if size != shape[dim]]
    room = extent + max(padded[1:] if sizes[0] != shapes[0][dim] else padded, default=0)
    total = hlo.resized(values[0], room, dim)
    offset = sizes[0]
    zero = hlo.scalar(0, torch.int32)
    for value, size in zip(values[1:], sizes[1:], strict=True):
        start = call.sizes.number(offset)
        starts = [start if position == dim else zero for position in range(len(shapes[0]))]
        total = stablehlo.dynamic_update_slice(total, value, starts)
        offset = offset + size
    return hlo.slice_in_dim(total, 0, extent, dim=dim)


# --- repeating and reordering -------------------------------------------------------------------


def repeated(call: Call) -> Outcome:
    """A tensor laid side by side: copies of padded dims, each with its padding."""
    layout = call.layout("self")
    counts = call.size("repeats")
    bounds = [call.bound(count) for count in counts]
    new = len(counts) - len(layout.dims)
    dims = [
        merged([Atom(count, bound), *dim])
        for count, bound, dim in zip(counts, bounds, [*[()] * new, *layout.dims], strict=True)
    ]
    value = call.value("self")
    shape = [physical_size(dim) for dim in dims]
    spread: list[int] = []
    for bound, extent in zip(bounds, [*[1] * new, *layout.shape], strict=True):
        spread += [bound, extent]
    old = hlo.reshape(value, [*[1] * new, *layout.shape])
    wide = hlo.broadcast_in_dim(old, spread, range(1, 2 * len(dims), 2))
    return hlo.reshape(wide, shape), [Layout(tuple(dims))]


def flipped(call: Call) -> Outcome:
    """The order of real positions reversed along some dims."""
    layout = call.layout("self")
    rank = len(layout.dims)
    value = call.value("self")
    for dim in sorted({dim % rank for dim in call.value("dims")}):
        value = _reversed(call, value, layout.dims[dim], dim)
    return value, [Layout(layout.dims)]


def _reversed(call: Call, value: ir.Value, source: Dim, dim: int) -> ir.Value:
    if not is_padded(source):
        return stablehlo.reverse(value, [dim])
    if not is_prefix(source):
        return rearranged(call, value, source, source, dim, _from_end(call, source))
    # Reversed, the real positions come last.
    extent = physical_size(source)
    padding = stablehlo.subtract(
        hlo.scalar(extent, torch.int32), call.sizes.number(logical_size(source))
    )
    whole = hlo.resized(stablehlo.reverse(value, [dim]), 2 * extent, dim)
    return shifted(whole, padding, extent, dim)


def _from_end(call: Call, dim: Dim) -> Any:
    def places(logical: ir.Value) -> ir.Value:
        last = number_like(call, logical_size(dim) - 1, logical)
        return stablehlo.subtract(last, logical)

    return places


def rolled(call: Call) -> Outcome:
    """Real positions shifted around along some dims; without dims, as one row."""
    layout = call.layout("self")
    rank = len(layout.dims)
    shifts, dims = call.size("shifts"), call.value("dims", ())
    value = call.value("self")
    if not rank or 0 in layout.shape:
        return value, [layout]
    if not dims:
        index = call.sizes.linear_index(layout.dims)
        before = _before(call, index, shifts[0], logical_size(sum(layout.dims, ())))
        index = hlo.reshape(call.sizes.physical_index(layout.dims, before), [_count(layout)])
        flat = take_along(hlo.reshape(value, [_count(layout)]), index, 0)
        return hlo.reshape(flat, layout.shape), [Layout(layout.dims)]
    for shift, dim in zip(shifts, [dim % rank for dim in dims], strict=True):
        source = layout.dims[dim]

        def places(logical: ir.Value, shift: Any = shift, source: Dim = source) -> ir.Value:
            return _before(call, logical, shift, logical_size(source))

        value = rearranged(call, value, source, source, dim, places)
    return value, [Layout(layout.dims)]


def _before(call: Call, logical: ir.Value, shift: Any, size: Any) -> ir.Value:
    """Return the positions `shift` before these, counted around a dim of `size`."""
    count = number_like(call, size, logical)
    count = stablehlo.maximum(count, hlo.full_like(count, 1))
    place = stablehlo.subtract(logical, number_like(call, shift, logical))
    return remainder(place, count)


def _count(layout: Layout) -> int:
    count = 1
    for size in layout.shape:
        count *= size
    return count


# --- writing a block ----------------------------------------------------------------------------


def slice_written(call: Call) -> Outcome:
    """`self` with `self[start:end:step]` of one dim replaced by `src`."""
    layout, source = call.layout("self"), call.layout("src")
    rank = len(layout.dims)
    dim = call.value("dim", 0) % rank
    step = call.value("step", 1)
    call.names_shape("end")
    start = call.size("start")
    start = 0 if start is None else from_front(call, start, logical_size(layout.dims[dim]))
    layout = put_first(call, "self", [dim])
    value = call.value("self")
    count = logical_size(source.dims[dim])
    source = put_first(call, "src", [dim])
    wanted = [*layout.dims[:dim], source.dims[dim], *layout.dims[dim + 1 :]]
    update = hlo.convert(matched(call, call.value("src"), source, wanted), call.result.dtype)
    if 0 in update.type.shape or 0 in layout.shape:
        return value, [layout]
    extent = physical_size(layout.dims[dim])
    first = number(call, start)
    distance = stablehlo.subtract(hlo.iota([extent], 0), hlo.broadcast_to(first, [extent]))
    place, written = distance, hlo.compare(distance, hlo.full_like(distance, 0), "GE")
    if step == 1:
        spread = _moved(update, start, first, extent, dim)
    else:
        by = hlo.full_like(distance, step)
        place = stablehlo.divide(distance, by)
        hit = hlo.compare(stablehlo.remainder(distance, by), hlo.full_like(distance, 0), "EQ")
        written = stablehlo.and_(written, hit)
        spread = take_along(update, place, dim)
    inside = hlo.compare(place, number_like(call, count, place), "LT")
    written = hlo.broadcast_in_dim(stablehlo.and_(written, inside), layout.shape, [dim])
    return hlo.select(written, spread, value), [Layout(layout.dims)]


def _moved(update: ir.Value, start: Any, first: ir.Value, extent: int, dim: int) -> ir.Value:
    """Return `extent` positions of a dim, those of `update` from position `start` on."""
    update = hlo.resized(update, extent, dim)
    if isinstance(start, int) and start == 0:
        return update
    low = [extent if position == dim else 0 for position in range(len(update.type.shape))]
    room = hlo.pad(update, low, [0] * len(low))
    before = stablehlo.subtract(hlo.scalar(extent, torch.int32), first)
    return shifted(room, before, extent, dim)


def diagonal_written(call: Call) -> Outcome:
    """`self` with a diagonal of the matrices in two dims replaced by `src`."""
    rank = len(call.layout("self").dims)
    offset = call.size("offset", 0)
    if not isinstance(offset, int):
        raise call.decline("the offset of its diagonal is dynamic")
    pair = [call.value("dim1", 0) % rank, call.value("dim2", 1) % rank]
    layout = put_first(call, "self", pair)
    source = put_first(call, "src", [rank - 2])
    rest = [layout.dims[dim] for dim in range(rank) if dim not in pair]
    wanted = [*rest, source.dims[-1]]
    call.replace("src", call.sizes.relayout(call.value("src"), source.dims, wanted))
    return call.run(), [Layout(layout.dims)]
