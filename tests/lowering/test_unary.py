import math

import pytest
import torch

from tests.lowering.running import check

INF, NAN = math.inf, math.nan
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
HARD = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 0.1, -0.3, 3.7, -8.0, 20.0]

REAL = {
    name: getattr(torch, name)
    for name in (
        "exp exp2 expm1 log log1p log2 log10 sqrt rsqrt reciprocal sin cos tan tanh sinh cosh "
        "asin acos atan asinh acosh atanh floor ceil trunc round sign signbit abs neg"
    ).split()
}
COMPLEX = (
    "exp expm1 log log1p log2 log10 sqrt rsqrt reciprocal sin cos tan tanh sinh cosh "
    "asin acos atan asinh acosh atanh abs neg"
).split()
INTEGER_KEEPING = ("floor", "ceil", "trunc", "round", "sign", "abs", "neg")


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", REAL)
def test_hard_floats(name, dtype):
    # One element a call keeps the tolerance relative to each value.
    function = REAL[name]
    values = torch.tensor(HARD, dtype=dtype)
    check(lambda x: [function(x)[i] for i in range(len(HARD))], values)


@pytest.mark.parametrize("name", REAL)
def test_shapes(name):
    function = REAL[name]
    check(
        lambda *tensors: [function(x) for x in tensors],
        torch.tensor(0.7),
        torch.empty(0, 3),
        torch.rand(3, 4).t(),
    )


@pytest.mark.parametrize("name", set(REAL) - set(INTEGER_KEEPING))
def test_integers_become_floats(name):
    function = REAL[name]
    check(
        lambda *tensors: [function(x) for x in tensors],
        torch.tensor([-2, 0, 1, 3]),
        torch.tensor([0, 1, 5], dtype=torch.uint8),
        torch.tensor([True, False]),
    )


@pytest.mark.parametrize("name", INTEGER_KEEPING)
def test_integers_stay_integers(name):
    function = REAL[name]
    check(
        lambda *tensors: [function(x) for x in tensors],
        torch.tensor([-2, 0, 1, 3, torch.iinfo(torch.int64).min]),
        torch.tensor([-128, 127, 0, -1], dtype=torch.int8),
        torch.tensor([0, 1, 200], dtype=torch.uint8),
    )


@pytest.mark.parametrize("name", COMPLEX)
def test_complex(name):
    function = REAL[name]
    values = torch.tensor([0.5 + 1j, -0.7 + 0.2j, 1.3 - 2j, -3 - 0.5j])
    check(lambda x: function(x), values)


def test_sign_of_bool():
    check(torch.sign, torch.tensor([True, False]))


@pytest.mark.parametrize("base", [2, 10])
def test_logarithms_of_whole_powers_are_whole(base):
    exponents = torch.arange(-30, 30) if base == 2 else torch.arange(0, 10)
    powers = torch.pow(float(base), exponents.double()).float()
    function = torch.log2 if base == 2 else torch.log10
    check(lambda x: function(x).floor(), powers)


@pytest.mark.parametrize("dtype", FLOATS)
def test_round_decimals(dtype):
    values = torch.tensor([1.2345, -0.5, 2.5, 1234.5, NAN, INF, -0.0, 15.0], dtype=dtype)
    check(
        lambda x: [torch.round(x, decimals=d)[i] for d in (0, 2, -1) for i in range(len(x))], values
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_frexp(dtype):
    check(torch.frexp, torch.tensor([1.0, -8.0, 0.3, 0.0, -0.0, NAN, INF, -INF, 1e-3], dtype=dtype))
