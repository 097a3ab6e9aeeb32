"""Every optimizer of `torch.optim` takes the same steps on the device as on the CPU."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch

import tpu_compile.device
from tests.device.comparing import fallbacks

STEPS = 5

# Constructor arguments that take the branches which the defaults do not.
OPTIMIZERS: list[tuple[type[torch.optim.Optimizer], dict[str, Any]]] = [
    (torch.optim.SGD, {"lr": 0.1}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    (torch.optim.Adam, {"lr": 0.1}),
    (torch.optim.Adam, {"lr": 0.1, "amsgrad": True, "weight_decay": 0.1}),
    (torch.optim.AdamW, {"lr": 0.1}),
    (torch.optim.AdamW, {"lr": 0.1, "amsgrad": True, "maximize": True}),
    (torch.optim.NAdam, {"lr": 0.1}),
    (torch.optim.RAdam, {"lr": 0.1}),
    (torch.optim.Adamax, {"lr": 0.1}),
    (torch.optim.Adadelta, {"lr": 0.5}),
    (torch.optim.Adagrad, {"lr": 0.1, "lr_decay": 0.1}),
    (torch.optim.RMSprop, {"lr": 0.1, "momentum": 0.5, "centered": True}),
    (torch.optim.Rprop, {"lr": 0.1}),
    (torch.optim.ASGD, {"lr": 0.1}),
]
FUSED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad)
CAPTURABLE = (
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adamax,
    torch.optim.Adadelta,
    torch.optim.RMSprop,
    torch.optim.Rprop,
    torch.optim.ASGD,
)


class Parameters(torch.nn.Module):
    """Two parameters and a loss with a gradient of each."""

    def __init__(self) -> None:
        super().__init__()
        self.one = torch.nn.Parameter(torch.tensor([[1.0, -2.0], [0.5, 3.0]]))
        self.other = torch.nn.Parameter(torch.tensor([0.5, -1.0]))

    def forward(self) -> torch.Tensor:
        return (self.one * self.other).square().sum() + self.one.sum()


def cases() -> list[Any]:
    """Return (class, arguments, mode); a few that reach all code, the others with `--full`."""
    full = pytest.mark.full
    # A loop over tensors, each op a program of its own, takes long to compile.
    chosen = [
        (torch.optim.SGD, {"fused": True}, "eager"),
        (torch.optim.SGD, {"foreach": False}, "fused"),
        (torch.optim.Adagrad, {"fused": True}, "fused"),
        (torch.optim.AdamW, {}, "eager"),
        (torch.optim.AdamW, {"fused": True}, "fused"),
        (torch.optim.AdamW, {"capturable": True}, "fused"),
    ]
    first = {cls: options for cls, options in reversed(OPTIMIZERS)}
    found = []
    for cls, options in OPTIMIZERS:
        for more in ({}, {"foreach": False}, {"fused": True}, {"capturable": True}):
            if ("fused" in more and cls not in FUSED) or (
                "capturable" in more and cls not in CAPTURABLE
            ):
                continue
            for mode in ("fused", "eager"):
                name = "-".join([cls.__name__, *map(str, [*list(options)[1:], *more]), mode])
                marks = () if (cls, more, mode) in chosen and options is first[cls] else (full,)
                # Branches are chosen by options, and a program of all ops compiles fast.
                marks = () if not more and mode == "fused" else marks
                found.append(pytest.param(cls, {**options, **more}, mode, id=name, marks=marks))
    return found


def stepped(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(STEPS):
        optimizer.zero_grad()
        model().backward()
        optimizer.step()


def on_cpu(cls: type[torch.optim.Optimizer], options: dict[str, Any]) -> torch.nn.Module:
    """Return the parameters after the steps of the plain variant on the CPU."""
    model = Parameters()
    plain = {
        name: value
        for name, value in options.items()
        if name not in ("foreach", "fused", "capturable")
    }
    stepped(model, cls(model.parameters(), **plain))
    return model


@pytest.mark.parametrize(("cls", "options", "mode"), cases())
def test_steps(cls: type[torch.optim.Optimizer], options: dict[str, Any], mode: str) -> None:
    model = Parameters().to("tpu")
    with tpu_compile.device.mode(mode):
        stepped(model, cls(model.parameters(), **options))
    expected = on_cpu(cls, options)
    for actual, wanted in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(actual.cpu(), wanted, atol=2e-5, rtol=1e-4)
    assert not fallbacks()


def test_closures() -> None:
    """LBFGS calls the model itself and reads the loss."""

    def run(model: torch.nn.Module) -> None:
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model()
            loss.backward()
            return loss

        optimizer.step(closure)

    host = Parameters()
    model = copy.deepcopy(host).to("tpu")
    run(model)
    run(host)
    torch.testing.assert_close(model.one.cpu(), host.one, atol=1e-4, rtol=1e-4)


def test_matrices_and_sparse_optimizers() -> None:
    weight = torch.nn.Parameter(torch.tensor([[1.0, -2.0], [0.5, 3.0]]))
    ours = torch.nn.Parameter(weight.detach().to("tpu"))
    for parameter in (weight, ours):
        optimizer = torch.optim.Muon([parameter], lr=0.1)
        parameter.square().sum().backward()
        optimizer.step()
    torch.testing.assert_close(ours.cpu(), weight, atol=0.02, rtol=0.02)
    torch.optim.SparseAdam([ours])  # takes sparse gradients, which the device has not
    table = torch.nn.Embedding(3, 2, sparse=True, device="tpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RuntimeError, match=r"(?i)sparse"):
            table(torch.tensor([1], device="tpu")).sum().backward()


@pytest.mark.parametrize("fused", [False, True])
def test_state_moves_between_devices(fused: bool) -> None:
    host = Parameters()
    model = copy.deepcopy(host).to("tpu")
    ours = torch.optim.AdamW(model.parameters(), lr=0.1, fused=fused)
    theirs = torch.optim.AdamW(host.parameters(), lr=0.1)
    stepped(model, ours)
    host.load_state_dict(model.state_dict())
    saved = copy.deepcopy(ours.state_dict())
    theirs.load_state_dict(copy.deepcopy(saved))
    state = theirs.state[host.one]
    assert state["exp_avg"].device.type == "cpu"
    assert float(state["step"]) == STEPS
    stepped(host, theirs)
    again = Parameters().to("tpu")
    again.load_state_dict(model.state_dict())
    optimizer = torch.optim.AdamW(again.parameters(), lr=0.1)
    optimizer.load_state_dict(saved)
    stepped(again, optimizer)
    torch.testing.assert_close(again.one.cpu(), host.one, atol=1e-5, rtol=1e-5)


def test_learning_rates_change_without_a_compile() -> None:
    model = Parameters().to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
    stepped(model, optimizer)
    with tpu_compile.expect_compiles(at_most=0):
        for _ in range(3):
            stepped(model, optimizer)
            scheduler.step()


def test_averaged_models() -> None:
    model = torch.nn.Linear(2, 2).to("tpu")
    averaged = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5)
    )
    averaged.update_parameters(model)
    before = model.weight.detach().clone()
    with torch.no_grad():
        model.weight.add_(1)
    averaged.update_parameters(model)
    torch.testing.assert_close(averaged.module.weight, before + 0.5)
