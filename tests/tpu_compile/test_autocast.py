"""Mixed precision: autocast around and inside compiled code, loss scaling, float64."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.tpu_compile.comparing import compiled, relative_difference

# Half precision is rounded after each op here as there, but sums are taken in another order.
TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 4e-3}
HALVES = list(TOLERANCE)


class Block(nn.Module):
    """Ops that autocast runs in half precision, in float32, and in the widest dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.LayerNorm(16)
        self.convolution = nn.Conv1d(1, 2, 3)
        self.last = nn.Linear(28, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(nn.functional.gelu(self.first(inputs)))
        hidden = self.convolution(hidden.unsqueeze(1)).flatten(1)
        return self.last(torch.softmax(hidden, -1) + hidden).log_softmax(-1)


def _same(
    function: Callable[[nn.Module, torch.Tensor], torch.Tensor], tolerance: float
) -> torch.Tensor:
    """Assert equal outputs and gradients of a `Block` called by `function`; return the output."""
    model, inputs = Block(), torch.randn(6, 8)
    ours = copy.deepcopy(model)
    expected, actual = function(model, inputs), function(compiled(ours), inputs)
    assert relative_difference(actual, expected) <= tolerance
    expected.float().square().sum().backward()
    actual.float().square().sum().backward()
    for mine, eager in zip(ours.parameters(), model.parameters(), strict=True):
        assert mine.grad is not None
        assert eager.grad is not None
        assert relative_difference(mine.grad, eager.grad) <= 2 * tolerance
    return actual


@pytest.mark.parametrize("dtype", HALVES)
def test_autocast_around_compiled_code(dtype: torch.dtype) -> None:
    def call(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=dtype):
            return model(inputs)

    _same(call, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", HALVES)
def test_autocast_inside_compiled_code(dtype: torch.dtype) -> None:
    layers = {mode: nn.Linear(8, 16) for mode in ("eager", "ours")}
    layers["ours"].load_state_dict(layers["eager"].state_dict())

    def call(layer: nn.Linear, inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.autocast("cpu", dtype=dtype):
            half = layer(inputs)
            with torch.autocast("cpu", enabled=False):
                single = layer(inputs)
            again = half @ half.T
        return half, single, again, layer(inputs)

    inputs = torch.randn(6, 8)
    expected = call(layers["eager"], inputs)
    actual = compiled(call)(layers["ours"], inputs)
    assert [tensor.dtype for tensor in actual] == [dtype, torch.float32, dtype, torch.float32]
    for mine, eager in zip(actual, expected, strict=True):
        assert relative_difference(mine, eager) <= TOLERANCE[dtype]
    for outputs in (expected, actual):
        sum(output.float().square().sum() for output in outputs).backward()
    mine, eager = layers["ours"].weight.grad, layers["eager"].weight.grad
    assert relative_difference(mine, eager) <= 2 * TOLERANCE[dtype]


def test_leaving_autocast_compiles_anew() -> None:
    model = nn.Linear(8, 4)
    ours = compiled(model)
    inputs = torch.randn(3, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ours(inputs).dtype is torch.bfloat16
    assert relative_difference(ours(inputs), model(inputs)) <= 1e-6


@pytest.mark.parametrize("dtype", HALVES)
def test_a_half_precision_model(dtype: torch.dtype) -> None:
    def call(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        return model(inputs)

    model, inputs = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)), torch.randn(6, 8)
    model, inputs = model.to(dtype), inputs.to(dtype)
    actual = call(compiled(model), inputs)
    assert relative_difference(actual, call(model, inputs)) <= TOLERANCE[dtype]


def test_a_float64_model() -> None:
    model = Block().double()
    ours = copy.deepcopy(model)
    inputs = torch.randn(6, 8, dtype=torch.float64)
    results = [m(inputs) for m in (model, compiled(ours))]
    assert relative_difference(results[1], results[0]) <= 1e-13
    for result in results:
        result.square().sum().backward()
    for mine, eager in zip(ours.parameters(), model.parameters(), strict=True):
        assert relative_difference(mine.grad, eager.grad) <= 1e-12


def _train(model: nn.Module, call: Callable[..., torch.Tensor]) -> list[tuple[float, float]]:
    """Take six steps with a loss scaler, the third with an overflow; return losses and scales."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=2)
    generator = torch.Generator().manual_seed(5)
    history = []
    for step in range(6):
        inputs = torch.randn(6, 8, generator=generator)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = call(inputs).float().square().mean()
        scaler.scale(loss * (torch.inf if step == 2 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        history.append((loss.item(), scaler.get_scale()))
    return history


def test_training_with_a_loss_scaler() -> None:
    model = Block()
    ours = copy.deepcopy(model)
    eager, compiled_ = _train(model, model), _train(ours, compiled(ours))
    assert [scale for _, scale in eager] == [scale for _, scale in compiled_]
    # It grew after two good steps, shrank at the overflow, and grew again.
    assert [scale for _, scale in eager] == [256.0, 512.0, 256.0, 256.0, 512.0, 512.0]
    for (expected, _), (actual, _) in zip(eager, compiled_, strict=True):
        assert actual == pytest.approx(expected, rel=4e-3)
    for mine, theirs in zip(ours.parameters(), model.parameters(), strict=True):
        assert relative_difference(mine, theirs) <= 1e-2


def test_the_scalers_ops_in_compiled_code() -> None:
    def unscale_and_update(
        grads: list[torch.Tensor], scale: torch.Tensor, tracker: torch.Tensor
    ) -> Any:
        found = torch.zeros(1)
        torch._amp_foreach_non_finite_check_and_unscale_(grads, found, scale.reciprocal())
        torch._amp_update_scale_(scale, tracker, found, 2.0, 0.5, 2)
        return found

    for bad in (1.0, torch.inf):
        states = []
        for function in (unscale_and_update, compiled(unscale_and_update)):
            grads = [torch.arange(4.0), torch.tensor([bad, 2.0])]
            scale, tracker = torch.tensor([8.0]), torch.tensor([1], dtype=torch.int32)
            states.append((function(grads, scale, tracker), *grads, scale, tracker))
        for mine, eager in zip(*reversed(states), strict=True):
            assert torch.equal(mine, eager)
