import math

import pytest
import torch

from tests.lowering.elementwise import check_each
from tests.lowering.running import check

INF, NAN = math.inf, math.nan
HARD = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.5, -2.0, 3.7]
EXPONENTS = [0, 1, 2, 3, 4, 5, -1, -2, -3, 0.5, -0.5, 0.3, 2.5, -1.7, INF, -INF, NAN]
BASES = [0.0, 1.0, 2.0, 10.0, 0.3, -2.0, NAN, INF, 2, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_hard_floats(dtype):
    values = torch.tensor(HARD, dtype=dtype)
    check_each({str(e): lambda x, e=e: x**e for e in EXPONENTS}, values)
    check_each({str(b): lambda x, b=b: b**x for b in BASES}, values)
    check_each({"tensors": torch.pow}, values[:, None].contiguous(), values[None])


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.uint8])
def test_integers(dtype):
    base = torch.tensor([0, 1, 2, 3, 7, 11], dtype=dtype)
    if dtype is not torch.uint8:
        base = torch.cat([base, -base])
    exponent = torch.tensor([0, 1, 2, 5, 9], dtype=dtype)
    check(torch.pow, base[:, None].contiguous(), exponent[None])
    check(
        lambda a, b: [a**3, a**7, a**0, 2**b, 3**b, a**0.5, a**2.0, 2.5**b],
        base,
        exponent,
    )


def test_negative_integer_exponents_in_a_tensor():
    check(
        lambda a, b: [a**b, 2**b, 1**b],
        torch.tensor([1, -1, -1, 2, 0, -2]),
        torch.tensor([-1, -1, -2, -1, -1, -3]),
    )


def test_bool_base():
    check(lambda b: [b**2, b**2.5, 2**b], torch.tensor([True, False]))


def test_complex():
    z = torch.tensor([1 + 2j, -0.5 + 0.1j, 3 - 1j])
    check(lambda z: [z**2, z**3, z**0.5, z**-1], z)
    check(lambda z: [z**2.5, 2**z, z**z], z, tolerance=1e-5)


def test_large_powers_of_two_are_exact():
    check(lambda n: 2.0**n, torch.arange(-120.0, 127.0), tolerance=0)
