import math

import pytest
import torch

from tests.lowering.elementwise import check_each
from tests.lowering.running import check

INF, NAN = math.inf, math.nan
HARD = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.1, -7.5, 3.0]
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def pairs(values, dtype):
    values = torch.tensor(values, dtype=dtype)
    return values[:, None].contiguous(), values[None, :].contiguous()


ARITHMETIC = {
    "add": torch.add,
    "add_alpha": lambda a, b: torch.add(a, b, alpha=3),
    "sub": torch.sub,
    "sub_alpha": lambda a, b: torch.sub(a, b, alpha=2),
    "rsub": lambda a, b: torch.rsub(a, b),
    "mul": torch.mul,
    "div": torch.div,
}
EXTREMES = {
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


GEOMETRY = {"atan2": torch.atan2, "hypot": torch.hypot, "copysign": torch.copysign}


@pytest.mark.parametrize("dtype", FLOATS)
def test_hard_floats(dtype):
    left, right = pairs(HARD, dtype)
    check_each({**ARITHMETIC, **DIVISIONS, **GEOMETRY}, left, right)
    # Which of two zeros is larger depends on the vector path that eager takes.
    check_each(EXTREMES, left, right, signed_zeros=False)


def test_quotients_are_exact():
    left = (torch.rand(200, generator=torch.manual_seed(1)) - 0.5) * 100
    right = torch.rand(200) - 0.5
    check_each(DIVISIONS, left, right, tolerance=0)
    # Eager rounds each step of a bfloat16 floor division; ours rounds the result.
    names = ("trunc", "remainder", "fmod")
    left, right = left.bfloat16(), right.bfloat16()
    check_each({name: DIVISIONS[name] for name in names}, left, right, tolerance=0)


def test_floor_division_agrees_with_the_remainder():
    check(
        lambda a, b: [a // b, a % b], torch.tensor([1.0, -1.0, 6.0]), torch.tensor([0.1, 0.1, 0.2])
    )


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers(dtype):
    limits = torch.iinfo(dtype)
    values = [0, 1, 2, 5, 7, limits.max, limits.min, limits.max - 1]
    values += [-1, -3, -7] if limits.min < 0 else [200]
    check_each({**ARITHMETIC, **EXTREMES}, *pairs(values, dtype))
    left, right = pairs([v for v in values if v not in (0, -1)], dtype)
    check_each(DIVISIONS, left, right)


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
        lambda a, b: [
            a + b,
            a * b,
            a / (b | True),
            torch.maximum(a, b),
            torch.minimum(a, b),
            a + 1,
        ],
        values[:, None],
        values[None],
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_numbers(dtype):
    check_each(
        {
            "add": lambda x: x + 0.1,
            "sub": lambda x: x - 0.1,
            "rsub": lambda x: 0.1 - x,
            "mul": lambda x: x * 0.1,
            "remainder": lambda x: x % 0.3,
            "remainder of a number": lambda x: 0.3 % x,
            "floor": lambda x: x // 0.3,
            "fmod": lambda x: torch.fmod(x, -0.7),
            "trunc": lambda x: torch.div(x, 0.3, rounding_mode="trunc"),
            "copysign": lambda x: torch.copysign(x, -1),
            "alpha": lambda x: torch.add(x, 2, alpha=0.1),
        },
        torch.cat([torch.tensor([1.0, -2.5, 0.3, 100.0, 0.0]), torch.rand(100)]).to(dtype),
        tolerance=0,
    )
    # XLA multiplies by the reciprocal of a constant divisor; our reciprocals are not rounded.
    check_each(
        {"div": lambda x: x / 0.1, "rdiv": lambda x: 0.1 / x},
        torch.tensor([1.0, -2.5, 0.3, 0.0], dtype=dtype),
    )


def test_promotion():
    check(
        lambda i, u, b, f, h, zero: [
            i + 2.5, u + i, b + 1, b * 2.5, f + h, h * zero, zero * i, u - 1, i / 2, i % 2.5, i + f,
            h + 1j, u / u, i * b, torch.maximum(i, f), torch.atan2(i, u), i // 3, i - 3, 7 // i,
        ],
        torch.tensor([1, -2, 3]),
        torch.tensor([1, 200, 3], dtype=torch.uint8),
        torch.tensor([True, False, True]),
        torch.tensor([0.5, 1.5, 2.5]),
        torch.tensor([0.5, 1.5, 2.5], dtype=torch.bfloat16),
        torch.tensor(3.3),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_floats_with_a_0d_float32(dtype):
    functions = {
        f"{name} {side}": (lambda x, factor, op=op: op(x, factor))
        if side == "right"
        else (lambda x, factor, op=op: op(factor, x))
        for name, op in (
            ("add", torch.add),
            ("sub", torch.sub),
            ("mul", torch.mul),
            ("div", torch.div),
        )
        for side in ("left", "right")
    }
    values = torch.rand(100).to(dtype) + 0.1
    check_each(functions, values, torch.tensor(0.1), tolerance=0)
    # Eager's vectorized loop and its scalar tail round the product with alpha differently.
    check_each({"alpha": lambda x: torch.add(x, x, alpha=0.3)}, values)


def test_complex():
    a = torch.tensor([1 + 2j, -0.5 + 0.1j, 3 - 1j])
    b = torch.tensor([0.3 - 2j, 1.5 + 0.1j, -3 - 1j])
    check(lambda a, b: [a + b, a - b, a * b, a / b, a * 2, a + 1j, torch.add(a, b, alpha=2j)], a, b)


def test_shapes():
    check(
        lambda a, b, c, empty: [a + b, a * c, b + c, empty + c, c + c],
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
