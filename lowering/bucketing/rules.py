"""The padding rules that many op families share: element by element, reductions, creation.

Those of one family are beside it: `views`, `contractions` and so on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lowering import hlo
from lowering.bucketing.atoms import Dim, Layout, is_padded
from lowering.bucketing.call import Call, Outcome
from lowering.dtypes import is_integer, opmath_dtype, spec_of
from lowering.mlir import ir, stablehlo
from lowering.registry import PaddingRule


def results(call: Call, value: Any, layout: Layout) -> Outcome:
    """Return an outcome whose results all have `layout`."""
    specs = call.ctx.specs(call.node)
    return value, [None if spec is None else layout for spec in specs]


# --- element by element ---------------------------------------------------------------------


def flows(call: Call) -> Outcome:
    """Element by element, with broadcasting: padding reaches padding only."""
    call.numbers_at_run_time()
    return results(call, *_elementwise(call))


def flows_zero(call: Call) -> Outcome:
    """Element by element, and zero of zeros: padding that is zero stays so."""
    call.numbers_at_run_time()
    tensors = call.tensors()
    layouts = [call.layout(name) for name in tensors]
    value, layout = _elementwise(call)
    rank = len(layout.dims)
    zeros = frozenset(
        dim
        for dim in range(rank)
        if all(_position(dim, rank, other) in other.zeros for other in layouts)
    )
    # Zero times an infinite number is none.
    if not all(math.isfinite(n) for n in call.numbers()):
        zeros = frozenset()
    return results(call, value, Layout(layout.dims, zeros))


def _position(dim: int, rank: int, layout: Layout) -> int:
    return dim - (rank - len(layout.dims))


def _elementwise(call: Call) -> tuple[Any, Layout]:
    names = call.tensors()
    layout = aligned(call, names)
    return call.run(), layout


def aligned(call: Call, names: Sequence[str]) -> Layout:
    """Give the tensors `names` one layout for broadcasting, and return that of the result."""
    layouts = [call.layout(name) for name in names]
    rank = max((len(layout.dims) for layout in layouts), default=0)
    dims = list(broadcast_dims(layouts, rank))
    for name, layout in zip(names, layouts, strict=True):
        call.replace(name, matched(call, call.value(name), layout, dims))
    return Layout(tuple(dims))


def broadcast_dims(layouts: Sequence[Layout], rank: int) -> list[Dim]:
    """Return, for each dim of a broadcast result, the dim that the operands are to have."""
    chosen: list[Dim] = [()] * rank
    # What has most elements is moved least.
    ordered = sorted(layouts, key=lambda layout: -_elements(layout))
    for layout in ordered:
        offset = rank - len(layout.dims)
        for position, dim in enumerate(layout.dims):
            if dim and not chosen[offset + position]:
                chosen[offset + position] = dim
    return chosen


def matched(call: Call, value: ir.Value, layout: Layout, dims: Sequence[Dim]) -> ir.Value:
    """Return `value` with its elements where `dims` (aligned at the right) has them."""
    offset = len(dims) - len(layout.dims)
    target = [dims[offset + position] if dim else dim for position, dim in enumerate(layout.dims)]
    return call.sizes.relayout(value, layout.dims, target)


def _elements(layout: Layout) -> int:
    count = 1
    for size in layout.shape:
        count *= size
    return count


# --- reductions -----------------------------------------------------------------------------


def reduced_dims(call: Call, name: str = "self", dims_name: str = "dim") -> list[int]:
    """Return the dims of tensor `name` that the op reduces; all if it names none."""
    rank = len(call.layout(name).dims)
    return hlo.canonical_dims(call.value(dims_name), rank)


def without(layout: Layout, dims: Sequence[int], *, keepdim: bool) -> Layout:
    """Return the layout after a reduction over `dims`."""
    kept = [
        () if position in dims else dim
        for position, dim in enumerate(layout.dims)
        if keepdim or position not in dims
    ]
    return Layout(tuple(kept))


def reduces(fill: Any, *, operand: str = "self") -> PaddingRule:
    """A reduction over the argument `dim` (or all) that `fill`, a number or a `Fill`, leaves be."""

    def rule(call: Call) -> Outcome:
        layout = call.layout(operand)
        dims = reduced_dims(call, operand)
        call.hide(operand, dims, fill)
        reduced = without(layout, dims, keepdim=bool(call.value("keepdim", False)))
        return results(call, call.run(), reduced)

    return rule


def averages(call: Call) -> Outcome:
    """A mean over `dim` (or all): of the real elements, of which there are fewer."""
    layout = call.layout("self")
    dims = reduced_dims(call)
    reduced = without(layout, dims, keepdim=bool(call.value("keepdim", False)))
    if not any(is_padded(layout.dims[dim]) for dim in dims):
        return call.run(), [reduced]
    dtype = call.result.dtype
    wide = opmath_dtype(dtype)
    operand = hlo.convert(call.hidden(call.value("self"), layout, dims, 0), wide)
    total = hlo.reduce_sum(operand, dims)
    count = hlo.broadcast_to(call.element_count(layout, dims, wide), spec_of(total).shape)
    mean = stablehlo.divide(total, count)
    return hlo.convert(hlo.reshape(mean, call.result.shape), dtype), [reduced]


# --- creation and identity --------------------------------------------------------------------


def creates(call: Call) -> Outcome:
    """The same value at every position, whatever the sizes: real positions first."""
    call.names_shape("size", "stride")
    call.numbers_at_run_time()
    value = call.run()
    specs = call.ctx.specs(call.node)
    return value, [None if s is None else call.plain(index) for index, s in enumerate(specs)]


def counted(call: Call) -> Outcome:
    """`arange`: its end names the shape; start and step may be dynamic if they are whole."""
    call.names_shape("end", "start", "step")
    start, step = call.size("start", 0), call.size("step", 1)
    if isinstance(start, int | float) and isinstance(step, int | float):
        return call.run(), [call.plain()]
    if not is_integer(call.result.dtype):
        raise call.decline("it counts in fractions by a dynamic step or from a dynamic start")
    dtype, shape = call.result.dtype, call.result.shape
    start, step = (
        hlo.broadcast_to(call.sizes.number(size, dtype), shape) for size in (start, step)
    )
    counts = hlo.iota(shape, 0, dtype)
    return stablehlo.add(start, stablehlo.multiply(counts, step)), [call.plain()]
