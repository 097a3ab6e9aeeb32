"""Pooling over sliding windows against eager PyTorch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from lowering import lower_graph
from tests.lowering.running import check, trace

aten = torch.ops.aten
nan, inf = math.nan, math.inf

# kernel, stride, padding, dilation, ceil_mode
MAX_CASES: tuple[tuple[Any, ...], ...] = (
    ([2, 2], [], [0, 0], [1, 1], False),
    ([3, 2], [2, 1], [1, 1], [1, 1], True),
    ([2, 3], [3, 2], [0, 1], [2, 1], False),
    ([3], [2], [1], [2], True),
    ([1, 1], [2, 3], [0, 0], [1, 1], True),
)
# kernel, stride, padding, ceil_mode, count_include_pad, divisor_override
AVG_CASES: tuple[tuple[Any, ...], ...] = (
    ([2, 2], [], [0, 0], False, True, None),
    ([3, 2], [2, 1], [1, 1], True, True, None),
    ([3, 2], [2, 3], [1, 1], True, False, None),
    ([3], [2], [1], True, False, 5),
    ([2, 2], [3, 3], [1, 0], False, True, -3),
)


def data(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return small whole numbers, so that windows hold equal values."""
    low = 0 if dtype is torch.uint8 else -4
    return torch.randint(low, 5, shape).to(dtype)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8])
def test_max_pool2d(dtype: torch.dtype) -> None:
    check(
        lambda x, y: (
            [aten.max_pool2d_with_indices(x, *case) for case in MAX_CASES],
            aten.max_pool2d_with_indices(y, [2, 3]),
        ),
        data(2, 3, 7, 6, dtype=dtype),
        data(3, 5, 4, dtype=dtype).transpose(1, 2),
    )


def test_max_pool2d_of_nan_and_infinity() -> None:
    x = torch.tensor([[nan, 1, nan, nan], [3, 3, 2, 3], [-inf, -inf, inf, -inf], [0, -0.0, 0, nan]])
    lowest = torch.full((1, 2, 3), -(2**63))
    check(
        lambda x, y, z: (
            aten.max_pool2d_with_indices(x, [2, 2], [1, 1]),
            aten.max_pool2d_with_indices(x, [3, 3], [1, 2], [1, 1]),
            aten.max_pool2d_with_indices(x, [4, 4]),
            aten.max_pool2d_with_indices(y, [2, 2], [1, 1], [1, 1]),
            aten.max_pool2d_with_indices(z, [2, 2], [1, 1], [1, 1]),
        ),
        x[None, None],
        torch.full((1, 2, 3), -inf),
        lowest,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_max_pool3d(dtype: torch.dtype) -> None:
    check(
        lambda x, y: (
            aten.max_pool3d_with_indices(x, [2, 3, 2], [1, 2, 2], [1, 1, 0]),
            aten.max_pool3d_with_indices(x, [2], [2], [1], [2], True),
            aten.max_pool3d_with_indices(y, [2, 2, 2]),
        ),
        data(2, 2, 5, 4, 5, dtype=dtype),
        data(2, 4, 4, 4, dtype=dtype),
    )


def test_max_pool_without_indices_reduces_values_only() -> None:
    graph = trace(lambda x: aten.max_pool2d_with_indices(x, [2, 2])[0], torch.ones(1, 1, 4, 4))
    graph.graph.eliminate_dead_code()
    text = lower_graph(graph).text()
    assert text.count("reduce_window") == 1
    assert "tensor<i32>" not in text
    check(lambda x: aten.max_pool2d_with_indices(x, [2, 2])[0], torch.tensor([[[1.0, nan]] * 2]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_max_pool2d_backward(dtype: torch.dtype) -> None:
    operand = data(2, 3, 7, 6, dtype=dtype)
    for case in MAX_CASES:
        values, indices = aten.max_pool2d_with_indices(operand, *case)
        check(
            lambda grad, x, i, case=case: aten.max_pool2d_with_indices_backward(grad, x, *case, i),
            torch.randn_like(values),
            operand,
            indices,
        )


def test_max_pool2d_backward_of_narrow_planes_and_wide_windows() -> None:
    for shape, case in (
        ((1, 2, 5, 1), ([3, 3], [1, 1], [1, 1], [1, 1], False)),
        ((2, 9, 9), ([7, 7], [1, 1], [3, 3], [1, 1], False)),
        ((0, 2, 4, 4), ([2, 2], [2, 2], [0, 0], [1, 1], False)),
    ):
        operand = data(*shape)
        values, indices = aten.max_pool2d_with_indices(operand, *case)
        check(
            lambda grad, x, i, case=case: aten.max_pool2d_with_indices_backward(grad, x, *case, i),
            torch.randn_like(values),
            operand,
            indices,
        )


def test_max_pool3d_backward() -> None:
    operand = data(2, 2, 5, 4, 5)
    case = ([2, 3, 2], [1, 2, 2], [1, 1, 0], [1, 1, 2], True)
    values, indices = aten.max_pool3d_with_indices(operand, *case)
    check(
        lambda grad, x, i: aten.max_pool3d_with_indices_backward(grad, x, *case, i),
        torch.randn_like(values),
        operand,
        indices,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_avg_pool2d_and_its_gradient(dtype: torch.dtype) -> None:
    operand = torch.randn(2, 3, 7, 6, dtype=dtype)
    grads = [torch.randn_like(aten.avg_pool2d(operand, *case)) for case in AVG_CASES]
    check(
        lambda x, *grads: (
            [aten.avg_pool2d(x, *case) for case in AVG_CASES],
            [
                aten.avg_pool2d_backward(grad, x, case[0], case[1] or case[0], *case[2:])
                for grad, case in zip(grads, AVG_CASES, strict=True)
            ],
        ),
        operand,
        *grads,
    )


def test_avg_pool2d_of_integers_and_of_planes_without_batch() -> None:
    check(
        lambda x, y, z: (
            [aten.avg_pool2d(x, *case) for case in AVG_CASES],
            aten.avg_pool2d(y, [2, 2]),
            aten.avg_pool2d(z, [2, 2]),
            aten.avg_pool3d(x, [1, 2, 2], [1, 1, 2], [0, 1, 0]),
        ),
        data(2, 3, 7, 6, dtype=torch.int64),
        torch.tensor([[[1.0, nan, 2.0], [inf, -inf, 3.0]]]),
        torch.zeros(0, 1, 5, 5),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_avg_pool3d_and_its_gradient(dtype: torch.dtype) -> None:
    case = ([2, 3, 2], [2, 2, 1], [1, 1, 0], True, False, None)
    operand = torch.randn(2, 2, 5, 4, 5, dtype=dtype)
    grad = torch.randn_like(aten.avg_pool3d(operand, *case))
    check(
        lambda x, grad: (aten.avg_pool3d(x, *case), aten.avg_pool3d_backward(grad, x, *case)),
        operand,
        grad,
    )
