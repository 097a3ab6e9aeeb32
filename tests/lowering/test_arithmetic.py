import math
import operator

import pytest
import torch

from tests.lowering.running import check

INF, NAN = math.inf, math.nan
HARD = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.1, -7.5, 3.0]
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def pairs(values, dtype):
    values = torch.tensor(values, dtype=dtype)
    return values[:, None].contiguous(), values[None, :].contiguous()


SAME_DTYPE = {
    "add": torch.add,
    "add_alpha": lambda a, b: torch.add(a, b, alpha=3),
    "sub": torch.sub,
    "sub_alpha": lambda a, b: torch.sub(a, b, alpha=2),
    "rsub": lambda a, b: torch.rsub(a, b),
    "mul": torch.mul,
    "div": torch.div,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "fmax": torch.fmax,
    "fmin": torch.fmin,
}
DIVISIONS = {
    "floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "floor_divide": torch.floor_divide,
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", [*SAME_DTYPE, *DIVISIONS, "atan2", "hypot", "copysign"])
def test_hard_floats(name, dtype):
    function = {**SAME_DTYPE, **DIVISIONS}.get(name) or getattr(torch, name)
    check(lambda a, b: function(a, b), *pairs(HARD, dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", DIVISIONS)
def test_quotients_are_exact(name, dtype):
    left = (torch.rand(200, generator=torch.manual_seed(1)) - 0.5).to(dtype) * 100
    right = (torch.rand(200) - 0.5).to(dtype)
    check(DIVISIONS[name], left, right, tolerance=0)


def test_floor_division_agrees_with_the_remainder():
    check(lambda a, b: [a // b, a % b], torch.tensor([1.0, -1.0, 6.0]), torch.tensor([0.1, 0.1, 0.2]))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers(dtype):
    limits = torch.iinfo(dtype)
    values = [0, 1, 2, 5, 7, limits.max, limits.min, limits.max - 1]
    values += [-1, -3, -7] if limits.min < 0 else [200]
    check(lambda a, b: [f(a, b) for f in SAME_DTYPE.values()], *pairs(values, dtype))
    left, right = pairs([v for v in values if v not in (0, -1)], dtype)
    check(lambda a, b: [f(a, b) for f in DIVISIONS.values()], left, right)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32])
def test_smallest_integer_divided_by_minus_one_wraps(dtype):
    left = torch.tensor([torch.iinfo(dtype).min], dtype=dtype)
    check(
        lambda a, b: [torch.div(a, b, rounding_mode="trunc"), a // b, a % b],
        left,
        torch.full_like(left, -1) if dtype is not torch.int32 else torch.full_like(left, -2),
    )


def test_bools():
    values = torch.tensor([True, False])
    check(
        lambda a, b: [a + b, a * b, a / (b | True), torch.maximum(a, b), torch.minimum(a, b), a + 1],
        values[:, None],
        values[None],
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_numbers(dtype):
    x = torch.tensor([1.0, -2.5, 0.3, 100.0, 0.0], dtype=dtype)
    check(
        lambda x: [
            *(op(x, 0.1) for op in (operator.add, operator.sub, operator.mul, operator.truediv)),
            *(op(0.1, x) for op in (operator.add, operator.sub, operator.mul, operator.truediv)),
            x % 0.3,
            0.3 % x,
            x // 0.3,
            torch.fmod(x, -0.7),
            torch.div(x, 0.3, rounding_mode="trunc"),
            torch.copysign(x, -1),
            torch.add(x, 2, alpha=0.1),
        ],
        x,
        tolerance=0,
    )


def test_promotion():
    check(
        lambda i, u, b, f, h, zero: [
            i + 2.5, u + i, b + 1, b * 2.5, f + h, h * zero, zero * i, u - 1, i / 2, i % 2.5, i + f,
            h + 1j, u / u, b - i, torch.maximum(i, f), torch.atan2(i, u), i // 3, i - 3, 7 // i,
        ],
        torch.tensor([1, -2, 3]),
        torch.tensor([1, 200, 3], dtype=torch.uint8),
        torch.tensor([True, False, True]),
        torch.tensor([0.5, 1.5, 2.5]),
        torch.tensor([0.5, 1.5, 2.5], dtype=torch.bfloat16),
        torch.tensor(3.3),
    )  # fmt: skip


def test_bfloat16_with_a_0d_float32():
    check(
        lambda x, factor: [x * factor, x + factor, x / factor, factor - x],
        torch.rand(50).bfloat16(),
        torch.tensor(0.1),
        tolerance=0,
    )


def test_complex():
    a = torch.tensor([1 + 2j, -0.5 + 0.1j, 3 - 1j])
    b = torch.tensor([0.3 - 2j, 1.5 + 0.1j, -3 - 1j])
    check(lambda a, b: [a + b, a - b, a * b, a / b, a * 2, a + 1j, torch.add(a, b, alpha=2j)], a, b)


def test_shapes():
    check(
        lambda a, b, c, empty: [a + b, a * c, b + c, empty + a[:, :1], c + c],
        torch.rand(3, 4).t().contiguous().t(),
        torch.rand(4),
        torch.tensor(2.0),
        torch.empty(3, 0),
    )


def test_nextafter():
    a = torch.tensor([1.0, -1.0, 1e30, INF, NAN, 5.0])
    b = torch.tensor([2.0, -2.0, -INF, 0.0, 1.0, 5.0])
    check(torch.nextafter, a, b, tolerance=0)
    check(torch.nextafter, a.double(), b.double(), tolerance=0)


def test_ldexp():
    check(
        lambda x, n: [torch.ldexp(x, n), torch.ldexp(n, n)],
        torch.tensor([1.0, -0.7, 0.3, INF]),
        torch.tensor([5, -20, 100, 3]),
        tolerance=0,
    )


@pytest.mark.parametrize("dtype", INTEGERS)
def test_divisors_and_multiples(dtype):
    values = [0, 1, 4, 6, 9, 12, 35, 100] + ([-4, -9] if dtype is not torch.uint8 else [])
    check(lambda a, b: [torch.gcd(a, b), torch.lcm(a, b)], *pairs(values, dtype))
