import math
import operator

import pytest
import torch

from tests.lowering.running import check

INF, NAN = math.inf, math.nan
HARD = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0]
OPERATORS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_floats(dtype):
    x = torch.tensor(HARD, dtype=dtype)
    check(lambda a, b: [op(a, b) for op in OPERATORS], x[:, None], x[None])
    x = torch.tensor([0.1, 0.3, 1.0, NAN], dtype=dtype)
    check(lambda x: [op(x, number) for op in OPERATORS for number in (0.1, 1, True, NAN)], x)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.uint8, torch.bool])
def test_integers(dtype):
    values = (
        [0, 1] if dtype is torch.bool else [0, 1, torch.iinfo(dtype).max, torch.iinfo(dtype).min]
    )
    x = torch.tensor(values, dtype=dtype)
    check(lambda a, b: [op(a, b) for op in OPERATORS], x[:, None], x[None])
    check(lambda x: [op(x, number) for op in OPERATORS for number in (1, 0.5)], x)


def test_promotion():
    check(
        lambda i, u, f, zero, big: [
            op(a, b)
            for op in OPERATORS
            for a, b in ((i, u), (i, f), (u, zero), (big, f), (i, zero))
        ],
        torch.tensor([-1, 2]),
        torch.tensor([255, 2], dtype=torch.uint8),
        torch.tensor([0.5, 2.0]),
        torch.tensor(1.5),
        torch.tensor([2**53 + 1, 16777217]),
    )


def test_complex_equality():
    z = torch.tensor([1 + 2j, complex(NAN, 0), 0j])
    check(lambda z: [z == z.conj(), z != z, z == 0, z == (1 + 2j)], z)


def test_shapes():
    check(
        lambda a, number, empty: [
            a == number,
            number == 2,
            empty > 1,
            a < a * 2,
            number.isnan(),
        ],
        torch.rand(3, 2),
        torch.tensor(2.0),
        torch.empty(0, 3),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_classification(dtype):
    x = torch.tensor(HARD if dtype.is_floating_point else [0, 1, -3], dtype=dtype)
    check(lambda x: [x.isnan(), x.isinf(), x.isfinite(), torch.isposinf(x), torch.isneginf(x)], x)


def test_classification_of_complex():
    z = torch.tensor([complex(NAN, 0), complex(0, INF), complex(1, -INF), 1 + 1j])
    check(lambda z: [z.isnan(), z.isinf()], z)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8, torch.bool])
def test_logic(dtype):
    values = [NAN, 0.0, -0.0, 2.0, INF] if dtype.is_floating_point else [0, 1, 2]
    x = torch.tensor(values, dtype=dtype)
    check(
        lambda a, b: [
            torch.logical_and(a, b),
            torch.logical_or(a, b),
            torch.logical_xor(a, b),
            torch.logical_not(a),
        ],
        x[:, None],
        torch.tensor([1.5, 0.0]),
    )
