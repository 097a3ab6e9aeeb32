"""The gradient of `masked_scatter` in terms of a scatter."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from lowering.decompositions import decomposition

aten = torch.ops.aten


@decomposition(aten.masked_scatter_backward.default)
def masked_scatter_backward(
    grad_output: torch.Tensor, mask: torch.Tensor, sizes: Sequence[int]
) -> torch.Tensor:
    """The k-th element is the gradient at the k-th true position of `mask`; zeros follow.

    `mask` broadcasts to the gradient; the result has the shape `sizes`.
    """
    count = math.prod(sizes)
    flat = mask.expand_as(grad_output).reshape(-1)
    rank = flat.to(torch.int64).cumsum(0) - 1
    # Everything that was not taken from the source falls on one more place, which is cut off.
    place = torch.where(flat & (rank < count), rank, count)
    collected = grad_output.new_zeros(count + 1).scatter(0, place, grad_output.reshape(-1))
    return collected[:count].reshape(list(sizes))
