"""Running sums, products, extremes and log-sums."""

from __future__ import annotations

import pytest
import torch

from tests.lowering.running import check
from tests.lowering.test_views import numbers

SPECIAL = torch.tensor(
    [
        [1.0, 3.0, 3.0, -torch.inf, 2.0, 5.0],
        [-0.0, 0.0, torch.nan, 7.0, torch.nan, 1.0],
        [-torch.inf, -torch.inf, 4.0, torch.inf, torch.inf, -torch.inf],
        [2.0, -1.5, -1.5, 0.25, 8.0, -3.0],
    ]
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.bool])
def test_sums_and_products(dtype):
    def function(x, zero_dim):
        return [
            x.cumsum(0),
            x.cumsum(-1),
            x.cumprod(1),
            x.cumsum(1, dtype=torch.float64),
            x.cumsum(1, dtype=torch.bfloat16),
            x.cumprod(0, dtype=torch.int64),
            x[:0].cumsum(0),
            x[:, :1].cumprod(1),
            zero_dim.cumsum(0),
            zero_dim.cumprod(-1),
        ]

    x = numbers(3, 5, dtype=dtype) if dtype is torch.bool else (numbers(3, 5) % 7 - 3).to(dtype)
    check(function, x, x[1, 1])


def test_long_sums():
    """Long enough for XLA to split the window; half types do not lose small terms."""
    ones = torch.ones(3000, dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(2, 3000, generator=generator)
    check(lambda x, y, i: [x.cumsum(0), y.cumsum(1), i.cumsum(0)], ones, values, ones.long())


def test_complex_and_special_sums():
    check(lambda x, z: [x.cumsum(1), x.cumprod(1), z.cumsum(0)], SPECIAL, torch.randn(4, 3) * 1j)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.int64, torch.uint8, torch.bool]
)
def test_extremes(dtype):
    def function(x, zero_dim):
        return [
            *x.cummax(1),
            *x.cummin(-1),
            *x.cummax(0),
            *x.cummin(0),
            *x[:, :0].cummax(1),
            *zero_dim.cummax(0),
            *zero_dim.cummin(-1),
        ]

    values = SPECIAL if dtype.is_floating_point else SPECIAL.nan_to_num(9, 9, 0).abs()
    x = values.to(dtype)
    check(function, x, x[3, 3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_logcumsumexp(dtype):
    def function(x, zero_dim):
        return [
            x.logcumsumexp(1),
            x.logcumsumexp(0),
            zero_dim.logcumsumexp(0),
            x[:0].logcumsumexp(0),
        ]

    check(function, SPECIAL.to(dtype), SPECIAL[0, 0].to(dtype))
    check(
        function, torch.linspace(-200, 200, 300).reshape(2, 150).to(dtype), SPECIAL[0, 1].to(dtype)
    )


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_logcumsumexp(dtype):
    inf, nan = float("inf"), float("nan")
    hard = torch.tensor(
        [
            [1 + 2j, -1j, 3, -200 + 1j, 200 + 1j, 201 - 2j],
            [complex(-inf, 0), complex(-inf, 0), 1 + 1j, complex(-inf, 0), 2 - 3j, 0],
            [1, 2j, complex(nan, 0), 1, 2, 3],
            [1, complex(0, nan), 1, 1, 2, 3],
        ],
        dtype=dtype,
    )
    check(
        lambda z, zero_dim: [
            *torch.view_as_real(z.logcumsumexp(1)).unbind(0),
            zero_dim.logcumsumexp(0),
            z[:0].logcumsumexp(0),
        ],
        hard,
        hard[0, 0],
    )
    check(lambda z: z.logcumsumexp(0), torch.linspace(-50, 50, 90).to(dtype) * (1 - 0.3j))
