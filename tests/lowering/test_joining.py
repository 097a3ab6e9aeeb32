"""Joining, repeating and reordering tensors, and writing blocks into them."""

from __future__ import annotations

import pytest
import torch

from tests.lowering.running import check
from tests.lowering.test_views import DTYPES, numbers, used


@pytest.mark.parametrize("dtype", DTYPES)
def test_cat(dtype):
    def function(x, y, legacy):
        return [
            torch.cat([x, y], 1),
            torch.cat([x, y], -1),
            torch.cat([legacy, x, x], 0),
            torch.cat([x]),
            torch.cat([x[:, :0], x[:, :0]], 1),
            torch.stack([x, x + x], 1),
        ]

    check(
        function,
        numbers(2, 3, dtype=dtype),
        numbers(2, 4, dtype=dtype),
        torch.empty(0, dtype=dtype),
    )


def test_cat_promotes():
    def function(i, f, b, h, legacy):
        return [
            torch.cat([i, f]),
            torch.cat([b, i]),
            torch.cat([h, f, b]),
            torch.cat([legacy, i]),
            torch.cat([legacy, legacy]),
        ]

    check(
        function,
        numbers(3, dtype=torch.int32),
        numbers(2),
        numbers(2, dtype=torch.bool),
        numbers(1, dtype=torch.bfloat16),
        torch.empty(0, dtype=torch.float64),
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_repeating_and_reordering(dtype):
    def function(x, zero_dim):
        return [
            x.repeat(2, 1),
            x.repeat(2, 3, 2),
            x.repeat(0, 1),
            zero_dim.repeat(3),
            zero_dim.repeat(()),
            x.flip(0),
            x.flip(-1, 0),
            x.flip(()),
            zero_dim.flip(()),
            x.roll(1),
            x.roll(-7, 1),
            x.roll((1, 2), (0, 1)),
            x.roll(3, 0),
            x.roll((1, 1), (1, 1)),
            zero_dim.roll(2),
            x[:0].roll(1),
            x[:0].flip(1),
        ]

    check(function, numbers(3, 4, dtype=dtype), numbers(1, dtype=dtype)[0])


@pytest.mark.parametrize(
    "bounds", [(0, 4, 1), (1, 3, 1), (-3, -1, 1), (0, 100, 2), (1, 5, 3), (4, 2, 1)]
)
def test_slice_scatter(bounds):
    start, end, step = bounds

    def function(x, y):
        row, column = x[start:end:step], x[:, start:end:step]
        return [
            torch.slice_scatter(x, row + 50, 0, start, end, step),
            torch.slice_scatter(x, column + column, -1, start, end, step),
            torch.slice_scatter(y, column, 1, start, end, step),
        ]

    check(function, numbers(5, 6), numbers(5, 6, dtype=torch.int32), decompose=False)


@pytest.mark.parametrize(("offset", "dim1", "dim2"), [(0, 0, 1), (1, -1, 0), (-2, 2, 1), (2, 1, 2)])
def test_diagonal_scatter(offset, dim1, dim2):
    def function(x):
        return [torch.diagonal_scatter(x, used(x.diagonal(offset, dim1, dim2)), offset, dim1, dim2)]

    check(function, numbers(3, 4, 5) + 1)
    check(function, numbers(3, 4, 5, dtype=torch.int64) + 1)
