"""Scaled dot-product attention and its gradient, kept whole.

Query is `[batch, heads, queries, features]`, key and value are `[batch, key heads, keys,
features]`; a group of `heads / key heads` consecutive query heads shares a key head. Inside,
query-side tensors are `[batch, key heads, group, queries, ...]`. Scores are held in float32 for
16-bit floats.
"""

from __future__ import annotations

import math

import torch
from torch import fx

from lowering import hlo
from lowering.bucketing.attention import attended, attention_backward_padded
from lowering.context import LoweringContext
from lowering.dtypes import spec_of
from lowering.mlir import ir, stablehlo
from lowering.ops.matmul import accumulation_dtype, contract
from lowering.ops.normalization import as_result
from lowering.registry import lowering

aten = torch.ops.aten

# Dims of a query-side tensor, as batch dims and as the dim of features or keys.
BATCH, GROUP, QUERIES, LAST = (0, 1), 2, 3, 4


_FORWARD = aten._scaled_dot_product_flash_attention_for_cpu.default
_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def _dropout_reason(node: fx.Node) -> str | None:
    position = 3 if node.target is _FORWARD else 6
    dropout = node.args[position] if len(node.args) > position else node.kwargs.get("dropout_p", 0)
    return "it drops weights at random, which eager PyTorch refuses too" if dropout else None


@lowering(_FORWARD, padding=attended, check=_dropout_reason)
def attention(
    ctx: LoweringContext,
    query: ir.Value,
    key: ir.Value,
    value: ir.Value,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: ir.Value | None = None,
    scale: float | None = None,
) -> tuple[ir.Value, ir.Value]:
    """Return softmax(scale * query @ key^T + mask) @ value, and the logsumexp of each row.

    A row whose scores are all -inf gives output 0 and logsumexp 0. NaN scores give NaN, also
    where eager's vectorized maximum misses them.
    """
    query = _grouped(query, key)
    scores = _scores(ctx, query, key, attn_mask, is_causal, scale)
    # The TPU compiler fuses the softmax whole where it is maximum, difference, sum and quotient and
    # nothing in between. So a row of -inf needs no select: its maximum is the lowest finite value,
    # its weights are 0. The sum of any other row is at least 1, which its largest score gives.
    dtype = spec_of(scores).dtype
    largest = hlo.reduce(scores, [LAST], torch.finfo(dtype).min, stablehlo.maximum)
    weights = stablehlo.exponential(stablehlo.subtract(scores, _by_row(largest, scores)))
    total = hlo.reduce_sum(weights, [LAST])
    divisor = stablehlo.maximum(total, hlo.full_like(total, 1))
    weights = stablehlo.divide(weights, _by_row(divisor, weights))
    narrow = hlo.convert(weights, spec_of(value).dtype)
    output = contract(ctx, narrow, value, ([LAST], [2]), (BATCH, BATCH))
    zero = hlo.full_like(total, 0)
    masked = hlo.compare(total, zero, "EQ")
    logsumexp = hlo.select(masked, zero, stablehlo.add(largest, stablehlo.log(total)))
    return as_result(ctx, 0, output), as_result(ctx, 1, logsumexp)


@lowering(_BACKWARD, padding=attention_backward_padded, check=_dropout_reason)
def attention_backward(
    ctx: LoweringContext,
    grad_output: ir.Value,
    query: ir.Value,
    key: ir.Value,
    value: ir.Value,
    output: ir.Value,
    logsumexp: ir.Value,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: ir.Value | None = None,
    scale: float | None = None,
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Gradients of query, key and value.

    With weights P = exp(scores - logsumexp) and the row sums D of grad_output * output, the
    scores' gradient is S = P * (grad_output @ value^T - D); the results are scale * S @ key,
    scale * S^T @ query and P^T @ grad_output (FlashAttention-2, arXiv 2307.08691, section 3.1).
    Masked scores have P = 0, so rows without a key give no gradient.
    """
    dtype = spec_of(query).dtype
    wide = accumulation_dtype(dtype)
    query, grad, output = (_grouped(operand, key) for operand in (query, grad_output, output))
    scores = _scores(ctx, query, key, attn_mask, is_causal, scale)
    logsumexp = hlo.reshape(logsumexp, spec_of(scores).shape[:LAST])
    weights = stablehlo.exponential(stablehlo.subtract(scores, _by_row(logsumexp, scores)))

    product = stablehlo.multiply(hlo.convert(grad, wide), hlo.convert(output, wide))
    row_sums = hlo.reduce_sum(product, [LAST])
    grad_weights = contract(ctx, grad, value, ([LAST], [3]), (BATCH, BATCH))
    grad_scores = stablehlo.multiply(
        weights, stablehlo.subtract(grad_weights, _by_row(row_sums, scores))
    )
    factor = _scale(query, scale)
    grad_scores = stablehlo.multiply(grad_scores, hlo.full_like(grad_scores, factor))

    narrow_weights, narrow_scores = hlo.convert(weights, dtype), hlo.convert(grad_scores, dtype)
    over_rows = ([GROUP, QUERIES], [GROUP, QUERIES])
    grad_query = contract(ctx, narrow_scores, key, ([LAST], [2]), (BATCH, BATCH))
    grad_key = contract(ctx, narrow_scores, query, over_rows, (BATCH, BATCH))
    grad_value = contract(ctx, narrow_weights, grad, over_rows, (BATCH, BATCH))
    return as_result(ctx, 0, grad_query), as_result(ctx, 1, grad_key), as_result(ctx, 2, grad_value)


def _grouped(operand: ir.Value, key: ir.Value) -> ir.Value:
    """Return a query-side `[batch, heads, queries, last]` with its heads cut by key head."""
    batch, heads, queries, last = spec_of(operand).shape
    key_heads = spec_of(key).shape[1]
    return hlo.reshape(operand, [batch, key_heads, heads // max(key_heads, 1), queries, last])


def _scale(query: ir.Value, scale: float | None) -> float:
    return 1 / math.sqrt(spec_of(query).shape[LAST]) if scale is None else scale


def _scores(
    ctx: LoweringContext,
    query: ir.Value,
    key: ir.Value,
    mask: ir.Value | None,
    is_causal: bool,
    scale: float | None,
) -> ir.Value:
    """Return scale * query @ key^T + mask, -inf above the diagonal if causal.

    Query `i` sees keys up to `i`, whatever the number of keys. The mask is added; it broadcasts
    to `[batch, heads, queries, keys]`.
    """
    scores = contract(ctx, query, key, ([LAST], [3]), (BATCH, BATCH))
    scores = stablehlo.multiply(scores, hlo.full_like(scores, _scale(query, scale)))
    spec = spec_of(scores)
    batch, key_heads, group, queries, keys = spec.shape
    if mask is not None:
        mask = hlo.convert(mask, spec.dtype)
        mask = hlo.broadcast_to(mask, [batch, key_heads * group, queries, keys])
        scores = stablehlo.add(scores, hlo.reshape(mask, spec.shape))
    if is_causal:
        plane = [queries, keys]
        seen = hlo.compare(hlo.iota(plane, 1), hlo.iota(plane, 0), "LE")
        seen = hlo.broadcast_to(seen, spec.shape)
        scores = hlo.select(seen, scores, hlo.full_like(scores, -math.inf))
    return scores


def _by_row(rows: ir.Value, like: ir.Value) -> ir.Value:
    """Return one number a row, `[batch, key heads, group, queries]`, broadcast along the rows."""
    return hlo.broadcast_in_dim(rows, spec_of(like).shape, range(LAST))
