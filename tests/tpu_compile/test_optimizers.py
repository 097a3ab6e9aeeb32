"""Compiled optimizer steps give eager's parameters, with one program for all steps.

Fused optimizers are not here: torch keeps Dynamo out of them (`lowering/composites/optimizers.py`
serves direct calls of their ops), nor is Adafactor, which Dynamo does not trace.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import tpu_compile
from tests.tpu_compile.comparing import STRICT, relative_difference

# Dynamo inspects scripted modules on its way through torch.optim.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")

STEPS = 4
CASES: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    "AdamW": {"amsgrad": True},
    "RMSprop": {"momentum": 0.9, "centered": True},
}
FULL_CASES: dict[str, dict[str, Any]] = {
    "Adadelta": {},
    "Adagrad": {"lr_decay": 0.1},
    "Adam": {"weight_decay": 0.1, "maximize": True},
    "Adamax": {},
    "ASGD": {},
    "Muon": {},
    "NAdam": {},
    "RAdam": {"decoupled_weight_decay": True},
    "Rprop": {},
}


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, step: Any) -> None:
    inputs = torch.linspace(-1, 1, 30).reshape(5, 6)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(inputs).square().sum().backward()
        step()


def _check(name: str, options: dict[str, Any]) -> None:
    # Muon takes matrices only.
    bias = name != "Muon"
    model = nn.Sequential(nn.Linear(6, 8, bias=bias), nn.Tanh(), nn.Linear(8, 3, bias=bias))
    ours = copy.deepcopy(model)
    optimizers = [getattr(torch.optim, name)(m.parameters(), **options) for m in (model, ours)]
    _train(model, optimizers[0], optimizers[0].step)

    @torch.compile(backend="tpu", options=STRICT)
    def step() -> None:
        optimizers[1].step()

    _train(ours, optimizers[1], step)
    for mine, eager in zip(ours.parameters(), model.parameters(), strict=True):
        assert relative_difference(mine, eager) <= 5e-6
    # SGD's first step, which makes the momentum, is a graph of its own.
    assert 1 <= tpu_compile.stats().graphs <= 2


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_a_compiled_step(name: str, foreach: bool) -> None:
    _check(name, {**CASES[name], "foreach": foreach})


@pytest.mark.full
@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("name", FULL_CASES)
def test_a_compiled_step_of_more_optimizers(name: str, foreach: bool) -> None:
    if name == "Muon" and foreach:
        pytest.skip("Muon has no foreach")
    options = FULL_CASES[name]
    _check(name, options if name == "Muon" else {**options, "foreach": foreach})


def test_a_whole_training_step() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    ours = copy.deepcopy(model)
    inputs = torch.randn(5, 6)

    def make_step(trained: nn.Module) -> Any:
        optimizer = torch.optim.AdamW(trained.parameters(), foreach=True)

        def step() -> None:
            optimizer.zero_grad()
            trained(inputs).square().sum().backward()
            optimizer.step()

        return step

    eager = make_step(model)
    compiled = torch.compile(make_step(ours), backend="tpu", options=STRICT)
    for _ in range(STEPS):
        eager()
        compiled()
    for mine, theirs in zip(ours.parameters(), model.parameters(), strict=True):
        assert relative_difference(mine, theirs) <= 5e-6
