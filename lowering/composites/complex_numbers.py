"""Functions that act on the real and the imaginary part of a complex tensor on their own."""

from __future__ import annotations

import torch
from torch import Tensor

from lowering.decompositions import decomposition

aten = torch.ops.aten


@decomposition(aten.nan_to_num.default)
def nan_to_num(
    self: Tensor,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Tensor:
    """Return `self` with numbers in place of NaN and infinities, part by part if it is complex.

    torch's own decomposition, taken for the reals, refuses complex tensors.
    """
    if not self.is_complex():
        return torch._refs.nan_to_num(self, nan, posinf, neginf)
    parts = torch._refs.nan_to_num(torch.view_as_real(self), nan, posinf, neginf)
    return torch.view_as_complex(parts)
