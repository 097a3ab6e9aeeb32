"""The padding rules of what writes at positions: padding is written beyond the end, so dropped."""

from __future__ import annotations

import math

import torch

from lowering import hlo
from lowering.bucketing.atoms import Dim, Layout, dim_of, logical_size, physical_size
from lowering.bucketing.call import Call, Outcome
from lowering.bucketing.indexed import level, physical_positions
from lowering.bucketing.placing import prefixed, put_first
from lowering.bucketing.rules import aligned, broadcast_dims, matched
from lowering.dtypes import spec_of
from lowering.mlir import ir

MASKS = (torch.bool, torch.uint8)


def _writable(call: Call, index: ir.Value, layout: Layout, dim: Dim) -> ir.Value:
    """Return where logical positions of `dim` lie; beyond its end where `index` is padding."""
    index = physical_positions(call, index, dim)
    return dropped(call, index, layout, physical_size(dim))


def dropped(call: Call, index: ir.Value, layout: Layout, end: int) -> ir.Value:
    """Return `index` with `end`, where nothing is, at its padding."""
    mask = call.sizes.mask(layout.dims, range(len(layout.dims)))
    return index if mask is None else hlo.select(mask, index, hlo.full_like(index, end))


# --- index_put ------------------------------------------------------------------------------------


def index_written(call: Call) -> Outcome:
    """`self[indices] = values` as NumPy has it, by positions or by one mask."""
    layout, layouts = call.layout("self"), call.layouts("indices")
    indices = list(call.value("indices"))
    taken = [dim for dim, index in enumerate(layouts) if index is not None]
    given = [index for index in layouts if index is not None]
    if spec_of(indices[taken[0]]).dtype in MASKS:
        return _mask_written(call, taken[0], given[0])
    dims = broadcast_dims(given, max(len(index.dims) for index in given))
    for dim, index in zip(taken, given, strict=True):
        value = matched(call, indices[dim], index, dims)
        offset = len(dims) - len(index.dims)
        lies = [dims[offset + at] if mine else () for at, mine in enumerate(index.dims)]
        indices[dim] = _writable(call, value, Layout(tuple(lies)), layout.dims[dim])
    call.replace("indices", indices)
    together = taken == list(range(taken[0], taken[-1] + 1))
    at = taken[0] if together else 0
    kept = [dim for position, dim in enumerate(layout.dims) if position not in taken]
    wanted = [*kept[:at], *dims, *kept[at:]]
    call.replace("values", matched(call, call.value("values"), call.layout("values"), wanted))
    return call.run(), [Layout(layout.dims)]


def _mask_written(call: Call, at: int, mask: Layout) -> Outcome:
    """The k-th true position takes entry k: padding is false."""
    layout, values = call.layout("self"), call.layout("values")
    after = at + len(mask.dims)
    dims = layout.dims[at:after]
    indices = list(call.value("indices"))
    truth = hlo.convert(call.sizes.relayout(indices[at], mask.dims, dims), torch.bool)
    indices[at] = call.hidden(truth, Layout(dims), range(len(dims)), 0)
    call.replace("indices", indices)
    rest = [*layout.dims[:at], *layout.dims[after:]]
    entry = at - (len(rest) + 1 - len(values.dims))
    value = call.value("values")
    lies: list[Dim] = [*rest[:at], (), *rest[at:]]
    if entry >= 0:
        value, lies[at] = prefixed(call, value, values, entry)
        values = Layout((*values.dims[:entry], lies[at], *values.dims[entry + 1 :]))
    call.replace("values", matched(call, value, values, lies))
    return call.run(), [Layout(layout.dims)]


# --- along a dim ------------------------------------------------------------------------------


def scattered(call: Call) -> Outcome:
    """Values written, or combined in, at positions of one dim that differ along the others."""
    layout, positions = call.layout("self"), call.layout("index")
    if not layout.dims or not positions.dims:
        if layout.dims:
            index = _writable(call, call.value("index"), positions, layout.dims[0])
            call.replace("index", index)
        return call.run(), [Layout(layout.dims)]
    dim = call.value("dim") % len(layout.dims)
    layout, positions = level(call, dim)
    if "src" in call.tensors():
        source = call.sizes.relayout(call.value("src"), call.layout("src").dims, positions.dims)
        call.replace("src", source)
    call.replace("index", _writable(call, call.value("index"), positions, layout.dims[dim]))
    return call.run(), [layout]


def index_reduced(call: Call) -> Outcome:
    """Slices of `source` combined into those of `self` at positions of one dim."""
    layout, positions, source = (call.layout(name) for name in ("self", "index", "source"))
    if not layout.dims:
        return call.run(), [layout]
    dim = call.value("dim") % len(layout.dims)
    call.replace("index", _writable(call, call.value("index"), positions, layout.dims[dim]))
    count = positions.dims[0] if positions.dims else ()
    wanted = [*layout.dims[:dim], count, *layout.dims[dim + 1 :]]
    if source.dims:
        call.replace("source", call.sizes.relayout(call.value("source"), source.dims, wanted))
    return call.run(), [Layout(layout.dims)]


def put_in_row(call: Call) -> Outcome:
    """Values written at positions of the elements in row-major order."""
    layout, positions, source = (call.layout(name) for name in ("self", "index", "source"))
    index = physical_positions(call, call.value("index"), sum(layout.dims, ()))
    call.replace("index", dropped(call, index, positions, math.prod(layout.shape)))
    if source.is_padded or positions.is_padded:
        value = call.sizes.regrouped(call.value("source"), source.dims, positions.dims)
        call.replace("source", value)
    return call.run(), [Layout(layout.dims)]


# --- by rank among true positions -----------------------------------------------------------------


def mask_scattered(call: Call) -> Outcome:
    """The k-th true position takes the k-th element of a row: padding is false."""
    layout = aligned(call, ["self", "mask"])
    mask = hlo.broadcast_to(call.value("mask"), layout.shape)
    call.replace("mask", call.hidden(mask, layout, range(len(layout.dims)), 0))
    source = call.layout("source")
    if source.is_padded:
        size = logical_size(sum(source.dims, ()))
        row = dim_of(size, math.prod(source.shape))
        call.replace("source", call.sizes.regrouped(call.value("source"), source.dims, [row]))
    return call.run(), [layout]


def nonzero_found(call: Call) -> Outcome:
    """Coordinates of the first nonzero elements, of which padding is none."""
    everywhere = range(len(call.layout("self").dims))
    layout = put_first(call, "self", everywhere)
    call.replace("self", call.hidden(call.value("self"), layout, everywhere, 0))
    call.names_shape("size")
    call.replace("size", call.result.shape[0])
    return call.run(), [call.plain()]
