import operator

import pytest
import torch

from tests.lowering.running import check

INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)


@pytest.mark.parametrize("dtype", [*INTEGERS, torch.bool])
def test_logic(dtype):
    values = [0, 1] if dtype is torch.bool else [0, 1, 85, 127, torch.iinfo(dtype).min]
    x = torch.tensor(values, dtype=dtype)
    number = True if dtype is torch.bool else 6
    check(
        lambda a, b: [
            *(op(a, b) for op in (operator.and_, operator.or_, operator.xor)),
            *(op(a, number) for op in (operator.and_, operator.or_, operator.xor)),
            *(op(number, a) for op in (operator.and_, operator.or_, operator.xor)),
            ~a,
        ],
        x[:, None],
        x[None],
    )


@pytest.mark.parametrize("dtype", INTEGERS)
def test_shifts(dtype):
    limits = torch.iinfo(dtype)
    x = torch.tensor([0, 1, 5, limits.max, limits.min], dtype=dtype)
    amounts = torch.tensor([0, 1, 7, 8, 100], dtype=dtype)
    if limits.min < 0:
        amounts = torch.cat([amounts, torch.tensor([-1, -100], dtype=dtype)])
    check(
        lambda a, b: [
            a << b,
            a >> b,
            a << 3,
            a >> 2,
            a >> 100,
            torch.bitwise_left_shift(a, b),
            torch.bitwise_right_shift(a, b),
            torch.bitwise_left_shift(5, b),
            torch.bitwise_right_shift(a, 1),
        ],
        x[:, None],
        amounts[None],
    )


def test_promotion():
    check(
        lambda i, u, b: [i & u, i | b, u ^ b, i << u, b & True, b | 2],
        torch.tensor([-1, 6]),
        torch.tensor([3, 200], dtype=torch.uint8),
        torch.tensor([True, False]),
    )
