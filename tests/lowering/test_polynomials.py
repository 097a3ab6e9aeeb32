import math

import pytest
import torch
from torch import special

from tests.lowering.running import check, run

CHEBYSHEV = [
    getattr(special, f"{prefix}chebyshev_polynomial_{kind}")
    for prefix in ("", "shifted_")
    for kind in "tuvw"
]
OTHERS = [
    special.hermite_polynomial_h,
    special.hermite_polynomial_he,
    special.laguerre_polynomial_l,
    special.legendre_polynomial_p,
]
HARD = [0.0, -0.0, 1.0, -1.0, 0.5, -0.3, 0.97, 1.5, -2.0, 2.0]
DEGREES = [-2.0, 0.0, 1.0, 2.0, 3.7, 5.0, 6.0, 7.0, 8.0, 9.0, 12.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_chebyshev(dtype):
    """Each degree by itself, so that large values hide nothing."""
    x = torch.tensor(HARD, dtype=dtype)
    degrees = torch.tensor(DEGREES, dtype=dtype)
    tolerance = 2e-5 if dtype is torch.float32 else 1e-12
    check(
        lambda x, n: [row for function in CHEBYSHEV for row in function(x, n[:, None]).unbind(0)],
        x,
        degrees,
        tolerance=tolerance,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_others(dtype):
    x = torch.tensor([*HARD, 10.0, -math.inf], dtype=dtype)
    degrees = torch.tensor([*DEGREES, math.nan, math.inf], dtype=dtype)
    check(
        lambda x, n: [row for function in OTHERS for row in function(x, n[:, None]).unbind(0)],
        x,
        degrees,
        tolerance=2e-6 if dtype is torch.float32 else 1e-12,
    )


def test_scalars_integers_and_shapes():
    def function(x, n, whole, nothing, zero_dim):
        return [
            result
            for polynomial in (*CHEBYSHEV, *OTHERS)
            for result in (
                polynomial(x, 4),
                polynomial(0.25, n),
                polynomial(whole, n),
                polynomial(nothing, 3),
                polynomial(zero_dim, n),
            )
        ]

    arguments = (
        torch.tensor([0.1, 0.6, 1.2]),
        torch.tensor([0, 3, 5]),
        torch.tensor([2, 1, 0]),
        torch.empty(0, 2),
        torch.tensor(0.75),
    )
    check(function, *arguments, tolerance=1e-5)


def test_nan():
    """Eager gives an uninitialized number for degrees from 2 on."""
    results = run(
        lambda x: [function(x, 3) for function in (*CHEBYSHEV, *OTHERS)], torch.tensor([math.nan])
    )
    assert all(result.isnan().all() for result in results)


def test_limits():
    """ATen's highest degree of Hermite polynomials, and a loop that ends when all overflow."""
    check(
        lambda x, n: [
            special.hermite_polynomial_h(x, n),
            special.hermite_polynomial_he(x, n),
            special.chebyshev_polynomial_u(x, 10**9),
        ],
        torch.tensor([1.5, 1.5]),
        torch.tensor([128, 129]),
    )
    (value,) = run(lambda x: [special.legendre_polynomial_p(x, 500)], torch.tensor([0.5]).double())
    assert value.item() == pytest.approx(
        special.legendre_polynomial_p(0.5, torch.tensor(500)).item(), rel=1e-4
    )
