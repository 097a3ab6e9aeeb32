"""Adaptive pooling against eager PyTorch."""

from __future__ import annotations

import math

import pytest
import torch

from tests.lowering.running import check

aten = torch.ops.aten
SIZES = ([1, 1], [7, 6], [2, 3], [3, 4], [9, 2], [14, 5])


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_adaptive_avg_pool2d_and_its_gradient(dtype: torch.dtype) -> None:
    operand = torch.randn(2, 3, 7, 6, dtype=dtype)
    grads = [torch.randn(2, 3, *size, dtype=dtype) for size in SIZES]
    check(
        lambda x, y, *grads: (
            [aten._adaptive_avg_pool2d(x, size) for size in SIZES],
            aten._adaptive_avg_pool2d(y, [2, 3]),
            [aten._adaptive_avg_pool2d_backward(grad, x) for grad in grads],
        ),
        operand,
        operand[0].transpose(1, 2),
        *grads,
    )


def test_infinities_and_nan_stay_in_their_segments() -> None:
    x = torch.tensor([[1.0, math.nan, 2.0, math.inf, 3.0]]).repeat(3, 1)[None]
    check(lambda x: (aten._adaptive_avg_pool2d(x, [2, 3]), aten.adaptive_max_pool2d(x, [2, 3])), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_adaptive_pools_in_three_dims(dtype: torch.dtype) -> None:
    operand = torch.randn(2, 2, 5, 4, 6, dtype=dtype)
    grad = torch.randn(2, 2, 2, 4, 4, dtype=dtype)
    indices = aten.adaptive_max_pool3d(operand, [2, 4, 4])[1]
    check(
        lambda x, grad, indices: (
            aten._adaptive_avg_pool3d(x, [2, 4, 4]),
            aten.adaptive_max_pool3d(x, [2, 4, 4]),
            aten._adaptive_avg_pool3d_backward(grad, x),
            aten.adaptive_max_pool3d_backward(grad, x, indices),
        ),
        operand,
        grad,
        indices,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adaptive_max_pool2d_and_its_gradient(dtype: torch.dtype) -> None:
    operand = torch.randint(-3, 4, (2, 3, 7, 6)).to(dtype)
    operand[0, 0, :3, 1:4] = math.nan
    grad = torch.randn(2, 3, 3, 4, dtype=dtype)
    indices = aten.adaptive_max_pool2d(operand, [3, 4])[1]
    check(
        lambda x, y, grad, indices: (
            [aten.adaptive_max_pool2d(x, size) for size in SIZES],
            aten.adaptive_max_pool2d(y, [2, 3]),
            aten.adaptive_max_pool2d_backward(grad, x, indices),
        ),
        operand,
        operand[1],
        grad,
        indices,
    )


def test_empty_planes() -> None:
    check(
        lambda batch, x: (
            aten._adaptive_avg_pool2d(batch, [2, 2]),
            aten._adaptive_avg_pool2d(x, [0, 2]),
            aten.adaptive_max_pool2d(batch, [2, 2]),
            aten._adaptive_avg_pool2d_backward(batch, batch),
        ),
        torch.ones(0, 2, 3, 3),
        torch.ones(1, 2, 3, 3),
    )
