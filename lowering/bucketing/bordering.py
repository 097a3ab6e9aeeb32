"""The padding rules of borders around a tensor: constant, mirrored, repeated edges.

"Padding" of a bucket is called so here too; what the op adds is called a border.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lowering import hlo
from lowering.bucketing.atoms import Dim, Layout, is_padded, logical_size, physical_size
from lowering.bucketing.call import Call, Outcome
from lowering.bucketing.placing import (
    number,
    number_like,
    prefixed,
    put_first,
    rearranged,
    shifted,
    with_dims,
)
from lowering.dtypes import spec_of
from lowering.hlo_indexing import put
from lowering.hlo_scan import accumulation_dtype
from lowering.mlir import ir, stablehlo
from lowering.registry import PaddingRule


def _borders(call: Call, name: str, rank: int) -> list[tuple[int, Any, Any]]:
    """Return (dim, before, after) for torch's list, which starts at the last dim."""
    sizes = call.size(name)
    return [
        (rank - 1 - position, sizes[2 * position], sizes[2 * position + 1])
        for position in range(len(sizes) // 2)
    ]


def filled_around(call: Call) -> Outcome:
    """A constant around real elements; a border after them may be of a dynamic size."""
    fill = call.value("value", 0)
    if isinstance(fill, ir.Value) or not isinstance(call.size("value", 0), bool | int | float):
        raise call.decline("the value that it fills with is dynamic")
    rank = len(call.layout("self").dims)
    borders = _borders(call, "pad", rank)
    changed = [dim for dim, before, after in borders if before != 0 or after != 0]
    layout = put_first(call, "self", changed)
    value, plain = call.hidden(call.value("self"), layout, changed, fill), call.plain()
    for dim, before, _ in borders:
        if dim in changed:
            value = _bordered(call, value, before, physical_size(plain.dims[dim]), dim, fill)
    return value, [with_dims(layout, {dim: plain.dims[dim] for dim in changed})]


def _bordered(call: Call, value: ir.Value, before: Any, extent: int, dim: int, fill: Any) -> Any:
    """Return `extent` positions of a dim that starts with a border."""
    shape = value.type.shape
    low, high = [0] * len(shape), [0] * len(shape)
    if isinstance(before, int):
        low[dim], high[dim] = before, extent - before - shape[dim]
        return hlo.pad(value, low, high, fill)
    # Room for the longest border and, behind, for what is read from where this one starts.
    low[dim] = room = max(call.bound(before), 0)
    high[dim] = extent
    start = stablehlo.subtract(hlo.scalar(room, torch.int32), number(call, before))
    return shifted(hlo.pad(value, low, high, fill), start, extent, dim)


Mirror = Callable[[ir.Value, ir.Value], ir.Value]
"""Takes positions counted from the first real element, and the last one; gives those to read."""


def _reflected(place: ir.Value, last: ir.Value) -> ir.Value:
    place = stablehlo.abs(place)
    return stablehlo.subtract(last, stablehlo.abs(stablehlo.subtract(last, place)))


def _clamped(place: ir.Value, last: ir.Value) -> ir.Value:
    return stablehlo.maximum(stablehlo.minimum(place, last), hlo.full_like(place, 0))


def _continued(mirror: Mirror) -> PaddingRule:
    def rule(call: Call) -> Outcome:
        layout = call.layout("self")
        rank = len(layout.dims)
        borders = _borders(call, "padding", rank)
        if not any(is_padded(layout.dims[dim]) for dim, _, _ in borders) and _are_static(borders):
            plain = call.plain()
            result = with_dims(layout, {dim: plain.dims[dim] for dim, _, _ in borders})
            return call.run(), [result]
        value, plain = call.value("self"), call.plain()
        for dim, before, _ in borders:
            source = layout.dims[dim]
            value = rearranged(
                call, value, source, plain.dims[dim], dim, _places(call, source, before, mirror)
            )
        return value, [with_dims(layout, {dim: plain.dims[dim] for dim, _, _ in borders})]

    return rule


def _are_static(borders: list[tuple[int, Any, Any]]) -> bool:
    return all(isinstance(size, int) for _, *sizes in borders for size in sizes)


def _places(call: Call, source: Dim, before: Any, mirror: Mirror) -> Any:
    def places(logical: ir.Value) -> ir.Value:
        place = stablehlo.subtract(logical, number_like(call, before, logical))
        return mirror(place, number_like(call, logical_size(source) - 1, logical))

    return places


reflected = _continued(_reflected)
"""A mirror image about the first and the last real element."""

replicated = _continued(_clamped)
"""The first and the last real element repeated."""


def replicated_backward(call: Call) -> Outcome:
    """What fell on a border is added to the edge that it repeats."""
    layout, grown = call.layout("self"), call.layout("grad_output")
    rank = len(layout.dims)
    borders = _borders(call, "padding", rank)
    mixed = [dim for dim, _, _ in borders]
    if not any(is_padded(layout.dims[dim]) for dim in mixed) and _are_static(borders):
        wanted = [grown.dims[d] if d in mixed else layout.dims[d] for d in range(rank)]
        value = call.sizes.relayout(call.value("grad_output"), grown.dims, wanted)
        call.replace("grad_output", value)
        return call.run(), [Layout(layout.dims)]
    dtype = call.result.dtype
    value, plain = call.value("grad_output"), call.plain()
    value = hlo.convert(value, accumulation_dtype(dtype))
    for dim, before, _ in borders:
        value, source = prefixed(call, value, grown, dim)
        value = _folded(call, value, source, plain.dims[dim], before, dim)
    mine = [plain.dims[dim] if dim in mixed else grown.dims[dim] for dim in range(rank)]
    return hlo.convert(value, dtype), [Layout(tuple(mine))]


def _folded(
    call: Call, value: ir.Value, source: Dim, target: Dim, before: Any, dim: int
) -> ir.Value:
    shape = list(spec_of(value).shape)
    places = _places(call, target, before, _clamped)(call.sizes.linear_index([source]))
    if is_padded(source):
        beyond = hlo.full_like(places, physical_size(target))
        places = hlo.select(call.sizes.valid(source), places, beyond)
    shape[dim] = physical_size(target)
    total = hlo.full(shape, spec_of(value).dtype, 0)
    return put(total, [dim], [places], value, stablehlo.add)
