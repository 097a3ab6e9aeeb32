"""What a call costs that computes nearly nothing."""

from __future__ import annotations

import functools

import torch
from torch import nn

from benchmarks.peers import EVERYONE, contest
from benchmarks.registry import Case, Settings, Suite
from benchmarks.results import Measured

NAMES = (*EVERYONE[:3], "aot no-op", *EVERYONE[3:])


class Adder(nn.Module):
    """Adds its parameters to its input, one after the other: almost no work for its arguments."""

    def __init__(self, parameters: int) -> None:
        super().__init__()
        self.offsets = nn.ParameterList(nn.Parameter(torch.ones(8)) for _ in range(parameters))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return `x` plus every parameter; shape `[8]`."""
        for offset in self.offsets:
            x = x + offset
        return x


def _overhead(parameters: int, settings: Settings) -> Measured:
    with torch.no_grad():
        found = contest(Adder(parameters), [torch.ones(8)], NAMES)
        return found.timed(rounds=settings.rounds_or(21))


SUITE = Suite(
    "overhead",
    tuple(
        Case(
            f"parameters-{count}",
            f"sum of {count} parameters of 8 elements, without gradients",
            functools.partial(_overhead, count),
        )
        for count in (1, 100)
    ),
)
