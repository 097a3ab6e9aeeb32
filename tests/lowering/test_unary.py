import cmath
import math

import pytest
import torch

from tests.lowering.elementwise import check_each
from tests.lowering.running import check, run

INF, NAN = math.inf, math.nan
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
HARD = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 0.1, -0.3, 3.7, -8.0, 10.0]


def functions(names):
    return {name: getattr(torch, name) for name in names.split()}


ELEMENTARY = functions(
    "exp exp2 expm1 log log1p log2 log10 sqrt rsqrt reciprocal sin cos tan tanh sinh cosh "
    "asin acos atan asinh acosh atanh"
)
ROUNDING = functions("floor ceil trunc round")
SIGNS = functions("sign abs neg")
ALL = {**ELEMENTARY, **ROUNDING, **SIGNS, "signbit": torch.signbit}


@pytest.mark.parametrize("dtype", FLOATS)
def test_hard_floats(dtype):
    check_each(ALL, torch.tensor(HARD, dtype=dtype))


def test_large_and_tiny_floats():
    check_each(
        functions("log log1p log2 log10 sqrt rsqrt tanh asinh atan expm1 round trunc floor abs"),
        torch.tensor([1e30, 1e-30, 3.4e38, 1e-7, 8388609.0, 123456.7]),
    )
    check_each(functions("exp exp2 sinh cosh"), torch.tensor([80.0, -80.0, 1e-7, 89.5, -110.0]))


def test_shapes():
    for values in torch.tensor(0.7), torch.empty(0, 3), torch.rand(3, 4).t():
        check_each({**functions("exp log2 asinh"), **ROUNDING, **SIGNS}, values)


def test_integers_become_floats():
    check_each(ELEMENTARY, torch.tensor([-2, 0, 1, 3]))
    for values in torch.tensor([0, 1, 5], dtype=torch.uint8), torch.tensor([True, False]):
        check_each(functions("exp log2 cosh atan"), values)


def test_integers_stay_integers():
    for values in (
        torch.tensor([-2, 0, 1, 3, torch.iinfo(torch.int64).min]),
        torch.tensor([-128, 127, 0, -1], dtype=torch.int8),
        torch.tensor([0, 1, 200], dtype=torch.uint8),
    ):
        check_each({**ROUNDING, **SIGNS, "signbit": torch.signbit}, values)
    check_each(functions("sign"), torch.tensor([True, False]))


def test_complex():
    values = torch.tensor([0.5 + 1j, -0.7 + 0.2j, 1.3 - 2j, -3 - 0.5j])
    check_each({**ELEMENTARY, **functions("abs neg")}, values)


def test_logarithms_of_whole_powers_are_whole():
    powers = torch.pow(2.0, torch.arange(-30, 31))
    check_each(functions("log2"), powers, tolerance=0)
    check_each(functions("log2"), powers.double(), tolerance=0)


@pytest.mark.parametrize("dtype", FLOATS)
def test_round_decimals(dtype):
    check_each(
        {str(d): lambda x, d=d: torch.round(x, decimals=d) for d in (0, 2, -1)},
        torch.tensor([1.2345, -0.5, 2.5, 1234.5, NAN, INF, -0.0, 15.0], dtype=dtype),
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_frexp(dtype):
    values = torch.tensor([1.0, -8.0, 0.3, 0.0, -0.0, NAN, INF, -INF, 1e-3], dtype=dtype)
    check(torch.frexp, values, tolerance=0)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_signs_of_zeros_tell_the_sides_of_branch_cuts(dtype):
    parts = torch.tensor([2.0, -2.0, 0.5, -0.5, 0.0, -0.0], dtype=dtype.to_real())
    zeros = torch.tensor([0.0, -0.0], dtype=dtype.to_real())
    values = torch.cat(
        [
            torch.complex(*torch.meshgrid(parts, zeros, indexing="ij")).flatten(),
            torch.complex(*torch.meshgrid(zeros, parts, indexing="ij")).flatten(),
        ]
    )
    reference = {
        name: torch.tensor([getattr(cmath, name)(z) for z in values.tolist()], dtype=dtype)
        for name in ["sqrt", "asin", "acos", "atan", "asinh", "acosh", "atanh"]
    }
    ours = run(lambda z: [getattr(torch, name)(z) for name in reference] + [z**0.5], values)
    reference["pow"] = reference["sqrt"]
    for actual, (name, expected) in zip(ours, reference.items(), strict=True):
        torch.testing.assert_close(actual, expected, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_infinities_do_not_mix_the_parts(dtype):
    values = torch.tensor([complex(INF, 1), complex(-INF, -0.0), complex(0, INF), 0j], dtype=dtype)
    check(lambda z: [torch.view_as_real(z.log2()), torch.view_as_real(z.log10())], values)
    check_each(functions("exp2"), torch.tensor([complex(-INF, 2), complex(-INF, 0)], dtype=dtype))
