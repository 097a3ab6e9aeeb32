"""A model whose names would run as a script if the page took them for markup."""

from __future__ import annotations

import torch
from torch import nn

NAME = "</script><img src=x onerror=alert(1)><!--"


@torch.library.custom_op("tpu_compile_report_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({NAME: nn.Linear(8, 16), "plain": nn.Linear(16, 8)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = twice(self.layers[NAME](x))
        x = self.layers["plain"](x)
        torch._dynamo.graph_break()
        return x.softmax(-1)


def factory() -> tuple[nn.Module, tuple[torch.Tensor]]:
    return Model().requires_grad_(False), (torch.ones(4, 8),)


def fails() -> tuple[nn.Module, tuple[torch.Tensor]]:
    raise RuntimeError("no such weights")
