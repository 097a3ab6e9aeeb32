from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import tpu_compile
from tpu_compile.ahead.lowered import lower_made
from tpu_compile.ahead.recording import Made, ValueNeededError

# Dynamo inspects scripted modules on its way through torch.optim.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")


@torch.library.custom_op("tpu_compile_tests::by_eager", mutates_args=())
def by_eager(x: torch.Tensor) -> torch.Tensor:
    """Return 2 * x; it has no lowering."""
    return x * 2


@by_eager.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


FORWARD_BACKWARD_UPDATE = ["forward", "backward", "inference"]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.linear(x)))


def test_a_module_is_one_program_with_its_lines() -> None:
    lowered = tpu_compile.lower(Net().eval().requires_grad_(False), torch.randn(3, 8))
    (program,) = lowered.programs
    assert "stablehlo.dot_general" in lowered.stablehlo
    assert "loc(" not in lowered.stablehlo
    assert re.search(r'loc\("linear/aten\.\w+[^"]*"\("[^"]*test_lower\.py":\d+', _located(program))
    assert program.where.startswith(__file__)
    assert "torch.ops.aten" in lowered.fx


def _located(program: object) -> str:
    return program.stablehlo_with_locations  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_training_step_is_forward_backward_and_update_and_touches_nothing() -> None:
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(3, 8)).sum().backward()
    optimizer.step()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    gradients = [parameter.grad for parameter in model.parameters()]
    steps = [optimizer.state[p]["exp_avg"] for p in model.parameters()]
    values = [step.clone() for step in steps]

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()

    lowered = tpu_compile.lower(step, torch.randn(5, 8))
    assert [program.name.kind for program in lowered.programs] == FORWARD_BACKWARD_UPDATE
    assert all("FakeTensor" not in str(type(p)) for p in model.parameters())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(p.grad is g for p, g in zip(model.parameters(), gradients, strict=True))
    states = [optimizer.state[p]["exp_avg"] for p in model.parameters()]
    assert all(now is then for now, then in zip(states, steps, strict=True))
    assert all(torch.equal(s, v) for s, v in zip(steps, values, strict=True))


def test_nothing_is_left_of_a_call_that_fails() -> None:
    model = Net()

    def broken(x: torch.Tensor) -> torch.Tensor:
        model(x).sum().backward()
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        tpu_compile.lower(broken, torch.randn(5, 8))
    assert all(parameter.grad is None for parameter in model.parameters())
    model(torch.randn(5, 8)).sum().backward()
    assert all(type(parameter.grad) is torch.Tensor for parameter in model.parameters())


def test_a_model_larger_than_memory_is_lowered() -> None:
    def make() -> Made:
        model = nn.Linear(2**20, 2**18, bias=False).bfloat16()
        return model, (torch.ones(1, 2**20).bfloat16(),), {}

    lowered = lower_made(make)
    (call,) = lowered.calls
    assert max(tensor.size for tensor in call.inputs if tensor is not None) == 2 * 2**38


def test_a_function_that_calls_compiled_ones_runs_as_it_is() -> None:
    model = torch.compile(Net().eval(), backend="tpu", options={"matmul_precision": "default"})

    def twice(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return model(x) + model(x)

    lowered = tpu_compile.lower(twice, torch.randn(3, 8))
    assert len(lowered.programs) == 1
    assert len(lowered.calls) == 2
    assert "precision = [DEFAULT, DEFAULT]" in lowered.stablehlo


def test_sizes_of_other_calls_change_nothing() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    for size in (3, 5, 70):
        assert f"tensor<{size}xf32>" in tpu_compile.lower(function, torch.ones(size)).stablehlo


def test_dynamic_sizes_are_padded_to_a_bucket() -> None:
    lowered = tpu_compile.lower(lambda x: x.sum(0), torch.randn(100, 4), dynamic=True)
    (program,) = lowered.programs
    assert sorted(program.buckets.values()) == [8, 128]
    assert program.exact_reason is None
    assert "tensor<128x8xf32>" in lowered.stablehlo


@pytest.mark.filterwarnings("ignore::tpu_compile.FallbackWarning")
def test_a_fallback_is_told_and_cuts_the_graph() -> None:
    lowered = tpu_compile.lower(lambda x: by_eager(x * 2) * 3, torch.randn(3, 3))
    (fallback,) = lowered.fallbacks
    assert fallback.op == "tpu_compile_tests.by_eager.default"
    assert fallback.where.startswith(__file__)
    assert [program.part for program in lowered.programs] == [0, 1]
    first, second = lowered.calls
    made = {tensor.memory for tensor in first.outputs if tensor is not None}
    assert made.isdisjoint(tensor.memory for tensor in second.inputs if tensor is not None)


def test_only_what_can_be_called_is_lowered() -> None:
    with pytest.raises(TypeError, match="a module or a function, not int"):
        tpu_compile.lower(3, torch.ones(2))  # type: ignore[arg-type]


def test_a_function_that_computes_nothing_has_no_program() -> None:
    lowered = tpu_compile.lower(lambda x: x, torch.ones(3))
    assert lowered.programs == ()
    assert lowered.compile("cpu").memory.peak == 0


def test_values_are_not_there() -> None:
    def by_value(x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x

    with pytest.raises(ValueNeededError, match=r"aten\._local_scalar_dense.*Ways out"):
        tpu_compile.lower(by_value, torch.ones(3))


def test_a_portable_artifact_holds_one_program() -> None:
    lowered = tpu_compile.lower(nn.GELU(), torch.randn(3))
    assert lowered.portable_artifact().startswith(b"ML\xefR")

    def two(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    several = tpu_compile.lower(two, torch.ones(3))
    assert len(several.programs) == 2
    assert several.graph_breaks
    assert several.stablehlo.count("// program") == 2
    with pytest.raises(tpu_compile.OptionError, match="2 programs"):
        several.portable_artifact()


def test_the_cpu_is_a_target() -> None:
    compiled = tpu_compile.lower(nn.Linear(8, 4), torch.randn(3, 8)).compile("cpu")
    assert compiled.cost.flops >= 2 * 3 * 8 * 4
    assert compiled.memory.peak >= 4 * (8 * 4 + 4 + 3 * 8 + 3 * 4)
    assert compiled.memory.fits
    assert compiled.memory.available is None
    assert compiled.roofline is None
    assert "HloModule" in compiled.hlo
    header = compiled.serialize().split(b"\n", 1)
    assert header[0] == b"tpu_compile-compiled-1"
