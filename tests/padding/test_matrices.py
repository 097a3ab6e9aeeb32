"""Padding rules of linear algebra on matrices of dynamic order."""

from __future__ import annotations

from typing import Any

import torch

from tests.padding.checking import check

SIZES = [(3, 5), (6, 9), (8, 4)]


def inputs(n: int, k: int) -> list[torch.Tensor]:
    return [torch.randn(2, n, n) / n, torch.randn(2, n, k), torch.randn(n)]


def systems(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> Any:
    square = x @ x.mT + torch.diag_embed(torch.ones_like(x[0, 0]))
    factor = torch.linalg.cholesky(square)
    upper = torch.linalg.cholesky(square, upper=True)
    return (
        factor,
        upper,
        torch.cholesky_solve(y, factor),
        torch.cholesky_inverse(upper, upper=True),
        torch.linalg.solve(square - x, y),
        torch.linalg.solve(square, z),
        torch.linalg.solve(square, y.mT, left=False),
        torch.linalg.inv(square + x),
        torch.linalg.det(square),
        torch.linalg.slogdet(square),
        torch.linalg.solve_triangular(upper, y, upper=True),
        torch.linalg.matrix_exp(x),
        torch.linalg.pinv(square),
        torch.linalg.pinv(square, hermitian=True),
    )


def test_systems() -> None:
    check(systems, inputs, SIZES, rtol=1e-2, atol=1e-3)


def test_factors() -> None:
    def function(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> Any:
        factors, pivots = torch.linalg.lu_factor(x)
        q, r = torch.linalg.qr(y)
        full, _ = torch.linalg.qr(y, mode="complete")
        values, vectors = torch.linalg.eigh(x + x.mT)
        return (
            factors,
            pivots,
            torch.lu_unpack(factors, pivots),
            torch.linalg.lu_solve(factors, pivots, y),
            (q, r, full),
            values,
            (vectors * values[:, None]) @ vectors.mT,
            torch.linalg.svdvals(y),
        )

    check(function, inputs, SIZES, rtol=1e-3, atol=1e-3)


def test_gradients() -> None:
    def function(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> Any:
        square = x @ x.mT + torch.diag_embed(torch.ones_like(x[0, 0]))
        return torch.linalg.solve(square, y), torch.linalg.slogdet(square)[1]

    check(function, inputs, SIZES, gradients=True, rtol=1e-2, atol=1e-3)
