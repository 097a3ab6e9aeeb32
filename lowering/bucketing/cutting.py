"""The padding rules of what takes parts of a tensor: slices, pieces, diagonals, windows."""

from __future__ import annotations

from typing import Any

from lowering import hlo
from lowering.bucketing.atoms import Dim, Layout, is_padded, logical_size, physical_size, same_size
from lowering.bucketing.call import Call, Outcome
from lowering.bucketing.placing import (
    cut,
    from_front,
    number,
    prefixed,
    put_first,
    with_dims,
)
from lowering.bucketing.views import reordered


def sliced(call: Call) -> Outcome:
    """`self[start:end:step]` of one dim, with starts and ends that may be dynamic."""
    layout = call.layout("self")
    dim = call.value("dim", 0) % len(layout.dims)
    source, size = layout.dims[dim], call.result_sizes()[dim]
    step = call.value("step", 1)
    call.names_shape("end")
    start = call.size("start")
    start = 0 if start is None else from_front(call, start, logical_size(source))
    if same_size(logical_size(source), size) and step == 1:
        return call.value("self"), [layout]
    value, _ = prefixed(call, call.value("self"), layout, dim)
    target = call.plain().dims[dim]
    return cut(call, value, start, target, dim, step=step), [with_dims(layout, {dim: target})]


def narrowed(call: Call) -> Outcome:
    """`self[start:start + length]` of one dim."""
    layout = call.layout("self")
    dim = call.value("dim") % len(layout.dims)
    call.names_shape("length")
    start = from_front(call, call.size("start"), logical_size(layout.dims[dim]))
    value, _ = prefixed(call, call.value("self"), layout, dim)
    target = call.plain().dims[dim]
    return cut(call, value, start, target, dim), [with_dims(layout, {dim: target})]


def selected(call: Call) -> Outcome:
    """`self[index]` of one dim, counted from the real end where negative."""
    layout = call.layout("self")
    rank = len(layout.dims)
    dim = call.value("dim") % rank
    index = from_front(call, call.size("index"), logical_size(layout.dims[dim]))
    value, _ = prefixed(call, call.value("self"), layout, dim)
    kept = [position for position in range(rank) if position != dim]
    return hlo.dynamic_index(value, number(call, index), dim), [reordered(layout, kept)]


def split(call: Call) -> Outcome:
    """Consecutive pieces along a dim, of sizes that may be dynamic."""
    layout = call.layout("self")
    dim = call.value("dim", 0) % len(layout.dims)
    call.names_shape("split_sizes", "split_size")
    count = len(call.ctx.specs(call.node))
    if not is_padded(layout.dims[dim]):
        dims = [call.plain(index).dims[dim] for index in range(count)]
        return call.run(), [with_dims(layout, {dim: piece}) for piece in dims]
    value, _ = prefixed(call, call.value("self"), layout, dim)
    pieces, layouts, start = [], [], 0
    for index in range(count):
        target = call.plain(index).dims[dim]
        pieces.append(cut(call, value, start, target, dim))
        layouts.append(with_dims(layout, {dim: target}))
        start = _plain(start + call.result_sizes(index)[dim])
    return tuple(pieces), layouts


def _plain(size: Any) -> Any:
    return int(size) if getattr(size, "is_Integer", False) else size


def unbound(call: Call) -> Outcome:
    """Every position of a dim, of which there is a static number."""
    layout = call.layout("self")
    dim = call.value("dim", 0) % len(layout.dims)
    if is_padded(layout.dims[dim]):
        raise call.decline("it takes a padded dim apart")
    kept = reordered(layout, [d for d in range(len(layout.dims)) if d != dim])
    return call.run(), [kept] * len(call.ctx.specs(call.node))


def diagonal_taken(call: Call) -> Outcome:
    """A diagonal of the matrices in two dims, which becomes the last dim."""
    rank = len(call.layout("self").dims)
    offset = call.size("offset", 0)
    pair = [call.value("dim1", 0) % rank, call.value("dim2", 1) % rank]
    if not isinstance(offset, int):
        raise call.decline("the offset of its diagonal is dynamic")
    layout = put_first(call, "self", pair)
    length = physical_size(call.plain().dims[-1])
    value = call.value("self")
    for dim, first in zip(pair, (max(-offset, 0), max(offset, 0)), strict=True):
        if value.type.shape[dim] < first + length:
            value = hlo.resized(value, first + length, dim)
    call.replace("self", value)
    rest = [layout.dims[dim] for dim in range(rank) if dim not in pair]
    return call.run(), [Layout((*rest, call.plain().dims[-1]))]


def windowed(call: Call) -> Outcome:
    """Windows of `size` at every `step` of a dim; positions in a window become the last dim."""
    layout = call.layout("self")
    rank = len(layout.dims)
    if not rank:
        return call.run(), [call.plain()]
    dim = call.value("dimension") % rank
    step = call.size("step")
    if not isinstance(step, int):
        raise call.decline("the step of its windows is dynamic")
    call.names_shape("size")
    plain = call.plain()
    windows, extent = plain.dims[dim], physical_size(plain.dims[-1])
    layout = put_first(call, "self", [dim])
    value = call.value("self")
    reach = (physical_size(windows) - 1) * step + extent
    if value.type.shape[dim] < reach:
        call.replace("self", hlo.resized(value, reach, dim))
    call.replace("size", extent)
    return call.run(), [_appended(with_dims(layout, {dim: windows}), plain.dims[-1])]


def _appended(layout: Layout, dim: Dim) -> Layout:
    return Layout((*layout.dims, dim), layout.zeros)
