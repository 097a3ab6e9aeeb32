import math

import pytest
import torch

from tests.lowering.elementwise import check_each
from tests.lowering.running import check

INF, NAN = math.inf, math.nan
HARD = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -2.5, -3.0, 0.999, -10.3, 1e-3, 5.0]
FUNCTIONS = {name: getattr(torch, name) for name in ["erf", "erfc", "erfinv", "digamma"]}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_hard_values(dtype):
    tolerance = 1e-10 if dtype is torch.float64 else None
    check_each(FUNCTIONS, torch.tensor(HARD, dtype=dtype), tolerance=tolerance)


def test_lgamma():
    # Relative accuracy is lost at the zeros of the function, 1 and 2.
    check(torch.lgamma, torch.tensor([NAN, INF, -INF, 0.0, 1.0, 0.5, 2.0, -2.5, 1.3]))
    check(torch.lgamma, torch.tensor([30.0, 1e5, 1e-10, -10.3]))


def test_integers_and_shapes():
    functions = {**FUNCTIONS, "lgamma": torch.lgamma}
    for values in torch.tensor([3, 4, -2]), torch.tensor(0.3), torch.empty(0, 2):
        check_each(functions, values)


def test_zeta():
    orders = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 10.0, NAN, -1.0])
    starts = torch.tensor([0.0, 1.0, 2.5, -1.0, -1.5, 10.0])
    check_each({"zeta": torch.special.zeta}, orders[:, None].contiguous(), starts[None])
    check_each(
        {
            "start": lambda x: torch.special.zeta(x, 2.0),
            "order": lambda x: torch.special.zeta(2, x),
        },
        torch.tensor([1.5, 3.0]),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zeta_left_of_zero(dtype):
    orders = torch.tensor([2.0, 3.0, 6.0, 7.0, 2.5], dtype=dtype)[:, None]
    starts = torch.tensor([-0.25, -1.375, -9.75, -30.125, -100.7], dtype=dtype)
    orders, starts = (part.contiguous() for part in torch.broadcast_tensors(orders, starts))
    tolerance = 1e-5 if dtype is torch.float32 else 1e-10
    check_each({"zeta": torch.special.zeta}, orders, starts, tolerance=tolerance)
    functions = {str(n): lambda x, n=n: torch.polygamma(n, x) for n in (1, 2, 3, 9)}
    check_each(functions, starts[0].contiguous(), tolerance=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_error_function_relatives(dtype):
    tolerance = 5e-6 if dtype is torch.float32 else 5e-14
    x = [NAN, INF, -INF, 0.0, -0.0, 1e-3, 0.5, 1.9, 2.0, 2.1, 2.49, 2.5, 2.6, 6.0, 30.0, 1e10]
    x += [-value for value in x[5:14]]
    functions = {"erfcx": torch.special.erfcx, "log_ndtr": torch.special.log_ndtr}
    check_each(functions, torch.tensor(x, dtype=dtype), tolerance=tolerance)
    p = [NAN, -0.1, 0.0, 1.0, 1.1, 1e-35, 1e-20, 1e-5, 0.13, 0.14, 0.3, 0.6, 0.86, 0.87, 0.999]
    check_each({"ndtri": torch.special.ndtri}, torch.tensor(p, dtype=dtype), tolerance=5e-6)


def test_high_polygamma():
    """Beyond the largest factorial."""
    functions = {str(n): lambda x, n=n: torch.polygamma(n, x) for n in (33, 40, 171, 200)}
    check_each(functions, torch.tensor([0.5, 1.0, 3.0]), tolerance=1e-4)


def test_polygamma():
    functions = {str(n): lambda x, n=n: torch.polygamma(n, x) for n in range(5)}
    check_each(functions, torch.tensor([0.3, 1.0, 4.5, -0.5, -1.3, 20.0]), tolerance=1e-5)
    check_each(functions, torch.tensor([2, 5]), tolerance=1e-5)


def test_decomposed_relatives():
    x = torch.tensor([0.1, 0.5, 0.9])
    check(
        lambda x: [
            torch.special.xlog1py(x, x),
            torch.special.entr(x),
            torch.special.ndtr(x),
            torch.logit(x),
        ],
        x,
    )


def test_numbers_beside_integers():
    check(
        lambda x: [
            torch.special.xlog1py(x, 2),
            torch.special.xlog1py(2.5, x),
            torch.special.xlog1py(x, 0.5),
        ],
        torch.tensor([0, 1, 2, 7]),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zeta_of_large_orders(dtype):
    orders = torch.tensor([999.0, 1000.0, 1e4, 1e10, math.inf], dtype=dtype)
    starts = torch.tensor([0.1, 0.9, 0.9999, 1.0, 1.0001, 1.02, 2.0, 1e5, -1.5], dtype=dtype)
    orders = orders[:, None].expand(5, 9).contiguous()
    # The odd one of these orders makes the difference of two infinities left of zero.
    starts = starts.expand(5, 9).where(orders != 999, starts.abs()).contiguous()
    check_each({"zeta": torch.special.zeta}, orders, starts, tolerance=1e-4)
