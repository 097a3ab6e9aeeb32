"""Padding rules of products: sums over a batch, bilinear forms, groups of rows, complex parts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.padding.checking import check

SIZES = [(3, 5), (6, 9), (8, 16)]


@pytest.mark.parametrize("gradients", [False, True])
def test_products(gradients: bool) -> None:
    def function(x: torch.Tensor, weight: torch.Tensor) -> Any:
        y = x.reshape(-1, 4)
        return (
            torch.addbmm(x[0], x, weight[:, :4, :4].sum(0).expand(x.shape[0], 4, 4)),
            torch.addbmm(weight[0, :4, :4], x.mT, x),
            F.bilinear(x, x * 2, weight[:, :4, :4]),
            F.bilinear(y, y.flip(1), weight[:, :4, :4]),
        )

    def inputs(b: int, s: int) -> list[torch.Tensor]:
        return [torch.randn(b, s, 4), torch.randn(3, 4, 4)]

    check(function, inputs, SIZES, gradients=gradients, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("gradients", [False, True])
def test_groups_of_rows(gradients: bool) -> None:
    def function(x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> Any:
        return F.grouped_mm(x.reshape(-1, 16), weight, offs=ends)

    def inputs(b: int, s: int) -> list[torch.Tensor]:
        ends = torch.tensor([2, 2, b * s], dtype=torch.int32)
        x, weight = torch.randn(b, s, 16), torch.randn(3, 16, 8)
        return [x.bfloat16(), weight.bfloat16(), ends]

    check(function, inputs, SIZES, gradients=gradients, rtol=2e-2, atol=1e-1)


def test_complex_parts() -> None:
    def function(x: torch.Tensor) -> Any:
        z = torch.view_as_complex(x)
        conjugate = z.conj().resolve_conj()
        return torch.view_as_real(z * z), z.abs().sum(1), torch.view_as_real(conjugate).sum(0)

    check(
        function, lambda b, s: [torch.randn(b, s, 2)], SIZES, gradients=True, rtol=1e-4, atol=1e-5
    )
