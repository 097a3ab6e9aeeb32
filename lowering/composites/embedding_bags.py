"""Gradients of embedding bags that autograd asks for, in terms of the dense gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from lowering.decompositions import decomposition

aten = torch.ops.aten


def _bag_of_each(indices: Tensor, offsets: Tensor, offset2bag: Tensor) -> Tensor:
    """Return the bag of each index; the forward pass does not always keep it."""
    if offset2bag.numel() == indices.numel():
        return offset2bag
    places = torch.arange(indices.numel(), dtype=offsets.dtype)
    return (torch.searchsorted(offsets, places, right=True) - 1).to(indices.dtype)


@decomposition(aten._embedding_bag_backward.default)
def embedding_bag_backward(
    grad: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Tensor:
    """Return the gradient of the weight; one of a sparse layout is torch's own to compute."""
    if sparse:
        return NotImplemented
    bag = _bag_of_each(indices, offsets, offset2bag)
    return aten._embedding_bag_dense_backward.default(
        grad,
        indices,
        bag,
        bag_size,
        maximum_indices,
        num_weights,
        scale_grad_by_freq,
        mode,
        per_sample_weights,
        padding_idx,
    )


@decomposition(aten._embedding_bag_per_sample_weights_backward.default)
def per_sample_weights_backward(
    grad: Tensor,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    mode: int,
    padding_idx: int = -1,
) -> Tensor:
    """Return, for each index, the product of its row and its bag's gradient; 0 for padding."""
    if indices.numel() == 0:
        return grad.new_zeros(0)
    bag = _bag_of_each(indices, offsets, offset2bag)
    products = (grad[bag] * weight[indices]).sum(-1)
    return products if padding_idx < 0 else torch.where(indices == padding_idx, 0, products)
