"""What users write with sizes that change, forward and gradients: losses, masks, pooling, pairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.padding.checking import check

SIZES = [(3, 5), (7, 9), (8, 16)]
Inputs = Callable[[int, int], list[torch.Tensor]]


def rows(b: int, s: int) -> list[torch.Tensor]:
    return [torch.randn(b, s, 4)]


def two(b: int, s: int) -> list[torch.Tensor]:
    return [torch.randn(b, s, 4), torch.randn(b, s, 4)]


def labelled(b: int, s: int) -> list[torch.Tensor]:
    return [torch.randn(b, s, 4), torch.randint(0, 4, (b, s))]


def masked(b: int, s: int) -> list[torch.Tensor]:
    return [torch.randn(b, s, 4), (torch.rand(b, s) > 0.3).float()]


def points(b: int, s: int) -> list[torch.Tensor]:
    return [torch.randn(b, 4), torch.randn(s, 4)]


def channels(b: int, s: int) -> list[torch.Tensor]:
    return [torch.randn(b, 6, s)]


def attention(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.einsum("bsh,bth->bst", x, y).softmax(-1) @ y


def causal(x: torch.Tensor) -> torch.Tensor:
    hidden = torch.full((x.shape[1], x.shape[1]), float("-inf")).triu(1)
    return (x @ x.mT + hidden).softmax(-1) @ x


def pairs(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    products = (x[:, None] * y[None]).reshape(-1, 4).mean(0)
    return products + (x[:, None] - y[None]).abs().sum((0, 2)).sum()


CASES: dict[str, tuple[Callable[..., Any], Inputs]] = {
    "loss": (
        lambda x, y: F.cross_entropy(x.reshape(-1, 4), y.reshape(-1), ignore_index=1),
        labelled,
    ),
    "attention": (attention, two),
    "causal attention": (causal, rows),
    "mean over a mask": (
        lambda x, m: (x * m[..., None]).sum(1) / m.sum(1, keepdim=True).clamp(min=1e-9),
        masked,
    ),
    "moments": (
        lambda x: (x.std(0), x.var((0, 1)), x.norm(dim=1), F.normalize(x, dim=0)),
        rows,
    ),
    "order": (
        lambda x: (x.topk(2, 1)[0], x.sort(0)[0], x.cumsum(1), x.flip(1), x.roll(1, 0)),
        rows,
    ),
    "extremes": (
        lambda x: (x.logsumexp(1), x.argmax(1), x.max(0)[0], x.amin((0, 1)), x.median(1)[0]),
        rows,
    ),
    "one hot": (
        lambda x, y: (
            F.one_hot(y, 4).float() * x,
            torch.zeros_like(x).scatter_add(2, y[..., None], x[..., :1]),
        ),
        labelled,
    ),
    "pieces": (
        lambda x: (
            torch.stack([x, x * 2], 1).sum(2),
            x[:, :4].unfold(1, 2, 1),
            torch.cat(x.chunk(2, -1), 1),
        ),
        rows,
    ),
    "pairs": (pairs, points),
    "distances": (lambda x, y: torch.cdist(x, y).min(1)[0], points),
    "signals": (
        lambda x: (
            F.avg_pool1d(F.pad(x, (1, 1)), 2),
            F.interpolate(x, scale_factor=2, mode="nearest"),
        ),
        channels,
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("gradients", [False, True], ids=["forward", "gradients"])
@pytest.mark.parametrize("name", CASES)
def test_padding_does_not_show(name: str, gradients: bool) -> None:
    function, inputs = CASES[name]
    check(function, inputs, SIZES, gradients=gradients, rtol=1e-4, atol=1e-4)
