"""Kernels of ops that are run as other ops: what torch has for speed on devices of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.nn import functional as F

from tpu_compile.device import dispatch
from tpu_compile.device.kernels import KERNELS as KERNELS
from tpu_compile.device.kernels import kernel

aten = torch.ops.aten

# `mask_type` of torch's fast path for attention: what the mask's sizes are.
_OF_QUERIES, _OF_KEYS = 0, 1


def _with_rate(op: OpOverload, *args: Any, lr: float, **kwargs: Any) -> Any:
    """Run the overload of a fused optimizer step that reads its learning rate at run time."""
    double = any(parameter.dtype is torch.float64 for parameter in args[0])
    dtype = torch.float64 if double else torch.float32
    return dispatch.run(op, *args, lr=torch.tensor(lr, dtype=dtype, device="cpu"), **kwargs)


for _name in ("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_"):
    _packet = getattr(aten, _name)
    kernel(_packet.default)(functools.partial(_with_rate, _packet.tensor_lr))


@kernel(aten._native_multi_head_attention.default)
def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """(output `[batch, length, embed_dim]`, weights) of inference's fast path."""
    projected = [
        F.linear(x, w, b).unflatten(-1, (num_head, -1)).transpose(1, 2)
        for x, w, b in zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True)
    ]
    queries, keys, values = projected
    scores = (queries * queries.shape[-1] ** -0.5) @ keys.transpose(-2, -1)
    if mask is not None:
        hidden = mask if mask.dtype is torch.bool else mask != 0
        if mask_type == _OF_QUERIES:
            hidden = hidden[None, None]
        elif mask_type == _OF_KEYS:
            hidden = hidden[:, None, None, :]
        scores = scores.masked_fill(hidden, float("-inf"))
    weights = scores.softmax(-1)
    output = F.linear((weights @ values).transpose(1, 2).flatten(2), proj_weight, proj_bias)
    if not need_weights:
        return output, None
    return output, weights.mean(1) if average_attn_weights else weights


@kernel(aten._transformer_encoder_layer_fwd.default)
def transformer_encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """Output `[batch, length, embed_dim]` of inference's fast path."""

    def attended(x: Tensor) -> Tensor:
        projections = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        return multi_head_attention(
            x, x, x, embed_dim, num_heads, *projections, mask, False, True, mask_type
        )[0]

    def transformed(x: Tensor) -> Tensor:
        x = F.linear(x, ffn_weight_1, ffn_bias_1)
        x = F.gelu(x) if use_gelu else F.relu(x)
        return F.linear(x, ffn_weight_2, ffn_bias_2)

    layers: tuple[tuple[Callable[[Tensor], Tensor], Tensor, Tensor], ...] = (
        (attended, norm_weight_1, norm_bias_1),
        (transformed, norm_weight_2, norm_bias_2),
    )
    for layer, weight, bias in layers:
        normalized = functools.partial(
            F.layer_norm, normalized_shape=(embed_dim,), weight=weight, bias=bias, eps=eps
        )
        src = src + layer(normalized(src)) if norm_first else normalized(src + layer(src))
    return src
