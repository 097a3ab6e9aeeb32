"""The padding rules of variances and norms: what is counted and summed is real."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lowering import hlo
from lowering.bucketing.atoms import Layout, is_padded
from lowering.bucketing.call import Call, Outcome
from lowering.bucketing.rules import aligned, reduced_dims, results, without
from lowering.dtypes import real_dtype, spec_of
from lowering.mlir import ir


def unnoticed(order: complex) -> float:
    """Return what a norm of `order` does not notice among its operands."""
    return math.inf if order == -math.inf else 0


class RealCount:
    """The real elements along some dims of a tensor, for the op's rule to count and to sum."""

    def __init__(self, call: Call, layout: Layout, dims: Sequence[int]) -> None:
        self._call = call
        self._layout = layout
        self._dims = dims

    def hidden(self, value: ir.Value, fill: float = 0) -> ir.Value:
        """Return `value` with `fill` for padding."""
        return self._call.hidden(value, Layout(self._layout.dims), self._dims, fill)

    def number(self, like: ir.Value) -> ir.Value:
        """Return how many there are, in shape and dtype of `like`."""
        spec = spec_of(like)
        count = self._call.element_count(self._layout, self._dims, real_dtype(spec.dtype))
        return hlo.broadcast_to(hlo.convert(count, spec.dtype), spec.shape)


def counts_real(call: Call, layout: Layout, dims: Sequence[int]) -> None:
    """Tell the op's rule, by its argument `real`, which elements along `dims` are real."""
    if any(is_padded(layout.dims[dim]) for dim in dims):
        call.replace("real", RealCount(call, layout, dims))


def deviates(call: Call) -> Outcome:
    """Variance, and mean if asked for: of the real elements, in two passes."""
    layout = call.layout("self")
    dims = reduced_dims(call)
    counts_real(call, layout, dims)
    reduced = without(layout, dims, keepdim=bool(call.value("keepdim", False)))
    return results(call, call.run(), reduced)


def measures(call: Call) -> Outcome:
    """A vector norm over `dim` (or all): padding adds nothing to it."""
    layout = call.layout("self")
    dims = reduced_dims(call)
    call.hide("self", dims, unnoticed(call.value("ord", 2)))
    reduced = without(layout, dims, keepdim=bool(call.value("keepdim", False)))
    return results(call, call.run(), reduced)


def measures_distance(call: Call) -> Outcome:
    """The norm of the difference of two tensors, broadcast."""
    layout = aligned(call, ["self", "other"])
    counts_real(call, layout, range(len(layout.dims)))
    return call.run(), [Layout(())]
