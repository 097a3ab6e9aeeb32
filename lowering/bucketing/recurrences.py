"""The padding rules of recurrent layers: a padded batch, and a run-time number of steps."""

from __future__ import annotations

from lowering.bucketing.atoms import Layout, is_padded, is_prefix, logical_size, static_layout
from lowering.bucketing.call import Call, Outcome

_WEIGHTS = ("weight0", "weight1", "weight2", "weight3", "weight4")
_BY_STEP = ("input", "output", "grad_output")
_STATES = ("hx_", "cx_", "cx_tmp", "hy_", "cy_", "grad_hy", "grad_cy")


def recurs(call: Call) -> Outcome:
    """An LSTM layer over `[time, batch, features]`, or its gradient.

    All padding is zero: then every gate is finite there, and every gradient zero.
    """
    time, batch, _ = call.layout("input").dims
    if not is_prefix(time):
        raise call.decline("its steps are a view of several dynamic dims")
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
    layouts: list[Layout | None] = []
    for spec in call.ctx.specs(call.node):
        index = len(layouts)
        if spec is None:
            layouts.append(None)
        elif call.result_sizes(index) == list(spec.shape):
            layouts.append(static_layout(spec.shape))
        else:
            rank = len(spec.shape)
            whole = index == 0
            lead = (time,) if whole else ((),) * (rank - 2)
            layouts.append(Layout((*lead, batch, *static_layout(spec.shape[-1:]).dims)))
    return call.run(), layouts
