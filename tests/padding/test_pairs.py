"""Padding rules of distances, triangular systems, and bytes read otherwise."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.padding.checking import check

SIZES = [(3, 5), (6, 9), (8, 16), (17, 4)]


@pytest.mark.parametrize("p", [0.5, 1.0, 2.0, 3.0, float("inf")])
def test_distances(p: float) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        flat = x.reshape(-1, 3)
        return (
            torch.cdist(x, y, p),
            torch.cdist(x, x, p).sum(1),
            torch.cdist(flat, y, p),
            torch.cdist(x.mT, x.mT, p),
            torch.pdist(y, p),
        )

    def inputs(b: int, s: int) -> list[torch.Tensor]:
        return [torch.randn(b, s, 3), torch.randn(4, 3)]

    check(function, inputs, SIZES[:3], gradients=True, rtol=1e-4, atol=1e-4)


def test_triangular_systems() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        solve = torch.linalg.solve_triangular
        return (
            solve(x, y, upper=True),
            solve(x, y.mT, upper=False, left=False),
            solve(x, y[0], upper=True, unitriangular=True),
        )

    def inputs(b: int, s: int) -> list[torch.Tensor]:
        return [torch.randn(b, s, s) / 4 + 2 * torch.eye(s), torch.randn(b, s, 2)]

    check(function, inputs, SIZES[:3], gradients=True, rtol=1e-4, atol=1e-4)


def test_bytes_read_otherwise() -> None:
    def function(x: torch.Tensor) -> Any:
        return x.view(torch.int32), x.view(torch.int16), x.view(torch.int64), x.mT.view(torch.int32)

    check(function, lambda b, s: [torch.randn(b, s, 4)], SIZES[:3])
