"""The padding rules of ops that treat each entry of a batch by itself.

Their own dims, the last ones of each operand, must be static; the batch may be padded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lowering.bucketing.atoms import Dim, Layout, is_padded, static_layout
from lowering.bucketing.call import Call, Outcome
from lowering.bucketing.rules import broadcast_dims, matched
from lowering.dtypes import TensorSpec
from lowering.registry import PaddingRule


def batched(**own: int | Callable[[Call], int]) -> PaddingRule:
    """An op whose tensor arguments have so many own dims, after batch dims that are broadcast.

    Padding is zero, so that no iteration meets a matrix with which it would not end.
    """

    def rule(call: Call) -> Outcome:
        counts = {
            name: count if isinstance(count, int) else count(call)
            for name, count in own.items()
            if call.value(name) is not None
        }
        batch = shared_batch(call, counts)
        specs = call.ctx.specs(call.node)
        return call.run(), [None if spec is None else _result(spec, batch) for spec in specs]

    return rule


def shared_batch(call: Call, own: dict[str, int]) -> list[Dim]:
    """Lay out the batch dims of tensors alike, zero their padding and return these dims.

    Raises:
        NoPaddingRuleError: an own dim of one is padded.
    """
    layouts = []
    for name, count in own.items():
        dims = call.layout(name).dims
        kept = len(dims) - count
        if any(is_padded(dim) for dim in dims[kept:]):
            raise call.decline(f"a dim of its `{name}` that it mixes is dynamic")
        layouts.append(Layout(dims[:kept]))
    batch = broadcast_dims(layouts, max(len(layout.dims) for layout in layouts))
    for name, layout in zip(own, layouts, strict=True):
        whole = call.layout(name)
        rest = whole.dims[len(layout.dims) :]
        call.replace(name, matched(call, call.value(name), whole, [*batch, *rest]))
        offset = len(batch) - len(layout.dims)
        lying = Layout((*(d and batch[offset + i] for i, d in enumerate(layout.dims)), *rest))
        call.replace(name, call.hidden(call.value(name), lying, range(len(layout.dims)), 0))
    return batch


def _result(spec: TensorSpec, batch: Sequence[Dim]) -> Layout:
    if 0 in spec.shape:
        return static_layout(spec.shape)
    return Layout((*batch, *static_layout(spec.shape[len(batch) :]).dims))
