"""The padding rules of views: what splits, merges, orders, cuts and joins dims."""

from __future__ import annotations

from collections.abc import Sequence
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
    same_size,
    view,
)
from lowering.bucketing.call import Call, Outcome
from lowering.bucketing.run_time import take_along
from lowering.mlir import ir, stablehlo


def reshaped(call: Call) -> Outcome:
    """The same elements in row-major order: atoms are renamed, or else elements move."""
    layout = call.layout("self")
    sizes = call.result_sizes()
    dims = view(layout.dims, sizes)
    if dims is None:
        target = call.plain()
        return call.sizes.regrouped(call.value("self"), layout.dims, target.dims), [target]
    value = hlo.reshape(call.value("self"), [physical_size(dim) for dim in dims])
    return value, [Layout(dims, _kept_zeros(layout, dims))]


def _kept_zeros(layout: Layout, dims: Sequence[Dim]) -> frozenset[int]:
    """Return the dims of a view whose padding is zero: those made of just such atoms."""
    zeros = {
        (dim[0].size, dim[0].physical): position
        for position, dim in enumerate(layout.dims)
        if position in layout.zeros and len(dim) == 1
    }
    padded = [d for d in layout.dims if is_padded(d)]
    if len({tuple(d) for d in padded}) != len(padded):
        return frozenset()
    return frozenset(
        position
        for position, dim in enumerate(dims)
        if is_padded(dim) and all(a.is_static or (a.size, a.physical) in zeros for a in dim)
    )


def permuted(call: Call) -> Outcome:
    """Dims in another order."""
    layout = call.layout("self")
    rank = len(layout.dims)
    order = [dim % rank for dim in call.value("dims")]
    return call.run(), [reordered(layout, order)]


def transposed(call: Call) -> Outcome:
    """Two dims exchanged (the last two where the op names none)."""
    layout = call.layout("self")
    rank = len(layout.dims)
    order = list(range(rank))
    if rank > 1:
        first, second = (call.value(name, default) for name, default in (("dim0", 0), ("dim1", 1)))
        order[first % rank], order[second % rank] = order[second % rank], order[first % rank]
    return call.run(), [reordered(layout, order)]


def reordered(layout: Layout, order: Sequence[int]) -> Layout:
    """Return the layout with result dim `i` taken from dim `order[i]`."""
    dims = tuple([layout.dims[dim] for dim in order])
    return Layout(dims, frozenset(i for i, dim in enumerate(order) if dim in layout.zeros))


def expanded(call: Call) -> Outcome:
    """Dims of size 1 repeated; those of other sizes stay as they lie."""
    layout = call.layout("self")
    plain = call.plain()
    offset = len(plain.dims) - len(layout.dims)
    dims = [
        layout.dims[position - offset]
        if position >= offset and layout.dims[position - offset]
        else dim
        for position, dim in enumerate(plain.dims)
    ]
    zeros = frozenset(offset + dim for dim in layout.zeros)
    return hlo.broadcast_to(call.value("self"), call.result.shape), [Layout(tuple(dims), zeros)]


def with_dim(call: Call) -> Outcome:
    """A dim of size 1 inserted."""
    layout = call.layout("self")
    at = call.value("dim") % (len(layout.dims) + 1)
    dims = [*layout.dims[:at], (), *layout.dims[at:]]
    zeros = frozenset(dim + (dim >= at) for dim in layout.zeros)
    return call.run(), [Layout(tuple(dims), zeros)]


def without_dims(call: Call) -> Outcome:
    """Dims of size 1 removed."""
    layout = call.layout("self")
    rank = len(layout.dims)
    given = call.value("dim")
    named = range(rank) if given is None else hlo.canonical_dims(given, rank)
    fake = call.fake("self").shape
    gone = [dim for dim in named if isinstance(fake[dim], int) and fake[dim] == 1]
    kept = [dim for dim in range(rank) if dim not in gone]
    dims = tuple([layout.dims[dim] for dim in kept])
    zeros = frozenset(kept.index(dim) for dim in layout.zeros if dim in kept)
    return hlo.reshape(call.value("self"), call.result.shape), [Layout(dims, zeros)]


# --- cutting ----------------------------------------------------------------------------------


def sliced(call: Call) -> Outcome:
    """`self[start:end:step]` of one dim, with starts and ends that may be dynamic."""
    layout = call.layout("self")
    dim = call.value("dim", 0) % len(layout.dims)
    source, size = layout.dims[dim], call.result_sizes()[dim]
    step = call.value("step", 1)
    start = _start(call, logical_size(source))
    if same_size(logical_size(source), size) and step == 1:
        return call.value("self"), [layout]
    # Never moves the other dims; this one's real positions come first afterwards.
    value, source = _prefixed(call, call.value("self"), layout, dim)
    target = call.plain().dims[dim]
    positions = _places(call, start, step, physical_size(target))
    value = take_along(value, positions, dim)
    dims = [*layout.dims[:dim], target, *layout.dims[dim + 1 :]]
    return value, [Layout(tuple(dims), layout.zeros - {dim})]


def _start(call: Call, size: Any) -> Any:
    """Return where a slice of a dim of `size` starts: a number or an expression from 0 up."""
    start = call.size("start")
    if start is None:
        return 0
    if isinstance(start, int):
        return start if start >= 0 else size + start
    if start.is_nonnegative or start.is_positive:
        return start
    if start.is_negative:
        return size + start
    raise call.decline("nothing says whether its start counts from the front or the end")


def _prefixed(call: Call, value: ir.Value, layout: Layout, dim: int) -> tuple[ir.Value, Dim]:
    """Return `value` with the real positions of `dim` first, and that dim."""
    source = layout.dims[dim]
    if is_prefix(source):
        return value, source
    target = dim_of(logical_size(source), physical_size(source))
    index = call.sizes.physical_index([source], call.sizes.linear_index([target]))
    return take_along(value, index, dim), target


def _places(call: Call, start: Any, step: int, count: int) -> ir.Value:
    places = hlo.iota([count], 0)
    if step != 1:
        places = stablehlo.multiply(places, hlo.full([count], torch.int32, step))
    first = hlo.broadcast_to(call.sizes.number(start), [count])
    return stablehlo.add(places, first)


def selected(call: Call) -> Outcome:
    """`self[index]` of one dim, counted from the real end where negative."""
    layout = call.layout("self")
    rank = len(layout.dims)
    dim = call.value("dim") % rank
    source = layout.dims[dim]
    index = call.size("index")
    if isinstance(index, int) and index < 0:
        index = logical_size(source) + index
    elif not isinstance(index, int) and not index.is_nonnegative:
        raise call.decline("nothing says whether its index counts from the front or the end")
    value, _ = _prefixed(call, call.value("self"), layout, dim)
    place = call.sizes.number(index)
    kept = [position for position in range(rank) if position != dim]
    return hlo.dynamic_index(value, place, dim), [reordered(layout, kept)]


# --- joining ----------------------------------------------------------------------------------


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
        values.append(_prefixed(call, value, Layout(tuple(wanted)), dim)[0])
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
