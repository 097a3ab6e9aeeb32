"""`async_compile`: calls run in eager PyTorch until XLA is done, with equal results."""

from __future__ import annotations

import copy
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import tpu_compile
from tests.tpu_compile.comparing import compiled
from tpu_compile import CompilationError
from tpu_compile.runtime import pjrt


class Gate:
    """Holds XLA's compiles back until it is opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.error: Exception | None = None

    def open(self) -> None:
        self.opened.set()
        tpu_compile.wait_for_compiles()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made = Gate()
    compile_now = pjrt.Client.compile

    def compile_later(self: pjrt.Client, *arguments: Any) -> Any:
        assert made.opened.wait(60)
        if made.error is not None:
            raise made.error
        return compile_now(self, *arguments)

    tpu_compile.reset()
    monkeypatch.setattr(pjrt.Client, "compile", compile_later)
    yield made
    made.open()


def counts() -> tuple[int, int]:
    stats = tpu_compile.stats()
    return stats.eager_calls, stats.executions


def test_calls_run_eagerly_until_the_program_is_there(gate: Gate) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3)).eval()
    function = compiled(model, async_compile=True)
    x = torch.randn(5, 4)
    with torch.no_grad():
        expected = model(x)
        for number in range(1, 4):
            torch.testing.assert_close(function(x), expected)
            assert counts() == (number, 0)
        gate.open()
        for number in range(1, 4):
            torch.testing.assert_close(function(x), expected)
            assert counts() == (3, number)


def test_training_switches_between_forward_and_backward(gate: Gate) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    reference = copy.deepcopy(model)
    function = compiled(model, async_compile=True)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, reference)]
    for step in range(5):
        x = torch.randn(6, 4)
        for call, optimizer in zip((function, reference), optimizers, strict=True):
            optimizer.zero_grad()
            loss = call(x).square().mean()
            if step == 2:
                gate.open()
            loss.backward()
            optimizer.step()
    for actual, expected in zip(
        [*model.parameters(), *model.buffers()],
        [*reference.parameters(), *reference.buffers()],
        strict=True,
    ):
        torch.testing.assert_close(actual, expected)
    assert counts()[0] >= 5
    assert counts()[1] >= 4


def test_views_aliases_and_writes_are_the_same_before_and_after(gate: Gate) -> None:
    def step(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y.mul_(2)
        table = torch.arange(40.0).reshape(5, 8)
        wide = x @ table
        return x.t(), wide.t(), wide[1:], y

    function = compiled(step, async_compile=True)
    for is_open in (False, True):
        if is_open:
            gate.open()
        x, y = torch.randn(3, 5), torch.ones(4)
        y_eager = y.clone()
        turned, wide, part, same = function(x, y)
        expected = step(x, y_eager)
        assert turned.data_ptr() == x.data_ptr()
        assert same is y
        assert part.untyped_storage().data_ptr() == wide.untyped_storage().data_ptr()
        for actual, wanted in zip((turned, wide, part, y), expected, strict=True):
            assert actual.stride() == wanted.stride()
            torch.testing.assert_close(actual, wanted)


def test_random_graphs_wait(gate: Gate) -> None:
    gate.opened.set()
    function = compiled(lambda x: torch.nn.functional.dropout(x, 0.5), async_compile=True)
    torch.manual_seed(3)
    first = function(torch.ones(100))
    tpu_compile.wait_for_compiles()
    torch.manual_seed(3)
    assert torch.equal(function(torch.ones(100)), first)
    assert counts() == (0, 2)


def test_buckets_switch_one_by_one(gate: Gate) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(0) * x.shape[0]

    call = torch.compile(
        function,
        backend="tpu",
        dynamic=True,
        fullgraph=True,
        options={"async_compile": True, "buckets": "pow2"},
    )
    for size in (5, 7, 20):
        x = torch.randn(size)
        torch.testing.assert_close(call(x), function(x))
    assert counts() == (3, 0)
    gate.open()
    for size in (6, 8, 17):
        x = torch.randn(size)
        torch.testing.assert_close(call(x), function(x))
    assert counts() == (3, 3)
    assert tpu_compile.stats().xla_compiles == 2
    assert tpu_compile.stats().exact_graphs == 0


def test_a_padded_training_step(gate: Gate) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3))
    reference = copy.deepcopy(model)
    call = torch.compile(
        model, backend="tpu", dynamic=True, fullgraph=True, options={"async_compile": True}
    )
    for number, size in enumerate((5, 7, 6, 9, 3)):
        if number == 2:
            gate.open()
        x = torch.randn(size, 4)
        call(x).square().sum().backward()
        reference(x).square().sum().backward()
        if number > 2:
            tpu_compile.wait_for_compiles()
    assert min(counts()) >= 2
    for actual, expected in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(actual.grad, expected.grad)


def test_eager_parts_between_compiled_ones(gate: Gate) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        low, _ = torch.linalg.ldl_factor(x @ x.t())
        return low.sin() + 1

    function = torch.compile(step, backend="tpu", options={"async_compile": True})
    x = torch.randn(4, 4)
    torch.testing.assert_close(function(x), step(x))
    gate.open()
    torch.testing.assert_close(function(x), step(x))


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_xla_refuses_is_raised_by_a_later_call(gate: Gate, dynamic: bool) -> None:
    gate.error = CompilationError("XLA could not compile a graph", why="a test says so")
    call = torch.compile(
        lambda x: x + 1, backend="tpu", dynamic=dynamic, options={"async_compile": True}
    )
    x = torch.ones(3)
    assert torch.equal(call(x), x + 1)
    gate.open()
    for _ in range(2):
        with pytest.raises(CompilationError, match="a test says so"):
            call(x)
    assert torch.equal(x, torch.ones(3))


def test_many_threads_may_call_while_it_switches(gate: Gate) -> None:
    function = compiled(lambda x: (x * 2).sum(), async_compile=True)
    function(torch.ones(4))
    wrong: list[object] = []

    def work() -> None:
        try:
            for number in range(200):
                assert function(torch.full((4,), float(number))).item() == 8 * number
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    gate.open()
    for thread in threads:
        thread.join()
    assert not wrong
    assert sum(counts()) == 801


def test_a_process_ends_while_xla_compiles() -> None:
    script = """
import torch
from tpu_compile.runtime import pjrt
import time
pjrt.Client.compile = lambda *_: time.sleep(600)
function = torch.compile(lambda x: x + 1, backend="tpu", options={"async_compile": True})
print(function(torch.ones(2)).tolist())
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "[2.0, 2.0]"), done.stderr


def test_the_option_takes_a_bool() -> None:
    with pytest.raises(tpu_compile.OptionError, match="`async_compile` is 1"):
        tpu_compile.CompileOptions(async_compile=1)  # type: ignore[arg-type]
