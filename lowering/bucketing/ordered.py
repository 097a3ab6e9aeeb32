"""The padding rules of what depends on the order along a dim: running totals, sorting, extremes.

Real positions come first and padding is filled with what sorts last: of equal elements the first
wins, so a real one does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from lowering import hlo
from lowering.bucketing.atoms import Dim, Layout, is_padded, is_prefix, physical_size
from lowering.bucketing.call import Call, Fill, Outcome
from lowering.bucketing.placing import put_first, with_dims
from lowering.bucketing.rules import results, without
from lowering.bucketing.run_time import take_along
from lowering.dtypes import spec_of
from lowering.registry import PaddingRule


def runs(fill: Any) -> PaddingRule:
    """A running total along `dim` that `fill` leaves be; padding behind it need not be filled."""

    def rule(call: Call) -> Outcome:
        layout = call.layout("self")
        if layout.dims:
            dim = call.value("dim") % len(layout.dims)
            if not is_prefix(layout.dims[dim]):
                call.hide("self", [dim], fill)
        return results(call, call.run(), Layout(layout.dims))

    return rule


def runs_in_front(call: Call) -> Outcome:
    """A running result along `dim`, with positions or without a value that leaves it be."""
    rank = len(call.layout("self").dims)
    layout = put_first(call, "self", [call.value("dim") % rank] if rank else [])
    return results(call, call.run(), Layout(layout.dims))


# --- sorting --------------------------------------------------------------------------------------


def _last(dtype: torch.dtype, *, descending: bool) -> Any:
    """Return what no element sorts behind: NaN counts as the largest."""
    if descending:
        return Fill.LOWEST
    return math.nan if dtype.is_floating_point else Fill.HIGHEST


def _ordered(call: Call, dims: Sequence[int], *, descending: bool = False) -> Layout:
    """Give the op's rule `self` with padding behind everything along `dims`; its layout."""
    layout = put_first(call, "self", dims)
    value = call.value("self")
    fill = _last(spec_of(value).dtype, descending=descending)
    call.replace("self", call.hidden(value, layout, dims, fill))
    return Layout(layout.dims)


def _dim(call: Call) -> list[int]:
    rank = len(call.layout("self").dims)
    return [call.value("dim", -1) % rank] if rank else []


def sorts(call: Call) -> Outcome:
    """A dim sorted stably, and where its elements were."""
    layout = _ordered(call, _dim(call), descending=bool(call.value("descending", False)))
    return results(call, call.run(), layout)


def takes_top(call: Call) -> Outcome:
    """The first `k` of a dim in order."""
    dims = _dim(call)
    layout = _ordered(call, dims, descending=bool(call.value("largest", True)))
    call.names_shape("k")
    if not dims:
        return results(call, call.run(), layout)
    (dim,) = dims
    target = call.plain().dims[dim]
    count = physical_size(target)
    call.replace("k", count)
    if call.value("self").type.shape[dim] < count:
        raise call.decline("no bound is known for how many it takes")
    return results(call, call.run(), with_dims(layout, {dim: target}))


def takes_place(call: Call) -> Outcome:
    """The element at one place of a sorted dim; a dynamic place is given to the op's rule."""
    place = call.size("k")
    if not isinstance(place, int):
        call.replace("k", call.sizes.number(place))
    dims = _dim(call)
    layout = _ordered(call, dims)
    return results(call, call.run(), _reduced(call, layout, dims))


def takes_counted_place(call: Call) -> Outcome:
    """The element at a place of a sorted dim (or of all) that depends on how many there are.

    The op's rule is told how many: `size`, a 0-d i32.
    """
    everywhere = list(range(len(call.layout("self").dims)))
    dims = _dim(call) if "dim" in call.names else everywhere
    layout = _ordered(call, dims)
    if any(is_padded(layout.dims[dim]) for dim in dims):
        call.replace("size", call.element_count(layout, dims, torch.int32))
    return results(call, call.run(), _reduced(call, layout, dims))


def _reduced(call: Call, layout: Layout, dims: Sequence[int]) -> Layout:
    return without(layout, dims, keepdim=bool(call.value("keepdim", False)))


# --- extremes -------------------------------------------------------------------------------------


def finds_extreme(fill: Fill) -> PaddingRule:
    """The extreme of a dim and where it is, or where that of all is; `fill` is never it."""

    def rule(call: Call) -> Outcome:
        layout = call.layout("self")
        rank = len(layout.dims)
        given = call.value("dim")
        dims = list(range(rank)) if given is None or not rank else [given % rank]
        call.hide("self", dims, fill)
        found = call.run()
        reduced = _reduced(call, layout, dims)
        if isinstance(found, tuple):
            value, index = found
            return (value, _logical(call, index, layout, dims)), [reduced, reduced]
        return _logical(call, found, layout, dims), [reduced]

    return rule


def _logical(call: Call, index: Any, layout: Layout, dims: Sequence[int]) -> Any:
    """Return row-major positions in `dims`, physical ones, as logical ones."""
    lying: list[Dim] = [layout.dims[dim] for dim in dims]
    if is_prefix(sum(lying, ())):
        return index
    spec = spec_of(index)
    table = call.sizes.linear_index(lying)
    count = math.prod(physical_size(dim) for dim in lying)
    flat = hlo.reshape(index, [math.prod(spec.shape)])
    found = take_along(hlo.reshape(table, [count]), hlo.convert(flat, torch.int32), 0)
    return hlo.convert(hlo.reshape(found, spec.shape), spec.dtype)
