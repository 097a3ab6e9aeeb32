"""Padding rules of views, reductions, products, softmax, attention and positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.padding.checking import check

SIZES = [(3, 5), (6, 9), (8, 16), (17, 3)]


def matrix(*shape: int) -> Callable[..., list[torch.Tensor]]:
    """Give a float tensor of the two dynamic sizes and then `shape`."""
    return lambda b, s: [torch.randn(b, s, *shape)]


def flattened(x: torch.Tensor) -> torch.Tensor:
    """Merge both dynamic dims and sum over them in parts."""
    flat = x.reshape(-1, x.shape[-1])
    return flat.softmax(0) + flat.sum(0) + flat.reshape(x.shape[0], -1).mean(1).sum()


CASES: dict[str, Callable[..., Any]] = {
    "sum": lambda x: (x.sum(), x.sum(0), x.sum(1, keepdim=True), x.sum((0, 1))),
    "mean": lambda x: (x.mean(), x.mean(0), x.mean((1, 2), keepdim=True)),
    "prod": lambda x: (x.prod(0), x.prod(1)),
    "any": lambda x: ((x > 1).any(), (x > 1).any(0), (x > 0).all(1)),
    "softmax": lambda x: (x.softmax(0), x.softmax(1), x.log_softmax(1), x.softmax(-1)),
    "flattened": flattened,
    "transposed": lambda x: x.transpose(0, 1).reshape(-1, 4).sum(0) + x.mT.sum(),
    "matmul": lambda x: (x @ x.mT, x.mT @ x, x.reshape(-1, 4).T @ x.reshape(-1, 4)),
    "slices": lambda x: (x[1:], x[:, -2:], x[:, :-1], x[::2], x[:, 1::3], x[-1], x[:, -2]),
    "cat": lambda x: (torch.cat([x, x[:1], x * 2]), torch.cat([x[:, :1], x, x], 1).sum(1)),
    "size as data": lambda x: x * x.shape[0] + x.shape[1] / (x.shape[0] + 1),
    "arange": lambda x: torch.arange(x.shape[1]) + torch.arange(2, x.shape[0] + 2)[:, None],
    "layer norm": lambda x: F.layer_norm(x, (4,)),
    "expand": lambda x: x[:, :1].expand(-1, x.shape[1], -1) + x[:1],
    "split heads": lambda x: x.reshape(x.shape[0], x.shape[1], 2, 2).transpose(1, 2).sum(2),
    "relayout": lambda x: x.reshape(-1) + x.transpose(0, 1).reshape(-1),
    "other grouping": lambda x: x.transpose(0, 1).reshape(x.shape[0], x.shape[1], 4).sum(1),
}


@pytest.mark.parametrize("name", CASES)
def test_padding_does_not_show(name: str) -> None:
    check(CASES[name], matrix(4), SIZES, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["flattened", "matmul", "softmax", "mean", "layer norm", "sum"])
def test_padding_does_not_show_in_gradients(name: str) -> None:
    check(CASES[name], matrix(4), SIZES, gradients=True, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("gradients", [False, True])
def test_attention(causal: bool, gradients: bool) -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    check(
        function,
        lambda b, s: [torch.randn(b, 2, s, 8) for _ in range(3)],
        SIZES,
        gradients=gradients,
        rtol=1e-4,
        atol=1e-5,
    )


def test_padding_of_a_computed_mask_does_not_show() -> None:
    def function(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=(mask * 2).detach())

    check(
        function,
        lambda b, s: [*(torch.randn(b, 2, s, 8) for _ in range(3)), torch.randn(b, 1, s, s)],
        [(3, 5), (6, 9), (8, 16)],
        gradients=True,
        rtol=1e-4,
        atol=1e-5,
    )


def test_positions() -> None:
    def function(table: torch.Tensor, x: torch.Tensor, index: torch.Tensor) -> Any:
        flat = x.reshape(-1)
        return (
            F.embedding(index, table),
            x[:, index[0] % x.shape[1]],
            flat[index % 6],
            flat[-1 - index % 6],
            x.index_select(1, index[1]),
            x.gather(1, index[:, :2]),
        )

    def inputs(b: int, s: int) -> list[torch.Tensor]:
        return [torch.randn(7, 3), torch.randn(b, s), torch.randint(0, 2, (b, s))]

    check(function, inputs, SIZES)


def test_zero_padding_of_one_dim_says_nothing_about_another_of_its_size() -> None:
    """The padding of softmax weights is zero along one of the two dims of size s."""

    def function(x: torch.Tensor) -> torch.Tensor:
        b, s, width = x.shape
        weights = (x.reshape(-1, width) @ x[0].T).softmax(-1)
        return weights.reshape(b, s, s).sum(1)

    check(function, matrix(4), SIZES, rtol=1e-5, atol=1e-5)
