"""The padding rules of distances between points."""

from __future__ import annotations

from lowering.bucketing.atoms import Dim, Layout, is_padded, physical_size
from lowering.bucketing.call import Call, Outcome
from lowering.bucketing.rules import broadcast_dims, matched

# Eager takes a matrix product for more than 25 points, which is less exact for points that nearly
# coincide; a bucket of so many may hold fewer.
_MOST_WITHOUT_PRODUCT = 128
_NEVER_BY_PRODUCT = 2


def _batch(call: Call, *names: str) -> list[Dim]:
    """Return the dims of the batch that matrices broadcast to."""
    layouts = [Layout(call.layout(name).dims[:-2]) for name in names]
    return broadcast_dims(layouts, max(len(layout.dims) for layout in layouts))


def _lay(call: Call, name: str, dims: list[Dim]) -> Layout:
    """Give the op's rule tensor `name` in `dims`, where it has these; its layout."""
    layout = call.layout(name)
    call.replace(name, matched(call, call.value(name), layout, dims))
    offset = len(dims) - len(layout.dims)
    return Layout(tuple([dims[offset + at] if dim else () for at, dim in enumerate(layout.dims)]))


def _hide(call: Call, name: str, layout: Layout, along: list[int]) -> None:
    rank = len(layout.dims)
    along = [dim % rank for dim in along]
    call.replace(name, call.hidden(call.value(name), Layout(layout.dims), along, 0))


def distances(call: Call) -> Outcome:
    """Distances of all pairs: padded coordinates are equal."""
    left, right = call.layout("x1").dims, call.layout("x2").dims
    batch = _batch(call, "x1", "x2")
    features = left[-1] or right[-1]
    for name, points in (("x1", left[-2]), ("x2", right[-2])):
        _hide(call, name, _lay(call, name, [*batch, points, features]), [-1])
    rows = [left[-2], right[-2]]
    most = max(physical_size(dim) for dim in rows)
    may_be_few = any(is_padded(dim) for dim in rows) and most <= _MOST_WITHOUT_PRODUCT
    if may_be_few and not call.value("compute_mode"):
        call.replace("compute_mode", _NEVER_BY_PRODUCT)
    return call.run(), [Layout((*batch, *rows))]


def distances_backward(call: Call) -> Outcome:
    """The gradient of the first points: padded ones of the second, at no distance, add nothing."""
    left, right = call.layout("x1").dims, call.layout("x2").dims
    batch = _batch(call, "x1", "x2")
    features = left[-1] or right[-1]
    _lay(call, "x1", [*batch, left[-2], features])
    _hide(call, "x2", _lay(call, "x2", [*batch, right[-2], features]), [-2])
    for name in ("grad", "cdist"):
        _hide(call, name, _lay(call, name, [*batch, left[-2], right[-2]]), [-1])
    return call.run(), [Layout((*batch, left[-2], features))]


def pairs_within(call: Call) -> Outcome:
    """Distances of the pairs of a static number of points, or their gradient."""
    layout = call.layout("self")
    if is_padded(layout.dims[0]):
        raise call.decline("its number of points is dynamic")
    call.hide("self", [1], 0)
    is_backward = "grad" in call.names
    return call.run(), [Layout(layout.dims) if is_backward else call.plain()]
