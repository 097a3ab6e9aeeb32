import math

import pytest
import torch
from torch import special

from tests.lowering.elementwise import check_each
from tests.lowering.running import check

FUNCTIONS = {
    name: getattr(special, name)
    for name in ("bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "spherical_bessel_j0")
}
HARD = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-6, 0.3, -0.3, 0.5, -2.2, 4.99, 5.0, 5.01]
MORE = [-8.0, 10.0, 31.5, 100.0, -1.0, 2.0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_bessel(dtype):
    """Relative to the largest value, as a relative error at a zero means nothing."""
    x = torch.tensor(HARD + MORE, dtype=dtype)
    tolerance = None if dtype is torch.float64 else 1e-5
    for function in FUNCTIONS.values():
        check(function, x, tolerance=tolerance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_airy(dtype):
    values = [*HARD, *MORE, 2.08, 2.09, 2.1, -2.08, -2.09, -2.1, 8.3, 8.4, 15.0, 104.0]
    tolerance = 1e-11 if dtype is torch.float64 else 1e-5
    check(special.airy_ai, torch.tensor(values, dtype=dtype), tolerance=tolerance)


def test_promotion_and_shapes():
    functions = FUNCTIONS | {"airy_ai": special.airy_ai}
    for values in torch.tensor([3, 1]), torch.tensor([True]), torch.tensor(0.3), torch.empty(0, 2):
        check_each(functions, values, tolerance=1e-5)
