"""Padding rules of ops that take each entry of a batch by itself: matrices, images, sequences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.padding.checking import check

SIZES = [(3, 5), (6, 9), (8, 16), (17, 3)]


def matrices(b: int, s: int) -> list[torch.Tensor]:
    return [torch.randn(b, s, 3, 3), torch.randn(b, s, 3, 2)]


def decompositions(x: torch.Tensor, y: torch.Tensor) -> Any:
    square = x @ x.mT + torch.eye(3)
    flat = square.reshape(-1, 3, 3)
    factor = torch.linalg.cholesky(square)
    return (
        factor,
        torch.cholesky_solve(y, factor),
        torch.cholesky_inverse(factor),
        torch.linalg.solve(flat, y.reshape(-1, 3, 2)),
        torch.linalg.solve(square, y[..., 0]),
        torch.linalg.inv(square),
        torch.linalg.det(flat),
        torch.linalg.slogdet(square),
        torch.linalg.lu(square[:1]),
        torch.linalg.qr(y)[1].abs(),
        torch.linalg.eigvalsh(flat),
        torch.linalg.svdvals(y),
        torch.linalg.matrix_exp(x / 3),
        torch.linalg.solve_triangular(factor, y[:1], upper=False),
        torch.linalg.pinv(y),
    )


def test_matrices() -> None:
    check(decompositions, matrices, SIZES[:3], rtol=1e-2, atol=1e-3)


def test_gradients_of_matrices() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        square = x @ x.mT + torch.eye(3)
        return torch.linalg.solve(square, y), torch.linalg.slogdet(square)[1]

    check(function, matrices, SIZES[:3], gradients=True, rtol=1e-2, atol=1e-3)


def test_transforms() -> None:
    def function(x: torch.Tensor) -> Any:
        return (
            torch.fft.rfft(x, dim=1).abs(),
            torch.fft.fft2(x, dim=(1, 3)).real,
            torch.fft.ifft(x.reshape(-1, 4)).abs(),
            torch.view_as_real(torch.complex(x, x + 1)),
        )

    def inverse(x: torch.Tensor) -> Any:
        return torch.fft.irfft(torch.complex(x, x + 1), 6, dim=1)

    def inputs(b: int, s: int) -> list[torch.Tensor]:
        return [torch.randn(b, 6, s, 4)]

    check(function, inputs, SIZES, gradients=True, rtol=1e-4, atol=1e-5)
    check(inverse, inputs, SIZES, rtol=1e-4, atol=1e-5)


def test_images() -> None:
    def function(x: torch.Tensor, grid: torch.Tensor) -> Any:
        return (
            F.interpolate(x, (7, 3), mode="bilinear", antialias=True),
            F.adaptive_avg_pool2d(x, (3, 2)),
            F.adaptive_max_pool2d(x, (2, 3)),
            F.grid_sample(x, grid, align_corners=False),
            F.grid_sample(x, grid, mode="bicubic", padding_mode="reflection", align_corners=True),
        )

    def inputs(b: int, s: int) -> list[torch.Tensor]:
        return [torch.randn(b, 3, 5, 6), torch.rand(b, s, 4, 2) * 1.8 - 0.9]

    check(function, inputs, SIZES, gradients=True, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("reverse", [False, True])
def test_recurrence(reverse: bool) -> None:
    def function(x: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor) -> Any:
        shapes = ((16, 3), (16, 4), (16,), (16,))
        weights = [torch.linspace(-1, 1, 16 * (s[-1] % 16 or 1)).reshape(s).sin() for s in shapes]
        options = (2, 4, 1, True, False, False, True)
        return torch.ops.aten.mkldnn_rnn_layer(x, *weights, hidden, cell, reverse, [], *options)[:3]

    def inputs(b: int, s: int) -> list[torch.Tensor]:
        return [torch.randn(s, b, 3), torch.randn(1, b, 4), torch.randn(1, b, 4)]

    check(function, inputs, SIZES, gradients=True, rtol=1e-4, atol=1e-5)


def test_groups_of_rows() -> None:
    def function(x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> Any:
        ends = (ends * x.shape[0] // 4).int()
        product = F.grouped_mm(x, weight, offs=ends)
        return product, F.grouped_mm(x.T, product, offs=ends)

    def inputs(b: int) -> list[torch.Tensor]:
        x, weight = torch.randn(b, 16), torch.randn(4, 16, 8)
        return [x.bfloat16(), weight.bfloat16(), torch.arange(1, 5)]

    check(function, inputs, [(12,), (24,), (16,)], rtol=2e-2, atol=2e-2)
