import math

import pytest
import torch

from tests.lowering.elementwise import check_each

FUNCTIONS = {name: getattr(torch.special, name) for name in ("i0", "i0e", "i1", "i1e")}
VALUES = [math.nan, 0.0, 0.3, -0.3, 1.0, -5.0, 7.9, 8.0, 8.1, 30.0, -60.0, 100.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_values(dtype):
    tolerance = {torch.float32: 5e-6, torch.float64: 1e-13}.get(dtype)
    check_each(FUNCTIONS, torch.tensor(VALUES, dtype=dtype), tolerance=tolerance)


def test_integers_and_shapes():
    for values in torch.tensor([3, -2]), torch.tensor(0.3), torch.empty(0, 2):
        check_each(FUNCTIONS, values, tolerance=5e-6)
