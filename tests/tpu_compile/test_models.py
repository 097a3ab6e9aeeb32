"""Parity with eager in float32: torch.nn models, inference, and training over several steps.

Forward and gradients of transformers models: `tests/models`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.models.tiny import make_tiny
from tests.tpu_compile.comparing import assert_same_model

Case = tuple[nn.Module, Callable[[nn.Module], object]]


def mlp() -> Case:
    model = nn.Sequential(nn.Linear(20, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 5))
    inputs = torch.randn(7, 20)
    return model, lambda m: m(inputs)


def cnn_with_batch_norm() -> Case:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, groups=2, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 10),
    ).train()
    inputs = torch.randn(4, 3, 14, 14)
    return model, lambda m: m(inputs)


def lstm() -> Case:
    model = nn.LSTM(6, 8, num_layers=2, batch_first=True, bidirectional=True)
    inputs = torch.randn(3, 9, 6)
    return model, lambda m: m(inputs)


def _tiny(name: str) -> Case:
    found = make_tiny(name)
    return found.model, lambda m: found.run(m)[0]


def bert() -> Case:
    return _tiny("bert")


def gpt2() -> Case:
    return _tiny("gpt2")


def resnet() -> Case:
    return _tiny("resnet")


def t5() -> Case:
    return _tiny("t5")


@pytest.mark.parametrize("make", [mlp, cnn_with_batch_norm, lstm])
def test_forward_and_gradients_are_eagers(make: Callable[[], Case]) -> None:
    model, run = make()
    with torch._dynamo.config.patch(allow_rnn=True):
        assert_same_model(model, run)


@pytest.mark.parametrize("make", [cnn_with_batch_norm, lstm, resnet, gpt2, t5])
def test_inference_is_eagers(make: Callable[[], Case]) -> None:
    model, run = make()
    with torch._dynamo.config.patch(allow_rnn=True), torch.no_grad():
        assert_same_model(model.eval(), run)


@pytest.mark.parametrize("make", [cnn_with_batch_norm, bert, gpt2])
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_ten_training_steps_follow_eager(make: Callable[[], Case], optimizer: str) -> None:
    losses = []
    for backend in ("eager", "tpu"):
        torch.manual_seed(3)
        model, run = make()
        step = getattr(torch.optim, optimizer)(model.parameters(), lr=1e-3)
        compiled = torch.compile(model, backend=backend, fullgraph=True)
        history = []
        for _ in range(10):
            step.zero_grad()
            result = run(compiled)
            target = torch.linspace(-1, 1, result.numel()).reshape(result.shape)
            loss = (result - target).square().mean()
            loss.backward()
            step.step()
            history.append(loss.item())
        losses.append(torch.tensor(history, dtype=torch.float64))
    eager, ours = losses
    assert eager[0] != eager[-1]
    torch.testing.assert_close(ours, eager, rtol=1e-5, atol=0)
