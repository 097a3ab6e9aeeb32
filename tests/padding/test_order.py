"""Padding rules of running totals, sorting, extremes and bins."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.padding.checking import check

SIZES = [(3, 5), (6, 9), (8, 16), (17, 4)]


def numbers(b: int, s: int) -> list[torch.Tensor]:
    """Give floats `[b, s, 2]`, with infinities and NaN among them, and small integers."""
    x = torch.randn(b, s, 2)
    x[0, 1], x[1, 2], x[2, :, 0] = math.inf, -math.inf, -math.inf
    x[2, 3, 1] = math.nan
    integers = torch.randint(-2, 3, (b, s))
    integers[0, 0], integers[1], integers[2, 1] = 2**31 - 1, 2**31 - 1, -(2**31)
    return [x, integers.int()]


def finite(b: int, s: int) -> list[torch.Tensor]:
    """Give distinct floats and small integers."""
    return [torch.randn(b, s, 2), torch.randint(-2, 3, (b, s))]


def running(x: torch.Tensor, i: torch.Tensor) -> Any:
    flat = x.reshape(-1, 2)
    return (
        x.cumsum(0),
        x.cumsum(1),
        x.cumprod(1),
        flat.cumsum(0),
        flat.cumprod(0),
        i.cumsum(1),
        (i > 0).cumsum(0),
        *i.cummax(1),
        *x.cummin(0),
        *flat.cummax(0),
        x.logcumsumexp(1),
        flat.logcumsumexp(0),
    )


def running_smoothly(x: torch.Tensor, i: torch.Tensor) -> Any:
    """Give what torch differentiates without asking for sizes."""
    flat = x.reshape(-1, 2)
    return x.cumsum(1), flat.cumsum(0), x.cummax(1)[0], flat.cummin(0)[0], x.logcumsumexp(1)


def in_order(x: torch.Tensor, i: torch.Tensor) -> Any:
    flat = x.reshape(-1, 2)
    return (
        *x.sort(dim=1, stable=True),
        *x.sort(dim=0, descending=True, stable=True),
        *flat.sort(dim=0, stable=True),
        *i.sort(dim=1, stable=True),
        *i.sort(dim=1, descending=True, stable=True),
        i.reshape(-1).sort(stable=True)[1],
        (i > 0).sort(dim=1, stable=True)[0],
        x.topk(3, 1)[0],
        x.topk(2, 0, largest=False)[0],
        flat.topk(4, 0)[0],
        i.topk(2, 1, largest=False)[0],
        i.topk(i.shape[1] - 1, 1)[0],
        x.sort(2)[0].msort(),
    )


def places(x: torch.Tensor, i: torch.Tensor) -> Any:
    flat = x.reshape(-1, 2)
    return (
        x.kthvalue(3, 1)[0],
        i.kthvalue(2, 0)[0],
        flat.kthvalue(4, 0, keepdim=True)[0],
        x.median(1)[0],
        x.median(0).values,
        x.nanmedian(1)[0],
        i.median(1)[0],
        i.median(),
        x[..., 0].median(),
        flat.nanmedian(),
        flat.median(0)[0],
        i.mode(1)[0],
        i.mode(0, keepdim=True)[0],
        i.reshape(-1).mode()[0],
        x[..., 0].mode(1)[0],
    )


def extremes(x: torch.Tensor, i: torch.Tensor) -> Any:
    flat = x.reshape(-1, 2)
    return (
        x.amax(1),
        x.amin((0, 1)),
        x.max(),
        i.min(),
        i.amax(0, keepdim=True),
        (i > 0).amax(1),
        *x.max(1),
        *x.min(0, keepdim=True),
        *i.max(1),
        *flat.max(0),
        *flat.min(0),
        x.argmax(),
        x[:2].argmin(),
        i.argmax(1, keepdim=True),
        i.reshape(-1).argmin(),
        flat.argmax(0),
        i.argmin(),
        x.aminmax(dim=1),
    )


@pytest.mark.parametrize("function", [running, in_order, places, extremes])
def test_padding_does_not_show(function: Callable[..., Any]) -> None:
    check(function, numbers, SIZES, rtol=1e-5, atol=1e-5)


def indices(x: torch.Tensor, i: torch.Tensor) -> Any:
    """Positions, which only distinct elements define."""
    flat = x.reshape(-1, 2)
    return (
        *x.topk(3, 1),
        *x.topk(2, 0, largest=False),
        *flat.topk(4, 0),
        *x.kthvalue(2, 1),
        *x.median(1),
        *flat.median(0),
        *x.nanmedian(0),
        *flat.sort(0),
    )


def test_positions_are_logical() -> None:
    check(indices, finite, SIZES)


@pytest.mark.parametrize("function", [running_smoothly, indices, places, extremes])
def test_padding_does_not_show_in_gradients(function: Callable[..., Any]) -> None:
    check(function, finite, SIZES[:3], gradients=True, rtol=1e-4, atol=1e-4)


def test_bins() -> None:
    def function(x: torch.Tensor, bounds: torch.Tensor, i: torch.Tensor) -> Any:
        ordered = bounds.sort()[0]
        rows = x.sort(1)[0]
        return (
            torch.bucketize(x, ordered),
            torch.bucketize(i, torch.tensor([-1, 0, 2]), right=True),
            torch.bucketize(0.5, ordered),
            torch.searchsorted(ordered, x.reshape(-1), out_int32=True),
            torch.searchsorted(rows, x, right=True),
            torch.searchsorted(rows, x[:, :2].contiguous()),
            torch.searchsorted(bounds, x, sorter=bounds.argsort()),
            x.nan_to_num(0, 1, -1).histc(5),
            x.histc(4, -1, 1),
            torch.bucketize(x.new_tensor([math.nan, math.inf]), ordered),
        )

    def given(b: int, s: int) -> list[torch.Tensor]:
        x = torch.randn(b, s)
        x[0, 1], x[1, 1] = math.inf, -math.inf
        return [x, torch.randn(b + 20), torch.randint(-2, 3, (b, s))]

    check(function, given, SIZES)
