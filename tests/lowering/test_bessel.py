import math

import pytest
import torch
from torch import special

from tests.lowering.elementwise import check_each

FUNCTIONS = {name: getattr(special, name) for name in ("i0", "i0e", "i1", "i1e")}
# Eager has these for no narrow float.
MODIFIED = {name: getattr(special, name) for name in ("modified_bessel_i0", "modified_bessel_i1")}
SECOND_KIND = {
    name: getattr(special, name)
    for name in (
        "modified_bessel_k0",
        "modified_bessel_k1",
        "scaled_modified_bessel_k0",
        "scaled_modified_bessel_k1",
    )
}
VALUES = [math.nan, 0.0, 0.3, -0.3, 1.0, -5.0, 7.9, 8.0, 8.1, 30.0, -60.0, 100.0]
POSITIVE = [math.nan, 0.0, -0.0, -1.0, 1e-3, 0.3, 1.0, 1.9, 2.0, 2.1, 8.0, 30.0, 80.0, math.inf]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_values(dtype):
    tolerance = {torch.float32: 5e-6, torch.float64: 1e-13}.get(dtype)
    functions = FUNCTIONS if dtype is torch.bfloat16 else FUNCTIONS | MODIFIED
    check_each(functions, torch.tensor(VALUES, dtype=dtype), tolerance=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_second_kind(dtype):
    tolerance = {torch.float32: 5e-6, torch.float64: 1e-13}.get(dtype)
    check_each(SECOND_KIND, torch.tensor(POSITIVE, dtype=dtype), tolerance=tolerance)


def test_integers_and_shapes():
    for values in torch.tensor([3, -2]), torch.tensor(0.3), torch.empty(0, 2):
        check_each(FUNCTIONS | MODIFIED | SECOND_KIND, values, tolerance=5e-6)
