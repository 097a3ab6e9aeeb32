"""Softmax, layer norm, group norm and weight norm against eager PyTorch."""

from __future__ import annotations

import math

import pytest
import torch

from tests.lowering.running import check

aten = torch.ops.aten
nan, inf = math.nan, math.inf
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", FLOATS)
def test_softmax(dtype: torch.dtype) -> None:
    check(
        lambda x, y, z: [
            op(value, dim, False)
            for op in (aten._softmax.default, aten._log_softmax.default)
            for value, dim in ((x, 0), (x, -2), (y, -1), (z, 0), (z, 1))
        ],
        torch.randn(3, 4, 5, dtype=dtype).transpose(0, 2) * 10,
        torch.tensor(2.5, dtype=dtype),
        torch.zeros(2, 0, dtype=dtype),
    )


def test_softmax_of_nan_infinity_and_masked_rows() -> None:
    x = torch.tensor(
        [
            [1.0, 2.0, -inf],
            [-inf, -inf, -inf],
            [nan, 1.0, 2.0],
            [inf, 1.0, 2.0],
            [3e38, -3e38, 0.0],
            [-inf, 5.0, -inf],
        ]
    )
    check(lambda x: (aten._softmax(x, 1, False), aten._log_softmax(x, 1, False)), x)


@pytest.mark.parametrize("dtype", FLOATS)
def test_layer_norm(dtype: torch.dtype) -> None:
    check(
        lambda x, weight, bias, matrix, far: (
            aten.native_layer_norm(x, [5], weight, bias, 1e-5),
            aten.native_layer_norm(x, [5], None, bias, 0.1),
            aten.native_layer_norm(x, [4, 5], matrix, None, 1e-5),
            aten.native_layer_norm(x, [3, 4, 5], None, None, 1e-5)[0],
            aten.native_layer_norm(far, [64], None, None, 1e-5)[0],
        ),
        torch.randn(3, 4, 5, dtype=dtype),
        torch.randn(5, dtype=dtype),
        torch.randn(5, dtype=dtype),
        torch.randn(4, 5, dtype=dtype),
        # A mean far from zero, exact in every dtype: differences of moments would fail here.
        1000 + torch.randint(-3, 4, (2, 64)).to(dtype) * 8,
        tolerance=2e-5 if dtype is torch.float32 else None,
    )


def test_layer_norm_of_16_bit_input_with_float32_weight() -> None:
    check(
        lambda x, weight, bias: aten.native_layer_norm(x, [8], weight, bias, 1e-5)[0],
        torch.randn(3, 8, dtype=torch.bfloat16),
        torch.randn(8),
        torch.randn(8),
    )


def test_norms_of_empty_and_not_finite_input() -> None:
    check(
        lambda x, rows, columns, channels: (
            # Eager's running mean is NaN where an infinity takes part; the output is NaN anyway.
            aten.native_layer_norm(x, [3], None, None, 1e-5)[0],
            aten.native_layer_norm(rows, [2], None, None, 1e-5),
            aten.native_layer_norm(columns, [0], None, None, 1e-5),
            aten.native_group_norm(channels, None, None, 0, 4, 2, 2, 1e-5),
        ),
        torch.tensor([[1.0, nan, 2.0], [inf, 1.0, 2.0], [4.0, 4.0, 4.0]]),
        torch.ones(0, 2),
        torch.ones(2, 0),
        torch.ones(0, 4, 2),
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_group_norm(dtype: torch.dtype) -> None:
    check(
        lambda x, weight, bias: (
            aten.native_group_norm(x, weight, bias, 2, 6, 12, 3, 1e-5),
            aten.native_group_norm(x, None, bias, 2, 6, 12, 1, 1e-5),
            aten.native_group_norm(x, weight, None, 2, 6, 12, 6, 1e-5),
        ),
        torch.randn(2, 6, 3, 4, dtype=dtype),
        torch.randn(6, dtype=dtype),
        torch.randn(6, dtype=dtype),
        tolerance=5e-6 if dtype is torch.float32 else None,
    )


@pytest.mark.parametrize("dim", [0, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weight_norm_backward(dtype: torch.dtype, dim: int) -> None:
    direction = torch.randn(3, 4, 5, dtype=dtype)
    shape = [direction.shape[i] if i == dim else 1 for i in range(3)]
    magnitude = torch.randn(shape, dtype=dtype)
    norms = aten._weight_norm_interface(direction, magnitude, dim)[1]
    check(
        lambda grad, v, g, norms: aten._weight_norm_interface_backward(grad, v, g, norms, dim),
        torch.randn_like(direction),
        direction,
        magnitude,
        norms,
    )
