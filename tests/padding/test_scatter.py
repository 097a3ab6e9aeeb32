"""Padding rules of what writes at positions, and of what reads at them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.padding.checking import check

SIZES = [(3, 5), (6, 9), (8, 16), (17, 4)]


def inputs(b: int, s: int) -> list[torch.Tensor]:
    """Give a float tensor `[b, s, 4]` and distinct positions `[b, s]` below s."""
    order = torch.stack([torch.randperm(s) for _ in range(b)])
    return [torch.randn(b, s, 4), order]


def assigned(x: torch.Tensor, index: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Give `x` with positions of dim 1 replaced."""
    x = x.clone()
    x[:, index] = value
    return x


def put(x: torch.Tensor, order: torch.Tensor) -> Any:
    b, s = order.shape
    rows = torch.arange(b)[:, None]
    y, flat = x[..., 0], x.reshape(-1, 4)
    return (
        torch.index_put(y, (rows, order), y * 2),
        torch.index_put(x, (rows, order - s), x * 2),
        assigned(x, order[0], x[:, :1] * 3),
        torch.index_put(x, (order[0] % 3, order[0]), x[0], accumulate=True),
        torch.index_put(flat, (order[:, 0] - 1,), x[:, 0] * 3, accumulate=True),
        torch.index_put(y, (y > 0,), y.new_tensor(7.0)),
        x.masked_fill(y[..., None] > 0, -2),
    )


def along(x: torch.Tensor, order: torch.Tensor) -> Any:
    y = x[..., 0]
    zeros, flat = torch.zeros_like(y), x[..., 1].reshape(-1)
    return (
        zeros.scatter(1, order, y),
        zeros.scatter(1, order[:, :2], 3.0),
        zeros.scatter(1, order[:2], y[:2]),
        zeros.scatter_add(1, order // 2, y),
        zeros.scatter_add(0, order % 3, y),
        y.scatter_reduce(1, order // 2, y, "amax"),
        y.scatter_reduce(1, order // 2, y, "mean", include_self=False),
        y.scatter_reduce(1, order // 2, y, "prod"),
        flat.scatter_add(0, order[0], y[0]),
        x.new_zeros(3, 4).scatter_add(0, order[:, :1].expand(-1, 4) % 3, x[:, 0]),
        x.gather(1, order[..., None].expand(-1, -1, 4)),
        flat.gather(0, order[0]),
        y.gather(1, order[:2]),
    )


def slices(x: torch.Tensor, order: torch.Tensor) -> Any:
    index, few = order[0], order[0] % 3
    flat = x.reshape(-1, 4)
    return (
        x.index_add(1, index, x * 2),
        x.index_add(0, few, x[:1].expand(x.shape[1], -1, -1), alpha=2),
        x.index_copy(1, index, x * 2),
        x.index_fill(1, index[:2], 7.0),
        flat.index_add(0, index, x[0]),
        x.index_select(1, index),
        torch.take(x, order),
    )


def reduced(x: torch.Tensor, order: torch.Tensor) -> Any:
    few = order[0] % 3
    source = x[:1].expand(x.shape[1], -1, -1)
    return (
        *(x.index_reduce(0, few, source, mode) for mode in ("prod", "mean", "amax", "amin")),
        torch.nonzero_static(order > 1, size=6),
        torch.nonzero_static(order.reshape(-1) > 1, size=order.shape[1], fill_value=-7),
        x.put(order, x[..., 0]),
        x.put(order - 1, x[..., 0], accumulate=True),
    )


def masked(x: torch.Tensor, order: torch.Tensor) -> Any:
    y = x[..., 0]
    return (
        y.masked_scatter(order > 1, x),
        x.masked_scatter((order > 1)[..., None], x * 2),
        y.reshape(-1).masked_scatter(order.reshape(-1) > 1, y * 2),
        x[:, 0].masked_scatter(order[:, :1] > 1, x),
    )


def where(x: torch.Tensor, order: torch.Tensor) -> Any:
    truth = order > 1
    y = x.reshape(-1, 4).clone()
    y[truth.reshape(-1)] = x[0, :1] * 2
    return torch.index_put(x, (truth,), x[0, 0]), y


CASES = [put, along, slices, reduced, masked, where]


@pytest.mark.filterwarnings("ignore:index_reduce\\(\\) is in beta")
@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_padding_does_not_show(function: Callable[..., Any]) -> None:
    check(function, inputs, SIZES, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("function", [put, along, slices, masked], ids=lambda f: f.__name__)
def test_padding_does_not_show_in_gradients(function: Callable[..., Any]) -> None:
    check(function, inputs, SIZES[:3], gradients=True, rtol=1e-4, atol=1e-4)


def test_embedding_trains() -> None:
    def function(table: torch.Tensor, index: torch.Tensor) -> Any:
        return F.embedding(index, table), F.embedding(index.reshape(-1), table, padding_idx=1)

    check(
        function,
        lambda b, s: [torch.randn(7, 3), torch.randint(0, 7, (b, s))],
        SIZES[:3],
        gradients=True,
        rtol=1e-5,
        atol=1e-5,
    )


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags(mode: str) -> None:
    def function(
        table: torch.Tensor, index: torch.Tensor, offsets: torch.Tensor, square: torch.Tensor
    ) -> Any:
        return (
            F.embedding_bag(index, table, offsets, mode=mode),
            F.embedding_bag(index, table, offsets, mode=mode, padding_idx=2),
            F.embedding_bag(square, table, mode=mode),
            F.embedding_bag(index, table, offsets, mode=mode, include_last_offset=True),
        )

    def given(n: int, bags: int) -> list[torch.Tensor]:
        offsets = torch.linspace(0, n, bags).long()
        table = torch.randn(7, 3)
        return [table, torch.randint(0, 7, (n,)), offsets, torch.randint(0, 7, (n, bags))]

    sizes = [(5, 3), (9, 6), (16, 4)]
    check(function, given, sizes, gradients=True, rtol=1e-5, atol=1e-5)
