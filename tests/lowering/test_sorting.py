"""Order: sort, topk, kthvalue, median, mode."""

from __future__ import annotations

import pytest
import torch

from tests.lowering.running import check, run

SPECIAL = torch.tensor(
    [
        [3.0, torch.nan, 1.0, -0.0, 0.0, torch.nan, 3.0],
        [torch.inf, -torch.inf, 2.0, 2.0, -5.0, torch.inf, 0.5],
        [torch.nan] * 7,
    ]
)
DISTINCT = torch.tensor([[4, -3, 9, 0, 7, -128], [5, 8, 1, 127, -2, 6], [3, 2, 10, -7, 0, 11]])


def values_of(dtype):
    if dtype.is_floating_point:
        return SPECIAL.to(dtype)
    return SPECIAL.nan_to_num(5, 100, 0).abs().to(dtype)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
)
def test_sort(dtype):
    """Stable in both directions, NaN above everything."""

    def function(x, zero_dim):
        return [
            *x.sort(stable=True),
            *x.sort(dim=0, stable=True),
            *x.sort(dim=1, descending=True, stable=True),
            *x.sort(-2, descending=True),
            *x[:, :0].sort(),
            *zero_dim.sort(),
            *zero_dim.sort(-1, descending=True),
        ]

    x = values_of(dtype)
    check(function, x, x[0, 0])


def test_sort_negative_nan():
    x = torch.tensor([1.0, -torch.nan, torch.inf, torch.nan])
    check(lambda x: [*x.sort(stable=True), *x.topk(2)], x)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.float64, torch.int32, torch.int8]
)
def test_topk(dtype):
    def function(x, zero_dim):
        return [
            *x.topk(3),
            *x.topk(2, 0),
            *x.topk(6, largest=False),
            *x.topk(1, 0, largest=False),
            *x.topk(0),
            *zero_dim.topk(1),
            *zero_dim.topk(1, largest=False),
        ]

    check(function, DISTINCT.to(dtype), DISTINCT.to(dtype)[0, 0])


def test_topk_special_values():
    check(
        lambda x: [x.topk(k, largest=largest)[0] for k in (2, 5) for largest in (True, False)],
        SPECIAL,
    )


def test_topk_takes_the_first_of_equals():
    (_, largest, _, smallest) = run(
        lambda x: [*x.topk(2), *x.topk(2, largest=False)], torch.tensor([1.0, 2.0, 2.0, 1.0, 2.0])
    )
    assert largest.tolist() == [1, 2]
    assert smallest.tolist() == [0, 3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_kthvalue(dtype):
    def function(x, zero_dim):
        return [
            *x.kthvalue(1),
            *x.kthvalue(4, -1, keepdim=True),
            *x.kthvalue(2, 0),
            *zero_dim.kthvalue(1),
        ]

    check(function, DISTINCT.to(dtype), DISTINCT.to(dtype)[1, 1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_median(dtype):
    def function(x, y, zero_dim):
        return [
            *x.median(1),
            *x[:2].nanmedian(1, keepdim=True),
            x.nanmedian(1).values,
            *y.median(0, keepdim=True),
            *y.nanmedian(-1),
            x.median(),
            x.nanmedian(),
            y.median(),
            x[2].nanmedian(),
            *zero_dim.median(0),
            zero_dim.nanmedian(),
            x[:0].median(),
            *x[:0].median(1),
        ]

    x = SPECIAL.to(dtype)
    check(function, x, DISTINCT.to(dtype), x[0, 0])


def test_median_of_integers():
    def function(x):
        return [*x.median(1), *x.nanmedian(0), x.median(), x[:0].median()]

    check(function, DISTINCT)


def test_mode():
    def function(x, y, zero_dim, flags):
        return [
            *x.mode(),
            *x.mode(0, keepdim=True),
            *y.mode(1),
            *zero_dim.mode(0),
            *flags.mode(),
        ]

    x = torch.tensor([[1.0, 2, 2, 3, 1, 5, 1], [2, 2, 1, 1, 3, -torch.inf, 3]])
    y = torch.tensor([[7, 7, 3, 3], [0, -4, 0, 2]])
    check(function, x, y, x[0, 0], torch.tensor([True, False, True]))
