"""Gradients that autograd asks for by name, as it does of ops that were not decomposed before."""

from __future__ import annotations

import torch
from torch import Tensor

from lowering.decompositions import decomposition

aten = torch.ops.aten

_MEAN = 1
"""The number that ATen gives the reduction "mean"."""


@decomposition(aten.softshrink_backward.default, aten.hardshrink_backward.default)
def shrink_backward(grad: Tensor, self: Tensor, lambd: float) -> Tensor:
    """Return `grad` where `self` is not shrunk to zero."""
    return torch.where((self >= -lambd) & (self <= lambd), 0, grad)


@decomposition(aten.multi_margin_loss_backward.default)
def multi_margin_loss_backward(
    grad_output: Tensor,
    self: Tensor,
    target: Tensor,
    p: float,
    margin: float,
    weight: Tensor | None = None,
    reduction: int = _MEAN,
) -> Tensor:
    """Return the gradient for `self`, `[batch, classes]` or `[classes]`.

    The loss is the mean over classes of weight * max(0, margin - x[target] + x)**p, p being 1 or 2.
    """
    x, rows = _as_batch(self), target.reshape(-1, 1)
    slack = margin - x.gather(1, rows) + x
    slope = torch.where(slack > 0, 1 if p == 1 else 2 * slack, 0).to(x.dtype)
    if weight is not None:
        slope = slope * weight[rows]
    # The target's own slack is the margin, and counts for nothing.
    slope = slope.scatter(1, rows, 0)
    slope = slope.scatter(1, rows, -slope.sum(1, keepdim=True))
    return _scaled(slope, grad_output, reduction).reshape(self.shape)


@decomposition(aten.multilabel_margin_loss_backward.default)
def multilabel_margin_loss_backward(
    grad_output: Tensor, self: Tensor, target: Tensor, reduction: int, is_target: Tensor
) -> Tensor:
    """Return the gradient for `self`, `[batch, classes]` or `[classes]`.

    Each row of `target` lists classes up to the first -1. The loss is the mean over classes of
    max(0, 1 - x[label] + x[other]), summed over labels and over the classes that are none.
    """
    x, labels = _as_batch(self), _as_batch(target)
    listed = (labels >= 0).to(torch.int64).cumprod(1).to(torch.bool)
    labels = labels.clamp(min=0)
    other = _as_batch(is_target) == 0
    slack = 1 - x.gather(1, labels).unsqueeze(2) + x.unsqueeze(1)
    counts = ((slack > 0) & listed.unsqueeze(2) & other.unsqueeze(1)).to(x.dtype)
    slope = counts.sum(1).scatter_add(1, labels, -counts.sum(2))
    return _scaled(slope, grad_output, reduction).reshape(self.shape)


def _as_batch(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1, tensor.shape[-1] if tensor.dim() else 1)


def _scaled(slope: Tensor, grad_output: Tensor, reduction: int) -> Tensor:
    """Return slopes `[batch, classes]` as gradients: the losses are means over classes."""
    count = slope.shape[1] * (slope.shape[0] if reduction == _MEAN else 1)
    return slope * (grad_output.reshape(-1, 1) / count)
