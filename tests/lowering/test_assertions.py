"""Assertions about values compile to nothing."""

from __future__ import annotations

import torch

import tpu_compile
from tests.lowering.running import run
from tests.tpu_compile.comparing import compiled


def test_an_assertion_stays_in_one_graph_without_fallback() -> None:
    def call(values: torch.Tensor) -> torch.Tensor:
        torch._assert_async((values > 0).all(), "all positive")
        torch._assert_async(values[0] < 9)
        return values * 2

    assert torch.equal(compiled(call)(torch.tensor([1.0, 2.0])), torch.tensor([2.0, 4.0]))
    # What eager raises for goes through.
    assert torch.equal(compiled(call)(torch.tensor([-1.0, 2.0])), torch.tensor([-2.0, 4.0]))
    assert tpu_compile.stats().graphs == 1


def test_the_functional_form_hands_its_token_on() -> None:
    def call(values: torch.Tensor, token: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        token = torch.ops.aten._functional_assert_async.msg(values.sum() > 0, "positive", token)
        return token, values + 1

    token, values = run(call, torch.ones(2), torch.tensor(3.0))
    assert token.item() == 3.0
    assert values.tolist() == [2.0, 2.0]
