"""Every op family, imported for its registrations; nothing may be registered afterwards."""

from __future__ import annotations

from lowering.ops import (
    adaptive_pooling,
    attention,
    batch_norm,
    convolution,
    convolution_backward,
    grid_sampler,
    matmul,
    normalization,
    pointwise,
    pooling,
    pooling_backward,
    recurrent,
    resize,
)
from lowering.registry import REGISTRY

__all__ = [
    "adaptive_pooling",
    "attention",
    "batch_norm",
    "convolution",
    "convolution_backward",
    "grid_sampler",
    "matmul",
    "normalization",
    "pointwise",
    "pooling",
    "pooling_backward",
    "recurrent",
    "resize",
]

REGISTRY.freeze()
