"""The padding rules of what slides windows over spatial dims: convolutions and pooling.

Batch dims flow. Padding of a spatial dim that comes last looks like the zeros (or -inf) beyond
the edge, which a window reads anyway; windows that start in it give padding.
"""

from __future__ import annotations

from collections.abc import Sequence

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
from lowering.bucketing.call import Call, Fill, Outcome
from lowering.bucketing.rules import matched
from lowering.dtypes import spec_of
from lowering.mlir import ir, stablehlo
from lowering.registry import PaddingRule


def spatial_first(call: Call, name: str, rank: int) -> Layout:
    """Move the real positions of the last `rank` dims of a tensor to the front; say how it lies."""
    layout = call.layout(name)
    dims = list(layout.dims)
    for position in range(len(dims) - rank, len(dims)):
        if not is_prefix(dims[position]):
            dims[position] = dim_of(logical_size(dims[position]), physical_size(dims[position]))
    call.replace(name, call.sizes.relayout(call.value(name), layout.dims, dims))
    zeros = [dim for dim in layout.zeros if dims[dim] == layout.dims[dim]]
    return Layout(tuple(dims), frozenset(zeros))


def spatial_dims(layout: Layout, rank: int) -> list[int]:
    """Return the numbers of the last `rank` dims."""
    return list(range(len(layout.dims) - rank, len(layout.dims)))


def _beside_batch(call: Call, batch: Sequence[Dim], rank: int, index: int = 0) -> Layout:
    """Return the layout of a result that has `batch` dims of an operand, then `rank` others."""
    return Layout((*batch, *call.plain(index).dims[len(batch) :]))


# --- convolutions ---------------------------------------------------------------------------


def _check_static(call: Call, name: str, dims: Sequence[Dim]) -> None:
    if any(is_padded(dim) for dim in dims):
        raise call.decline(f"channels or kernel of its `{name}` are a dynamic dim")


def convolved(call: Call) -> Outcome:
    """A convolution or its transpose: the input's padding in space is zero."""
    rank = len(call.layout("input").dims) - 2
    _check_static(call, "weight", call.layout("weight").dims)
    layout = spatial_first(call, "input", rank)
    _check_static(call, "input", layout.dims[1:2])
    space = spatial_dims(layout, rank)
    call.replace("input", call.hidden(call.value("input"), layout, space, 0))
    return call.run(), [_beside_batch(call, layout.dims[:1], rank + 1)]


def convolution_backward(call: Call) -> Outcome:
    """Gradients of a convolution: sums over the batch and space take real positions only."""
    rank = len(call.layout("input").dims) - 2
    weight = call.layout("weight")
    _check_static(call, "weight", weight.dims)
    layout = spatial_first(call, "input", rank)
    _check_static(call, "input", layout.dims[1:2])
    grad = spatial_first(call, "grad_output", rank)
    dims = (layout.dims[0], *grad.dims[1:])
    call.replace("grad_output", matched(call, call.value("grad_output"), grad, dims))
    summed = [0, *spatial_dims(layout, rank)]
    # Both factors of a product, since garbage times zero may be NaN.
    call.replace("grad_output", call.hidden(call.value("grad_output"), Layout(dims), summed, 0))
    call.replace("input", call.hidden(call.value("input"), layout, summed, 0))
    specs = call.ctx.specs(call.node)
    layouts = [layout, weight, Layout(dims[1:2])]
    return call.run(), [
        None if spec is None else Layout(own.dims) for spec, own in zip(specs, layouts, strict=True)
    ]


# --- pooling ----------------------------------------------------------------------------------


def pools_largest(rank: int) -> PaddingRule:
    """The largest value of each window over the last `rank` dims, and its place in the plane."""

    def rule(call: Call) -> Outcome:
        layout = spatial_first(call, "self", rank)
        space = spatial_dims(layout, rank)
        call.replace("self", call.hidden(call.value("self"), layout, space, Fill.LOWEST))
        values, places = call.run()
        pooled = _beside_batch(call, layout.dims[:-rank], rank)
        if places is not None:
            places = logical_places(call, places, layout.dims[-rank:])
        return (values, places), [pooled, pooled]

    return rule


def logical_places(call: Call, places: ir.Value, dims: Sequence[Dim]) -> ir.Value:
    """Return places in a plane of `dims`, numbered by physical positions, by logical ones."""
    if not any(is_padded(dim) for dim in dims[1:]):
        return places
    dtype = spec_of(places).dtype
    total = hlo.full_like(places, 0)
    rest = places
    stride = hlo.scalar(1, dtype)
    for dim in reversed(dims):
        extent = hlo.full_like(places, physical_size(dim))
        digit = stablehlo.remainder(rest, extent)
        rest = stablehlo.divide(rest, extent)
        step = hlo.broadcast_to(stride, spec_of(places).shape)
        total = stablehlo.add(total, stablehlo.multiply(digit, step))
        stride = stablehlo.multiply(stride, call.sizes.number(logical_size(dim), dtype))
    return total


def pools_largest_backward(rank: int) -> PaddingRule:
    """The gradient of each real window goes to its place in the plane."""

    def rule(call: Call) -> Outcome:
        layout = spatial_first(call, "self", rank)
        plane = layout.dims[-rank:]
        grad = _windows(call, "grad_output", layout, rank)
        _windows(call, "indices", layout, rank)
        call.replace(
            "grad_output",
            call.hidden(call.value("grad_output"), grad, spatial_dims(grad, rank), 0),
        )
        if any(is_padded(dim) for dim in plane):
            places = call.sizes.physical_index(plane, call.value("indices"))
            call.replace("indices", places)
        return call.run(), [Layout(layout.dims)]

    return rule


def _windows(call: Call, name: str, layout: Layout, rank: int) -> Layout:
    """Lay a tensor with one position a window beside the pooled one; return how it lies."""
    own = spatial_first(call, name, rank)
    dims = (*layout.dims[:-rank], *own.dims[-rank:])
    call.replace(name, matched(call, call.value(name), own, dims))
    return Layout(dims)


def averages_windows(rank: int) -> PaddingRule:
    """The mean of each window over the last `rank` dims."""

    def rule(call: Call) -> Outcome:
        layout = spatial_first(call, "self", rank)
        space = spatial_dims(layout, rank)
        call.replace("self", call.hidden(call.value("self"), layout, space, 0))
        _tell_sizes(call, layout, rank)
        return call.run(), [_beside_batch(call, layout.dims[:-rank], rank)]

    return rule


def averages_windows_backward(rank: int) -> PaddingRule:
    """The gradient of each real window goes to all its positions."""

    def rule(call: Call) -> Outcome:
        layout = spatial_first(call, "self", rank)
        grad = _windows(call, "grad_output", layout, rank)
        space = spatial_dims(grad, rank)
        call.replace("grad_output", call.hidden(call.value("grad_output"), grad, space, 0))
        _tell_sizes(call, layout, rank)
        return call.run(), [Layout(layout.dims)]

    return rule


def _tell_sizes(call: Call, layout: Layout, rank: int) -> None:
    """Tell the op's rule, by its argument `real_sizes`, how many positions are real, if not all."""
    dims = layout.dims[-rank:]
    if any(is_padded(dim) for dim in dims):
        sizes = [call.sizes.number(logical_size(d)) if is_padded(d) else None for d in dims]
        call.replace("real_sizes", sizes)
