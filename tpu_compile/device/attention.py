"""Attention as one op, forward and backward, where its arguments allow it.

torch would compute it by its definition on a device that it does not know: twenty ops. The op here
is the one of the CPU, which torch differentiates and which has rules; XLA fuses as it likes.
"""

from __future__ import annotations

import math

import torch

aten = torch.ops.aten


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Return attention, shape `(batch, heads, queries, features)`; differentiable."""
    if not _is_one_op(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa):
        return aten.scaled_dot_product_attention.default.decompose(
            query,
            key,
            value,
            attn_mask,
            dropout_p,
            is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
        )
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(
            attn_mask.logical_not(), -math.inf
        )
    output, _ = aten._scaled_dot_product_flash_attention_for_cpu.default(
        query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
    )
    return output


def _is_one_op(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    enable_gqa: bool,
) -> bool:
    if dropout_p != 0.0 or enable_gqa or (attn_mask is not None and is_causal):
        return False
    if attn_mask is not None and (
        attn_mask.requires_grad
        or attn_mask.dim() not in (2, 4)
        or attn_mask.dtype not in (torch.bool, query.dtype)
    ):
        return False
    return (
        query.dim() == key.dim() == value.dim() == 4
        and query.dtype == key.dtype == value.dtype
        and query.dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16)
        and query.device == key.device == value.device
        and query.shape[:2] == key.shape[:2] == value.shape[:2]
        and query.shape[3] == key.shape[3] == value.shape[3]
        and key.shape[2] == value.shape[2]
        and 0 not in query.shape
        and 0 not in key.shape
    )
