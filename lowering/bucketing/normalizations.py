"""The padding rules of softmax and of normalizations: statistics are taken over real positions."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lowering.bucketing.atoms import Dim, Layout, dim_of, is_padded, is_prefix, physical_size
from lowering.bucketing.call import Call, Fill, Outcome
from lowering.bucketing.moments import counts_real
from lowering.bucketing.rules import matched, results

_BY_BATCH = (torch.ops.aten._batch_norm_with_update_functional.default,)

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


def layer_normalized(call: Call) -> Outcome:
    """Layer norm over trailing dims: every row by itself."""
    layout = call.layout("input")
    kept = len(layout.dims) - len(call.value("normalized_shape"))
    call.names_shape("normalized_shape")
    for name in ("weight", "bias"):
        if call.value(name) is not None:
            call.replace(name, matched(call, call.value(name), call.layout(name), layout.dims))
    counts_real(call, layout, range(kept, len(layout.dims)))
    return _normalized(call, layout, [*layout.dims[:kept], *[()] * (len(layout.dims) - kept)])


def _normalized(call: Call, layout: Layout, moments: Sequence[Dim]) -> Outcome:
    """Return an outcome of a normalized operand, a mean and a deviation."""
    layouts = [None if s is None else Layout(tuple(moments)) for s in call.ctx.specs(call.node)]
    layouts[0] = Layout(layout.dims)
    return call.run(), layouts


def group_normalized(call: Call) -> Outcome:
    """Group norm: the statistics of each group of channels, over real positions."""
    layout = call.layout("input")
    batch, channels, *spatial = layout.dims
    if is_padded(channels):
        raise call.decline("its channels are a dynamic dim")
    call.names_shape("N", "C", "HxW")
    positions = tuple([atom for dim in spatial for atom in dim])
    count = call.size("group")
    call.replace("N", physical_size(batch))
    call.replace("HxW", physical_size(positions))
    within = physical_size(channels) // count
    groups = dim_of(count, count)
    grouped = Layout((batch, groups, dim_of(within, within), positions))
    counts_real(call, grouped, [2, 3])
    return _normalized(call, layout, [batch, groups])


def weight_norm_backward(call: Call) -> Outcome:
    """The gradients of weight norm, whose sums run over every dim but one."""
    direction = Layout(call.layout("saved_v").dims)
    dim = call.value("dim") % len(direction.dims)
    magnitude = [own if i == dim else () for i, own in enumerate(direction.dims)]
    others = [other for other in range(len(direction.dims)) if other != dim]
    for name, dims in (
        ("grad_w", direction.dims),
        ("saved_g", magnitude),
        ("saved_norms", magnitude),
    ):
        call.replace(name, matched(call, call.value(name), call.layout(name), dims))
    # Both, as a product with what is not a number is none either.
    for name in ("grad_w", "saved_v"):
        call.replace(name, call.hidden(call.value(name), direction, others, 0))
    return call.run(), [direction, Layout(tuple(magnitude))]


def batch_normalized(call: Call) -> Outcome:
    """Batch norm by the statistics of the batch (over real positions) or by given ones."""
    layout = call.layout("input")
    channels = layout.dims[1]
    if not is_prefix(channels):
        raise call.decline("its channels are a view of several dynamic dims")
    for name in ("weight", "bias", "running_mean", "running_var"):
        if name in call.tensors():
            value = matched(call, call.value(name), call.layout(name), [channels])
            call.replace(name, value)
    by_batch = call.node.target in _BY_BATCH or call.value("training", False)
    if by_batch:
        counts_real(call, layout, [0, *range(2, len(layout.dims))])
    # The channels of a statistic may be another symbol than those of the input: equal all the same.
    specs = call.ctx.specs(call.node)
    layouts = [None if spec is None else call.plain(index) for index, spec in enumerate(specs)]
    for found in layouts[1:]:
        if found is not None and found.is_padded and found.shape != (physical_size(channels),):
            raise call.decline("its statistics have another bucket")
    layouts[0] = Layout(layout.dims)
    return call.run(), layouts
