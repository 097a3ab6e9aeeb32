import math
from fractions import Fraction

import pytest
import torch
from scipy import special

from lowering.ops.incomplete_gamma import temme_coefficients
from tests.lowering.elementwise import check_each
from tests.lowering.running import check, run

FUNCTIONS = {"igamma": torch.igamma, "igammac": torch.igammac}


def grid(dtype):
    orders = [1e-5, 0.01, 0.3, 0.5, 1.0, 1.5, 4.0, 7.9, 8.1, 15.0, 20.0, 21.0, 60.0, 199.0, 1e3]
    factors = [1e-3, 0.1, 0.4, 0.69, 0.71, 0.9, 0.99, 1.0, 1.01, 1.2, 1.29, 1.31, 2.0, 5.0]
    orders = torch.tensor(orders, dtype=dtype)[:, None]
    x = orders * torch.tensor(factors, dtype=dtype)
    small = torch.tensor([1e-3, 0.2, 0.5, 0.6, 1.0, 1.09, 1.2, 3.0], dtype=dtype)
    x = torch.cat([x, small.expand(len(orders), -1)], 1)
    return orders.expand_as(x).contiguous(), x


def test_double_precision():
    orders, x = grid(torch.float64)
    lower, upper = run(lambda a, x: [torch.igamma(a, x), torch.igammac(a, x)], orders, x)
    a, x = orders.numpy(), x.numpy()
    for ours, true in ((lower, special.gammainc(a, x)), (upper, special.gammaincc(a, x))):
        torch.testing.assert_close(ours, torch.from_numpy(true), rtol=2e-12, atol=1e-290)


def test_single_precision():
    orders, x = grid(torch.float32)
    lower, upper = run(lambda a, x: [torch.igamma(a, x), torch.igammac(a, x)], orders, x)
    a, x = orders.double().numpy(), x.double().numpy()
    for ours, true in ((lower, special.gammainc(a, x)), (upper, special.gammaincc(a, x))):
        torch.testing.assert_close(ours.double(), torch.from_numpy(true), rtol=5e-5, atol=1e-30)


def test_very_large_orders():
    orders = torch.tensor([1e4, 1e6, 1e10], dtype=torch.float64)
    x = orders + orders.sqrt() * torch.tensor([[-2.0], [0.0], [3.0]], dtype=torch.float64)
    check_each(FUNCTIONS, orders.expand_as(x).contiguous(), x, tolerance=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_edges(dtype):
    values = torch.tensor([0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 30.0], dtype=dtype)
    orders, x = (part.contiguous() for part in torch.broadcast_tensors(values[:, None], values))
    check_each(FUNCTIONS, orders, x, tolerance=1e-5)


def test_narrow_types_and_shapes():
    for orders, x in (
        (torch.tensor([0.5, 3.0, 30.0]).bfloat16(), torch.tensor([1.0, 2.5, 28.0]).bfloat16()),
        (torch.tensor([0.5, 3.0]).half(), torch.tensor([[1.0], [2.5]]).half()),
        (torch.tensor(2.0), torch.empty(0, 3)),
    ):
        check(lambda a, x: [torch.igamma(a, x), torch.igammac(a, x)], orders, x)


def test_coefficients():
    """Against the table of DLMF 8.12.9 and the first of Temme's."""
    table = temme_coefficients(2, 3)
    assert table[0] == pytest.approx([-1 / 3, 1 / 12, -2 / 135])
    assert table[1][0] == pytest.approx(float(Fraction(-1, 540)))
