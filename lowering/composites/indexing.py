"""Indexing that torch's own decompositions do not survive: they ask for data while they trace."""

from __future__ import annotations

import torch
from torch import Tensor

from lowering.decompositions import decomposition

aten = torch.ops.aten


@decomposition(aten.take.default)
def take(input: Tensor, index: Tensor) -> Tensor:
    """Return the elements at flat positions; shape of `index`.

    torch's reads a 0-d index as a number, of which a graph knows nothing.
    """
    return aten.index.Tensor(input.reshape(-1), [index.reshape(-1)]).reshape(index.shape)
