"""The padding rules of what reads at positions: logical ones, turned into physical ones."""

from __future__ import annotations

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
from lowering.bucketing.call import Call, Outcome
from lowering.bucketing.placing import front
from lowering.bucketing.rules import broadcast_dims, matched
from lowering.bucketing.views import reordered
from lowering.dtypes import spec_of
from lowering.mlir import ir, stablehlo


def physical_positions(call: Call, index: ir.Value, dim: Dim) -> ir.Value:
    """Return where logical positions of a dim lie; negative ones count from its real end."""
    if not is_padded(dim):
        return index
    dtype = spec_of(index).dtype
    size = hlo.broadcast_to(call.sizes.number(logical_size(dim), dtype), spec_of(index).shape)
    negative = hlo.compare(index, hlo.full_like(index, 0), "LT")
    index = hlo.select(negative, stablehlo.add(index, size), index)
    return index if is_prefix(dim) else call.sizes.physical_index([dim], index)


def embedded(call: Call) -> Outcome:
    """Rows of a table at positions: padding reads some row, and stays padding."""
    call.names_shape("padding_idx")  # It concerns the gradient only.
    table, positions = call.layout("weight"), call.layout("indices")
    call.replace("indices", physical_positions(call, call.value("indices"), table.dims[0]))
    return call.run(), [Layout((*positions.dims, *table.dims[1:]))]


def index_selected(call: Call) -> Outcome:
    """Positions of one dim."""
    layout, positions = call.layout("self"), call.layout("index")
    if not layout.dims:
        return call.run(), [layout]
    dim = call.value("dim") % len(layout.dims)
    call.replace("index", physical_positions(call, call.value("index"), layout.dims[dim]))
    count = positions.dims[0] if positions.dims else ()
    dims = (*layout.dims[:dim], count, *layout.dims[dim + 1 :])
    return call.run(), [Layout(dims, layout.zeros - {dim})]


def indexed(call: Call) -> Outcome:
    """NumPy's indexing with integer tensors, which are broadcast together."""
    layout = call.layout("self")
    layouts = call.layouts("indices")
    taken = [dim for dim, index in enumerate(layouts) if index is not None]
    given = [index for index in layouts if index is not None]
    rank = max(len(index.dims) for index in given)
    dims = broadcast_dims(given, rank)
    indices = list(call.value("indices"))
    for dim in taken:
        value = matched(call, indices[dim], layouts[dim], dims)  # type: ignore[arg-type]
        indices[dim] = physical_positions(call, value, layout.dims[dim])
    call.replace("indices", indices)
    rest = [dim for dim in range(len(layout.dims)) if dim not in taken]
    together = taken == list(range(taken[0], taken[-1] + 1))
    at = taken[0] if together else 0
    kept = reordered(layout, rest).dims
    return call.run(), [Layout((*kept[:at], *dims, *kept[at:]))]


def gathered(call: Call) -> Outcome:
    """Elements along one dim, at positions that differ along the others."""
    layout, positions = call.layout("self"), call.layout("index")
    if not layout.dims or not positions.dims:
        return call.run(), [positions]
    dim = call.value("dim") % len(layout.dims)
    layout, positions = level(call, dim)
    call.replace("index", physical_positions(call, call.value("index"), layout.dims[dim]))
    return call.run(), [Layout(positions.dims)]


def level(call: Call, dim: int) -> tuple[Layout, Layout]:
    """Give the op's rule `self` and `index`, each position of which lies at one of `self`.

    Along dims other than `dim`, where `index` may be shorter. Returns their layouts.
    """
    layout, positions = call.layout("self"), call.layout("index")
    mine, its = list(layout.dims), list(positions.dims)
    for other in range(len(mine)):
        if other != dim and mine[other] != its[other]:
            mine[other] = front(mine[other])
            size = logical_size(its[other])
            extent = min(physical_size(its[other]), physical_size(mine[other]))
            its[other] = dim_of(size, extent)
    call.replace("self", call.sizes.relayout(call.value("self"), layout.dims, mine))
    call.replace("index", call.sizes.relayout(call.value("index"), positions.dims, its))
    return Layout(tuple(mine)), Layout(tuple(its))
