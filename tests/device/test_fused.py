"""Fused ops: results of eager ones, one program for what repeats, failures that lose nothing."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import tpu_compile
import tpu_compile.device
from tpu_compile.device import modes, trace


@pytest.fixture(autouse=True)
def fused() -> object:
    with tpu_compile.device.mode("fused"):
        yield


def test_ops_run_at_the_first_read_as_one_program() -> None:
    x = torch.randn(3, 4)
    given = x.to("tpu")
    tpu_compile.reset_stats()
    result = (given * 2 + 1).t()[1:].exp()
    result.add_(given.sum())
    assert tpu_compile.stats().executions == 0
    expected = (x * 2 + 1).t()[1:].exp() + x.sum()
    torch.testing.assert_close(result.cpu(), expected)
    assert tpu_compile.stats().executions == 1


def test_writes_come_in_order() -> None:
    x = torch.zeros(4, 4)
    given = x.to("tpu")
    for tensor in (x, given):
        column, row = tensor[:, 1], tensor[2]
        column += 1
        row.copy_(column)
        column.mul_(row)
        tensor.t()[3].fill_(7)
    assert torch.equal(given.cpu(), x)


def test_a_training_step_compiles_no_more_after_the_third() -> None:
    torch.manual_seed(0)
    expected = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))
    model = copy.deepcopy(expected).to("tpu")
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (expected, model)]
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(o, 0.9) for o in optimizers]
    x = torch.randn(5, 6)
    for step in range(6):
        if step == 3:
            tpu_compile.reset_stats()
        for m, o, s, batch in zip(
            (expected, model), optimizers, schedulers, (x, x.to("tpu")), strict=True
        ):
            m(batch).square().mean().backward()
            o.step()
            o.zero_grad()
            s.step()
    state = {name: value.cpu() for name, value in model.state_dict().items()}
    assert tpu_compile.stats().xla_compiles == 0
    torch.testing.assert_close(state, dict(expected.state_dict()), rtol=1e-4, atol=1e-5)


def test_random_numbers_do_not_depend_on_what_is_fused() -> None:
    torch.manual_seed(5)
    together = [torch.rand(4, device="tpu") for _ in range(3)]
    together = [value.cpu() for value in together]
    torch.manual_seed(5)
    apart = [torch.rand(4, device="tpu").cpu() for _ in range(3)]
    torch.manual_seed(5)
    with tpu_compile.device.mode("eager"):
        eager = [torch.rand(4, device="tpu").cpu() for _ in range(3)]
    for a, b, c in zip(together, apart, eager, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)
    assert not torch.equal(together[0], together[1])


def test_a_long_loop_is_cut_where_it_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modes, "LONG_TRACE", 10)
    x = torch.ones(3)
    given, value = x.to("tpu"), x
    tpu_compile.reset_stats()
    for _ in range(30):
        given, value = (given * 1.5 - 0.5).tanh(), (value * 1.5 - 0.5).tanh()
    torch.testing.assert_close(given.cpu(), value)
    # The repeated piece, and what was left at the read.
    assert tpu_compile.stats().xla_compiles <= 3


def test_a_program_that_fails_is_run_op_by_op(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: trace.Trace, live: object) -> None:
        raise tpu_compile.CompilationError("refused")

    x = torch.randn(5)
    given = x.to("tpu")
    monkeypatch.setattr(trace.Trace, "_run", refuse)
    given.mul_(2)
    result = given + torch.rand(5, device="tpu") * 0
    torch.testing.assert_close(result.cpu(), x * 2)
    torch.testing.assert_close(given.cpu(), x * 2)


def test_an_op_that_fails_says_so_at_every_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise tpu_compile.CompilationError("refused")

    x = torch.randn(5, 3)
    given = x.to("tpu")
    unharmed = given.clone()
    monkeypatch.setattr(trace, "Program", refuse)
    lost = given.cosh() * 3
    for _ in range(2):
        with pytest.raises(tpu_compile.CompilationError, match="refused"):
            lost.cpu()
    monkeypatch.undo()
    assert torch.equal(given.cpu(), x)
    assert (given + 1).cpu().equal(x + 1)
    with pytest.raises(tpu_compile.CompilationError, match="refused"):
        (lost + 1).cpu()
    with pytest.raises(tpu_compile.CompilationError, match="refused"):
        unharmed.cpu()
