import math

import pytest
import torch

from tests.lowering.running import check

INF, NAN = math.inf, math.nan


def extremes(x):
    """Return every kind of extreme of a matrix."""
    return [
        *(f(x) for f in (torch.max, torch.min, torch.amax, torch.amin)),
        *(f(x, dim) for f in (torch.amax, torch.amin) for dim in (0, -1, (0, 1), ())),
        *(
            f(x, dim, keepdim=keep)
            for f in (torch.max, torch.min)
            for dim in (0, -1)
            for keep in (False, True)
        ),
        *torch.aminmax(x, dim=1),
    ]


def positions(x):
    """Return every kind of position of the extremes of a matrix."""
    return [
        *(f(x) for f in (torch.argmax, torch.argmin)),
        *(
            f(x, dim, keepdim=keep)
            for f in (torch.argmax, torch.argmin)
            for dim in (0, -1)
            for keep in (False, True)
        ),
        torch.argmax(x, None, True),
    ]


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.int8, torch.uint8, torch.bool]
)
def test_values_and_ties(dtype):
    x = torch.tensor([[1, 5, 5, 0], [3, 3, 1, 2], [0, 5, 0, 5]]).to(dtype)
    check(extremes, x)
    if dtype is not torch.bool:
        check(positions, x)


def test_hard_floats():
    x = torch.tensor(
        [[1.0, NAN, NAN], [-INF, -INF, -INF], [INF, 1.0, INF], [NAN, INF, -INF], [-1.0, -2.0, -INF]]
    )
    check(lambda x: [*extremes(x), *positions(x)], x)
    check(lambda x: [*extremes(x), *positions(x)], x.bfloat16())


def test_integer_limits():
    limits = torch.iinfo(torch.int64)
    x = torch.tensor([[limits.min, limits.min], [limits.max, limits.max], [0, limits.min]])
    check(lambda x: [*extremes(x), *positions(x)], x)


def test_shapes():
    check(
        lambda number, empty: [
            number.max(),
            number.amax(0),
            *number.max(0),
            *number.min(-1, keepdim=True),
            number.argmax(),
            number.argmin(0),
            number.argmax(-1, keepdim=True),
            *empty.max(1),
            empty.amax(1),
            empty.argmax(1),
        ],
        torch.tensor(2.5),
        torch.empty(0, 3),
    )


def test_non_contiguous_operand():
    check(lambda x: [*extremes(x), *positions(x)], torch.rand(4, 3).t())


def test_many_elements():
    # Long reductions are split: the first of equal elements must win across the parts.
    x = torch.zeros(3, 5000)
    x[1, 700] = x[1, 3100] = 1
    x[2, 4999] = x[2, 2500] = NAN
    check(lambda x: [*x.max(1), *x.min(1), x.argmax(), x.argmax(1)], x)
