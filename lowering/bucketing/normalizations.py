"""The padding rules of softmax and of normalizations over static dims."""

from __future__ import annotations

import torch

from lowering.bucketing.atoms import Layout, is_padded
from lowering.bucketing.call import Call, Fill, Outcome
from lowering.bucketing.rules import aligned, results

_WEIGHTS = (torch.ops.aten._softmax.default, torch.ops.aten._safe_softmax.default)


def softmaxed(call: Call) -> Outcome:
    """Softmax or log-softmax over `dim`, whose padding weighs nothing."""
    layout = call.layout("self")
    dim = call.value("dim") % max(len(layout.dims), 1)
    if not layout.dims or not is_padded(layout.dims[dim]):
        return results(call, call.run(), Layout(layout.dims))
    call.hide("self", [dim], Fill.LOWEST)
    value = call.run()
    # exp(-inf) is zero, unless a whole row is -inf; that row is NaN, in eager too.
    zeros = {dim} if call.node.target in _WEIGHTS else set()
    return results(call, value, Layout(layout.dims, frozenset(zeros)))


def softmax_backward(call: Call) -> Outcome:
    """The gradient of softmax or log-softmax: padding of `dim` adds nothing to its sum."""
    layout = aligned(call, ["grad_output", "output"])
    dim = call.value("dim") % max(len(layout.dims), 1)
    for name in ("grad_output", "output"):
        call.replace(name, call.hidden(call.value(name), layout, [dim], 0))
    return results(call, call.run(), layout)


def layer_normalized(call: Call) -> Outcome:
    """Layer norm over trailing static dims: every row by itself."""
    layout = call.layout("input")
    count = len(call.value("normalized_shape"))
    kept = len(layout.dims) - count
    if any(is_padded(dim) for dim in layout.dims[kept:]):
        raise call.decline("it normalizes over a padded dim")
    specs = call.ctx.specs(call.node)
    whole = Layout(layout.dims)
    moments = Layout((*layout.dims[:kept], *[()] * count))
    layouts = [None if s is None else moments for s in specs]
    layouts[0] = whole
    return call.run(), layouts
