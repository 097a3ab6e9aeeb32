"""Models that the tests name on the command line; some are wrong on purpose."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.second = nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(torch.relu(self.first(x)))


module = Block()
number = 3


def made(batch: int = 4) -> tuple[Any, ...]:
    return Block(), (torch.randn(batch, 16),)


def with_keywords(batch: int = 2, seq: int = 8) -> tuple[Any, ...]:
    def attend(x: torch.Tensor, *, mask: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x.masked_fill(~mask, -1e9), -1)

    return attend, (torch.randn(batch, seq),), {"mask": torch.ones(batch, seq, dtype=torch.bool)}


def too_large(batch: int = 1) -> tuple[Any, ...]:
    return (lambda x, y: x + y.T), (torch.ones(batch, 50_000, 50_000), torch.ones(50_000, 50_000))


def two_graphs() -> tuple[Any, ...]:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos()

    return function, (torch.randn(3),)


def raises() -> None:
    raise ValueError("out of order")


def gives_a_number() -> int:
    return 5


def needs_an_argument(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def reads_a_value() -> tuple[Any, ...]:
    return (lambda x: x if x.sum() > 0 else -x), (torch.ones(3),)


def rates_from_a_tensor() -> tuple[Any, ...]:
    rates = torch.linspace(0, 0.5, 3).tolist()
    return nn.Sequential(*(nn.Dropout(rate) for rate in rates)).eval(), (torch.randn(4),)


def computes_nothing(batch: int = 2) -> tuple[Any, ...]:
    return (lambda x: x), (torch.randn(batch, 3),)
