"""Flex attention and its gradient: attention whose scores pass through functions of the user's.

The arithmetic is that of `torch._higher_order_ops.flex_attention` on whole score matrices, in
float32 (float64 for float64): the program holds `[batch, heads, queries, keys]` scores, whatever
the block mask says. As in eager PyTorch, only its `mask_mod` counts, not its tables of blocks.

Query is `[batch, heads, queries, features]`, key and value are `[batch, key heads, keys,
features]`; `heads / key heads` consecutive query heads share a key head, and a batch of one key
may serve all queries. Key heads are never repeated in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch.nn.attention.flex_attention import _vmap_for_bhqkv

from lowering.bucketing.flexible import attends, attends_backward
from lowering.context import LoweringContext
from lowering.mlir import ir
from lowering.regions import Region
from lowering.registry import Padding, lowering
from lowering.tracing import lower_function

higher_order = torch.ops.higher_order

Tensors = Sequence[torch.Tensor]
LN2 = math.log(2)


@lowering(torch.ops.flex_lib.zeros_and_scatter.default, padding=Padding.EXACT)
def zeros_and_scatter(
    ctx: LoweringContext, shape: Sequence[int], indices: Sequence[ir.Value], values: ir.Value
) -> ir.Value:
    """Zeros of `shape` with `values` added at `indices`: the gradient of indexing a buffer."""

    def added(values: torch.Tensor, *indices: torch.Tensor) -> torch.Tensor:
        zeros = torch.zeros(shape, dtype=values.dtype)
        return torch.ops.aten.index_put(zeros, list(indices), values, accumulate=True)

    return lower_function(ctx, added, values, *indices)[0]


class _Scores:
    """The score matrices `[batch, heads, queries, keys]` of one attention."""

    def __init__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        scale: float,
        mask_mod: Any,
        mask: Tensors,
        real_keys: torch.Tensor | None,
    ) -> None:
        self.wide = torch.float64 if query.dtype == torch.float64 else torch.float32
        self.key_heads = key.shape[1]
        self.shape = (*query.shape[:3], key.shape[2])
        grouped = self.by_key_head(query).to(self.wide)
        product = grouped @ self.for_batch(key).to(self.wide).transpose(-2, -1)
        self.raw = product.reshape(self.shape) * scale
        self.indices = [torch.arange(size) for size in self.shape]
        self.is_seen = self.vectorized(mask_mod, (), len(mask))(*self.indices, *mask)
        if real_keys is not None:
            self.is_seen = self.is_seen & (self.indices[-1] < real_keys)

    def by_key_head(self, rows: torch.Tensor) -> torch.Tensor:
        """Return `[batch, heads, queries, last]` as `[batch, key heads, group * queries, last]`."""
        batch, heads, queries, last = rows.shape
        group = heads // max(self.key_heads, 1)
        return rows.reshape(batch, self.key_heads, group * queries, last)

    def for_batch(self, operand: torch.Tensor) -> torch.Tensor:
        """Return a key or value with as many batches as the query has."""
        return operand.expand(self.shape[0], *operand.shape[1:])

    def vectorized(
        self,
        function: Callable[..., Any],
        prefix: tuple[int, ...],
        buffers: int,
        suffix: tuple[int, ...] = (),
        **how: Any,
    ) -> Callable[..., Any]:
        """Return a function of one score mapped over all of them, buffers held fast."""
        return _vmap_for_bhqkv(function, prefix, suffix=suffix + (None,) * buffers, **how)

    def modified(self, score_mod: Any, buffers: Tensors) -> torch.Tensor:
        """Return the scores as `score_mod` leaves them, -inf where a key is not seen."""
        scores = self.vectorized(score_mod, (0,), len(buffers))(self.raw, *self.indices, *buffers)
        return torch.where(self.is_seen, scores, -math.inf).to(self.wide).expand(self.shape)


@lowering(higher_order.flex_attention, padding=attends)
def flex_attention(
    ctx: LoweringContext,
    query: ir.Value,
    key: ir.Value,
    value: ir.Value,
    score_mod: Region,
    block_mask: Sequence[Any],
    scale: float,
    kernel_options: dict[str, Any],
    score_mod_other_buffers: Sequence[Any] = (),
    mask_mod_other_buffers: Sequence[Any] = (),
    real_keys: ir.Value | None = None,
) -> tuple[ir.Value, ...]:
    """The attention's output, the logsumexp of each row and its largest score, over ln 2.

    A row that sees no key gives output 0, logsumexp -inf and largest score -inf.
    """
    _refuse_random(ctx, score_mod, block_mask[-1])
    split = len(score_mod_other_buffers)

    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        real_keys: torch.Tensor | None,
        *buffers: Any,
    ) -> list[torch.Tensor]:
        with TransformGetItemToIndex():
            mask_mod = block_mask[-1].graph_module
            scores = _Scores(query, key, scale, mask_mod, buffers[split:], real_keys)
            modified = scores.modified(score_mod.graph_module, buffers[:split])
        hidden = torch.all(modified == -math.inf, dim=-1)
        logsumexp = torch.where(hidden, -math.inf, modified.logsumexp(dim=-1))
        largest = torch.amax(modified, dim=-1)
        weights = torch.where(hidden.unsqueeze(-1), 0.0, torch.softmax(modified, dim=-1))
        narrow = scores.by_key_head(weights.to(query.dtype))
        output = narrow @ scores.for_batch(value).to(query.dtype)
        output = output.reshape(*query.shape[:3], value.shape[-1])
        return [output, logsumexp / LN2, largest / LN2]

    buffers = (*score_mod_other_buffers, *mask_mod_other_buffers)
    return tuple(lower_function(ctx, attention, query, key, value, real_keys, *buffers))


@lowering(higher_order.flex_attention_backward, padding=attends_backward)
def flex_attention_backward(
    ctx: LoweringContext,
    query: ir.Value,
    key: ir.Value,
    value: ir.Value,
    output: ir.Value,
    logsumexp: ir.Value,
    grad_output: ir.Value | None,
    grad_logsumexp: ir.Value | None,
    score_mod: Region,
    joint: Region,
    block_mask: Sequence[Any],
    scale: float,
    kernel_options: dict[str, Any],
    score_mod_other_buffers: Sequence[Any] = (),
    mask_mod_other_buffers: Sequence[Any] = (),
    real_keys: ir.Value | None = None,
) -> tuple[Any, ...]:
    """Gradients of query, key, value, and of the buffers that `score_mod` reads.

    `joint` gives the gradients of one score's arguments from that of the modified score.
    """
    _refuse_random(ctx, score_mod, joint, block_mask[-1])
    split = len(score_mod_other_buffers)
    wanted = [fake is not None for fake in ctx.node.meta["val"][3]]

    def gradients(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        output: torch.Tensor,
        logsumexp: torch.Tensor,
        grad_output: torch.Tensor | None,
        grad_logsumexp: torch.Tensor | None,
        real_keys: torch.Tensor | None,
        *buffers: Any,
    ) -> list[torch.Tensor]:
        grad_output = torch.zeros_like(output) if grad_output is None else grad_output
        with TransformGetItemToIndex():
            mask_mod = block_mask[-1].graph_module
            scores = _Scores(query, key, scale, mask_mod, buffers[split:], real_keys)
            modified = scores.modified(score_mod.graph_module, buffers[:split])
        rows = (logsumexp * LN2).unsqueeze(-1)
        weights = torch.where(rows == -math.inf, 0.0, torch.exp(modified - rows))
        grouped = scores.by_key_head(grad_output)
        wide_value = scores.for_batch(value).to(scores.wide)
        grad_weights = (grouped.to(scores.wide) @ wide_value.transpose(-2, -1)).reshape(
            scores.shape
        )
        sums = (output.to(scores.wide) * grad_output.to(scores.wide)).sum(-1, keepdim=True)
        grad_modified = grad_weights - sums
        if grad_logsumexp is not None:
            grad_modified = grad_modified + (grad_logsumexp / LN2).unsqueeze(-1)
        with TransformGetItemToIndex():
            through_mod = scores.vectorized(
                joint.graph_module,
                (0,),
                split,
                suffix=(0,),
                out_dims=[0, None, None, None, None] + [None] * split,
            )
            grad_raw, _, _, _, _, *grad_buffers = through_mod(
                scores.raw, *scores.indices, weights * grad_modified, *buffers[:split]
            )
        grad_raw = torch.where(scores.is_seen, (grad_raw * scale).to(query.dtype), 0)
        grad_raw = scores.by_key_head(grad_raw.expand(scores.shape))
        grad_query = (grad_raw @ scores.for_batch(key)).reshape(query.shape)
        grad_key = grad_raw.transpose(-2, -1) @ scores.by_key_head(query)
        narrow = scores.by_key_head(weights.to(query.dtype))
        grad_value = narrow.transpose(-2, -1) @ grouped
        if key.shape[0] != query.shape[0]:
            grad_key = grad_key.sum(0, keepdim=True)
            grad_value = grad_value.sum(0, keepdim=True)
        kept = [
            # One that needs no gradient gets none.
            torch.zeros_like(buffer)
            if grad is None
            else grad.to(buffer.dtype).reshape(buffer.shape)
            for grad, buffer, is_wanted in zip(grad_buffers, buffers[:split], wanted, strict=True)
            if is_wanted
        ]
        return [grad_query, grad_key, grad_value, *kept]

    tensors = (query, key, value, output, logsumexp, grad_output, grad_logsumexp, real_keys)
    buffers = (*score_mod_other_buffers, *mask_mod_other_buffers)
    results = lower_function(ctx, gradients, *tensors, *buffers)
    given = iter(results[3:])
    return (*results[:3], tuple(next(given) if is_wanted else None for is_wanted in wanted))


def _refuse_random(ctx: LoweringContext, *regions: Region) -> None:
    """Decline functions that draw random numbers: forward and backward would draw others."""
    if any(region.draws_random_numbers for region in regions):
        raise ctx.unsupported("its score_mod or mask_mod draws random numbers")
