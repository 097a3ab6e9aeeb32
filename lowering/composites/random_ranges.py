"""Integers drawn at random between two bounds, in place of what a tensor held."""

from __future__ import annotations

import torch
from torch import Tensor

from lowering.decompositions import decomposition
from lowering.threefry import mantissa_digits

aten = torch.ops.aten


# The overload is called `from`, which no FX graph can hold: its code would not be Python.
@decomposition(getattr(aten.random, "from"))
def random_from(self: Tensor, start: int, to: int | None, *, generator: object = None) -> Tensor:
    """Return integers in [start, to) with the shape and dtype of `self`.

    Without `to`, up to the largest up to which the dtype holds all of them.
    """
    end = _end(self.dtype) if to is None else to
    return aten.randint.low(start, end, list(self.shape), dtype=self.dtype, device=self.device)


def _end(dtype: torch.dtype) -> int:
    if dtype is torch.bool:
        return 2
    if dtype.is_floating_point:
        return (1 << mantissa_digits(dtype)) + 1
    # Torch's bounds are int64 themselves, so that the largest of those is left out.
    return min(torch.iinfo(dtype).max + 1, torch.iinfo(torch.int64).max)
