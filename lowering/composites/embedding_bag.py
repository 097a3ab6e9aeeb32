"""Gradients of `_embedding_bag`: what autograd calls, in terms of the dense gradient.

The bag of each index is told from the offsets: the forward op leaves its own record of it empty
where eager's fast path for sums does.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lowering.decompositions import decomposition

aten = torch.ops.aten


def _bag_of_each(offsets: Tensor, bags: int, count: int) -> Tensor:
    """Return the bag (int64) of each of `count` indices; a last offset is not the start of one."""
    places = torch.arange(count, dtype=offsets.dtype, device=offsets.device)
    return torch.searchsorted(offsets[:bags], places, right=True) - 1


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
    """Return the gradient of the weight, [num_weights, width]; a sparse one is left as it is."""
    if sparse:
        return NotImplemented
    bags = grad.shape[0]
    return aten._embedding_bag_dense_backward(
        grad,
        indices,
        _bag_of_each(offsets, bags, indices.shape[0]),
        bag_size[:bags],
        maximum_indices[:bags],
        num_weights,
        scale_grad_by_freq,
        mode,
        per_sample_weights,
        padding_idx,
    )


@decomposition(aten._embedding_bag_per_sample_weights_backward.default)
def embedding_bag_per_sample_weights_backward(
    grad: Tensor,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    mode: int,
    padding_idx: int = -1,
) -> Tensor:
    """Return the gradient of each index's factor: its bag's gradient times its row; 0 for padding.

    Only sums have factors.
    """
    bag = _bag_of_each(offsets, grad.shape[0], indices.shape[0])
    wide = torch.promote_types(grad.dtype, torch.float32)
    products = grad.to(wide).index_select(0, bag) * weight.to(wide).index_select(0, indices)
    factors = products.sum(1).to(grad.dtype)
    if padding_idx < 0:
        return factors
    return torch.where(indices == padding_idx, 0, factors)
