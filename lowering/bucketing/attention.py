"""The padding rules of fused attention: no row looks at a padded key."""

from __future__ import annotations

import math

import torch

from lowering import hlo
from lowering.bucketing.atoms import Dim, Layout, is_padded, physical_size
from lowering.bucketing.call import Call, Outcome
from lowering.bucketing.rules import matched
from lowering.dtypes import spec_of
from lowering.mlir import ir, stablehlo

BATCH, HEADS, ROWS, FEATURES = range(4)


def attended(call: Call) -> Outcome:
    """Attention of `query`, `key`, `value`, all `[batch, heads, rows, features]`."""
    query = call.layout("query")
    _hide_keys(call, query)
    rows = query.dims[:FEATURES]
    output = Layout((*rows, call.layout("value").dims[FEATURES]))
    return call.run(), [output, Layout(rows)]


def attention_backward_padded(call: Call) -> Outcome:
    """The gradients: rows and keys that are padding take no part in any sum."""
    query, key, value = (call.layout(name) for name in ("query", "key", "value"))
    _hide_keys(call, query)
    _hide_rows_of_mask(call, query)
    for name in ("grad_out", "query", "out", "logsumexp"):
        layout = call.layout(name)
        wanted = [*query.dims[:FEATURES], *layout.dims[FEATURES:]]
        operand = call.sizes.relayout(call.value(name), layout.dims, wanted)
        moved = Layout(tuple(wanted), layout.zeros if tuple(wanted) == layout.dims else frozenset())
        call.replace(name, call.hidden(operand, moved, [ROWS], 0))
    return call.run(), [Layout(query.dims), Layout(key.dims), Layout(value.dims)]


def _hide_keys(call: Call, query: Layout) -> None:
    """Make the padding of keys and values zero, and its weights with a mask."""
    batch = query.dims[BATCH]
    keys = call.layout("key").dims[ROWS]
    for name in ("key", "value"):
        layout = call.layout(name)
        wanted = [batch, layout.dims[HEADS], keys, layout.dims[FEATURES]]
        operand = call.sizes.relayout(call.value(name), layout.dims, wanted)
        moved = Layout(tuple(wanted), layout.zeros if tuple(wanted) == layout.dims else frozenset())
        call.replace(name, call.hidden(operand, moved, [ROWS], 0))
    mask = call.value("attn_mask")
    dims = [batch, query.dims[HEADS], query.dims[ROWS], keys]
    if mask is not None:
        mask = matched(call, mask, call.layout("attn_mask"), dims)
    if is_padded(keys):
        mask = _without_padded_keys(call, mask, keys)
    if mask is not None:
        call.replace("attn_mask", mask)


def _hide_rows_of_mask(call: Call, query: Layout) -> None:
    """Have rows that are padding weigh nothing, of which the mask may say anything.

    Gradients of keys and values are sums over rows: a weight of NaN would show there.
    """
    rows = query.dims[ROWS]
    mask = call.value("attn_mask")
    if mask is None or not is_padded(rows):
        return
    spec = spec_of(mask)
    if spec.shape[-2] == 1:
        return
    valid = hlo.broadcast_in_dim(call.sizes.valid(rows), spec.shape, [len(spec.shape) - 2])
    nothing = False if spec.dtype is torch.bool else -math.inf
    call.replace("attn_mask", hlo.select(valid, mask, hlo.full(spec.shape, spec.dtype, nothing)))


def _without_padded_keys(call: Call, mask: ir.Value | None, keys: Dim) -> ir.Value:
    count = physical_size(keys)
    valid = call.sizes.valid(keys)
    if mask is None:
        dtype = spec_of(call.value("query")).dtype
        mask = hlo.full([1, 1, 1, count], dtype, 0)
    spec = spec_of(mask)
    shape = [*spec.shape[:-1], count]
    mask = hlo.broadcast_to(mask, shape)
    valid = hlo.broadcast_in_dim(valid, shape, [len(shape) - 1])
    if spec.dtype is torch.bool:
        return stablehlo.and_(mask, valid)
    return hlo.select(valid, mask, hlo.full(shape, spec.dtype, -math.inf))
