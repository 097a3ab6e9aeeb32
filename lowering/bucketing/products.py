"""The padding rules of products with more than one summed dim, of groups of rows, with scales.

Padding of summed dims is zero in every factor, as in `contractions`.
"""

from __future__ import annotations

from collections.abc import Sequence

from lowering.bucketing.atoms import Dim, Layout, is_padded
from lowering.bucketing.call import Call, Outcome
from lowering.bucketing.contractions import take_factors
from lowering.bucketing.placing import front
from lowering.bucketing.rules import broadcast_dims, matched
from lowering.registry import PaddingRule


def _lay(call: Call, name: str, dims: Sequence[Dim], along: Sequence[int]) -> None:
    """Give the op's rule tensor `name` in `dims`, zero in the padding along some of them."""
    value = call.sizes.relayout(call.value(name), call.layout(name).dims, dims)
    call.replace(name, call.hidden(value, Layout(tuple(dims)), along, 0))


def batches_added(call: Call) -> Outcome:
    """A tensor plus the sum over the batch of products of matrices."""
    batch, rows, inner = call.layout("batch1").dims
    columns = call.layout("batch2").dims[2]
    _lay(call, "batch1", [batch, rows, inner], [0, 2])
    _lay(call, "batch2", [batch, inner, columns], [0, 1])
    result = [rows, columns]
    call.replace("self", matched(call, call.value("self"), call.layout("self"), result))
    take_factors(call)
    return call.run(), [Layout(tuple(result))]


def three_multiplied(call: Call) -> Outcome:
    """Three tensors, each with dims of size 1 inserted, multiplied and summed over some dims."""
    names, at = ("i1", "i2", "i3"), ("expand1", "expand2", "expand3")
    rank = len(call.layout("i1").dims) + len(call.value("expand1"))
    inserted = [{dim % rank for dim in call.value(name)} for name in at]
    layouts = []
    for name, new in zip(names, inserted, strict=True):
        given = iter(call.layout(name).dims)
        layouts.append(Layout(tuple([() if at in new else next(given) for at in range(rank)])))
    dims = broadcast_dims(layouts, rank)
    summed = {dim % rank for dim in call.value("sumdim")}
    for name, new, layout in zip(names, inserted, layouts, strict=True):
        kept = [at for at in range(rank) if at not in new]
        lies = [dims[at] if layout.dims[at] else () for at in kept]
        _lay(call, name, lies, [own for own, at in enumerate(kept) if at in summed])
    return call.run(), [Layout(tuple([dim for at, dim in enumerate(dims) if at not in summed]))]


def scaled_product(call: Call) -> Outcome:
    """A product of two matrices with a scale for each, or for each row and column."""
    rows, inner = call.layout("self").dims
    columns = call.layout("mat2").dims[1]
    _lay(call, "self", [rows, inner], [1])
    _lay(call, "mat2", [inner, columns], [0])
    result = [rows, columns]
    for name in ("scale_a", "scale_b", "bias"):
        if call.value(name) is not None:
            call.replace(name, matched(call, call.value(name), call.layout(name), result))
    return call.run(), [Layout(tuple(result))]


# --- groups -----------------------------------------------------------------------------------


def grouped(left: str, right: str) -> PaddingRule:
    """Products of groups that lie one after the other; what is past the last end is in none."""

    def rule(call: Call) -> Outcome:
        first, second = call.layout(left).dims, call.layout(right).dims
        if call.value("offs") is None:
            batch, rows, inner = first
            _lay(call, left, first, [2])
            _lay(call, right, [batch, inner, second[2]], [1])
            return call.run(), [Layout((batch, rows, second[2]))]
        if is_padded(call.layout("offs").dims[0]):
            raise call.decline("its number of groups is dynamic")
        groups = call.layout("offs").dims[0]
        if len(first) == 2 and len(second) == 2:
            inner = front(first[1])
            _lay(call, left, [first[0], inner], [1])
            _lay(call, right, [inner, second[1]], [0])
            return call.run(), [Layout((groups, first[0], second[1]))]
        if len(first) == 2:
            rows = front(first[0])
            _lay(call, left, [rows, first[1]], [1])
            _lay(call, right, [groups, first[1], second[2]], [1])
            return call.run(), [Layout((rows, second[2]))]
        columns = front(second[1])
        _lay(call, right, [first[2], columns], [0])
        _lay(call, left, [groups, *first[1:]], [2])
        return call.run(), [Layout((first[1], columns))]

    return rule


def grouped_backward(call: Call) -> Outcome:
    """The gradients of groups of rows and of their matrices."""
    rows = front(call.layout("input").dims[0])
    inner, columns = call.layout("weight").dims[1:]
    if any(is_padded(dim) for dim in (*call.layout("weight").dims, *call.layout("offs").dims)):
        raise call.decline("its matrices are padded")
    _lay(call, "input", [rows, inner], [0])
    _lay(call, "grad_output", [rows, columns], [0])
    return call.run(), [Layout((rows, inner)), Layout(call.layout("weight").dims)]
