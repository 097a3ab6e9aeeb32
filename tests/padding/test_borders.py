"""Padding rules of borders around a tensor."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.padding.checking import check

SIZES = [(3, 5), (6, 9), (8, 16), (17, 4)]


def bordered(x: torch.Tensor) -> Any:
    s = x.shape[1]
    flat = x.reshape(-1, 4)
    return (
        F.pad(x, (1, 2)),
        F.pad(x, (0, 0, 1, 2), value=3.0),
        F.pad(x, (0, 0, -1, 2, 1, -1)),
        F.pad(x, (0, 0, 0, 32 - s)).sum(1),
        F.pad(x, (0, 0, 20 - s, 0), value=-1.0),
        F.pad(flat, (0, 0, 2, 1)).sum(0),
        F.pad(x, (0, 0, 0, s)),
        F.pad(x[..., 0] > 0, (1, 1), value=True),
    )


def mirrored(x: torch.Tensor) -> Any:
    return (
        F.pad(x.mT, (2, 1), mode="reflect"),
        F.pad(x, (1, 2, 2, 1), mode="reflect"),
        F.pad(x, (1, 2), mode="reflect"),
        F.pad(x.mT, (-1, 3), mode="replicate"),
        F.pad(x[None], (1, 0, 2, 1), mode="replicate"),
        F.pad(x, (2, 1), mode="replicate"),
        F.pad(x.mT, (2, 1), mode="circular"),
    )


@pytest.mark.parametrize("function", [bordered, mirrored])
@pytest.mark.parametrize("gradients", [False, True])
def test_padding_does_not_show(function: Any, gradients: bool) -> None:
    def inputs(b: int, s: int) -> list[torch.Tensor]:
        return [torch.randn(b, s, 4)]

    sizes = SIZES[:3] if gradients else SIZES
    check(function, inputs, sizes, gradients=gradients, rtol=1e-5, atol=1e-5)
