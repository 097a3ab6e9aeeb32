"""The padding rules of recurrent layers: a padded batch, and a run-time number of steps."""

from __future__ import annotations

from lowering.bucketing.atoms import (
    Layout,
    dim_of,
    is_padded,
    is_prefix,
    logical_size,
    physical_size,
)
from lowering.bucketing.call import Call, Outcome

_WEIGHTS = ("weight0", "weight1", "weight2", "weight3", "weight4")
_BY_STEP = ("input", "output", "grad_output")
_STATES = ("hx_", "cx_", "cx_tmp", "hy_", "cy_", "grad_hy", "grad_cy")


def recurs(call: Call) -> Outcome:
    """An LSTM layer over `[time, batch, features]`, or its gradient.

    All padding is zero: then every gate is finite there, and every gradient zero.
    """
    time, batch, _ = (
        dim if is_prefix(dim) else dim_of(logical_size(dim), physical_size(dim))
        for dim in call.layout("input").dims
    )
    for name in call.tensors():
        layout = call.layout(name)
        if name in _WEIGHTS and layout.is_padded:
            raise call.decline("a dim of its weights is dynamic")
        if name in (*_BY_STEP, *_STATES):
            rank = len(layout.dims)
            # A state may have a dim of size 1 before the batch.
            lead = [time] if name in _BY_STEP else [()] * (rank - 2)
            dims = (*lead, batch, *layout.dims[-1:])
            value = call.sizes.relayout(call.value(name), layout.dims, dims)
            call.replace(name, call.hidden(value, Layout(dims), range(rank), 0))
    if is_padded(time):
        call.replace("real_steps", call.sizes.number(logical_size(time)))
    # The batch of a state may be another symbol than that of the input: equal all the same.
    specs = call.ctx.specs(call.node)
    layouts = [None if spec is None else call.plain(index) for index, spec in enumerate(specs)]
    for found in layouts:
        if found is None or not found.is_padded:
            continue
        if physical_size(found.dims[-2]) != physical_size(batch):
            raise call.decline("the batches of its input and its states have other buckets")
    return call.run(), layouts
