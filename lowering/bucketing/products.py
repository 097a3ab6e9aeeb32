"""The padding rules of products that sum over more than one dim.

Padding of summed dims is zero in every factor, as in `contractions`.
"""

from __future__ import annotations

from collections.abc import Sequence

from lowering.bucketing.atoms import Dim, Layout
from lowering.bucketing.call import Call, Outcome
from lowering.bucketing.contractions import take_factors
from lowering.bucketing.rules import broadcast_dims, matched


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
