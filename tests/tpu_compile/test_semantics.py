"""Mutation, aliasing, strides and randomness: what torch promises around the values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import tpu_compile
from tests.tpu_compile.comparing import assert_same_call, compiled

MUTATIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "in place on an input": lambda a, b: a.add_(b).sum(),
    "input returned after mutation": lambda a, b: a.mul_(2),
    "view of a mutated input": lambda a, b: (a.add_(1), a[0], a.t()),
    "write through a view": lambda a, b: (a[1].copy_(b[0]), a * 2)[1],
    "both inputs": lambda a, b: (a.add_(b), b.mul_(a), a - b)[2],
    "copied from the other input": lambda a, b: (a.copy_(b), a + 1)[1],
    "swapped": lambda a, b: (c := a.clone(), a.copy_(b), b.copy_(c), a - b)[3],
    "mutated twice": lambda a, b: (a.add_(1), a.mul_(b), a.sum())[2],
    "value read before and after": lambda a, b: (a * 1, a.add_(b), a * 1)[::2],
}

VIEWS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "input itself": lambda a, b: (a, a + b),
    "view of an input": lambda a, b: (a.t(), a[1:], a.view(-1)),
    "transposed result": lambda a, b: (a + b).t(),
    "expanded result": lambda a, b: (a + b).sum(0).expand(3, 4),
    "sliced result": lambda a, b: (a + b)[:, 1:3],
    "strided result": lambda a, b: (a + b)[:, ::2],
    "overlapping result": lambda a, b: (a + b).view(-1).unfold(0, 4, 2),
    "two views of one result": lambda a, b: (lambda c: (c, c.t(), c[1]))(a + b),
    "the same result twice": lambda a, b: (lambda c: (c, c))(a + b),
    "flipped": lambda a, b: torch.flip(a, [0]) + b,
    "scalar": lambda a, b: (a + b).sum(),
    "empty": lambda a, b: (a + b)[:, 4:],
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutations_reach_the_inputs(name: str) -> None:
    assert_same_call(MUTATIONS[name], torch.randn(3, 4), torch.randn(3, 4))


@pytest.mark.parametrize("name", VIEWS)
def test_outputs_have_eagers_strides_and_aliases(name: str) -> None:
    assert_same_call(VIEWS[name], torch.randn(3, 4), torch.randn(3, 4))


@pytest.mark.parametrize("name", [*MUTATIONS, *VIEWS])
def test_inputs_may_lie_in_memory_in_any_way(name: str) -> None:
    function = (MUTATIONS | VIEWS)[name]
    layouts = [
        lambda: torch.randn(4, 3).t(),
        lambda: torch.randn(6, 8)[::2, ::2],
        lambda: torch.randn(3, 9)[:, 5:],
    ]
    for layout in layouts:
        try:
            function(layout(), torch.randn(3, 4))
        except RuntimeError:
            continue  # eager refuses this layout (a view that does not exist)
        assert_same_call(function, layout(), torch.randn(3, 4))


def test_channels_last_goes_through_without_a_copy() -> None:
    inputs = torch.randn(2, 3, 5, 4).to(memory_format=torch.channels_last)
    assert_same_call(lambda x: torch.relu(x) * 2, inputs)


def test_mutation_of_a_leaf_that_requires_grad_under_no_grad() -> None:
    weight = nn.Parameter(torch.ones(3))

    def step(gradient: torch.Tensor) -> None:
        with torch.no_grad():
            weight.sub_(gradient)

    version = weight._version
    compiled(step)(torch.full((3,), 0.25))
    assert torch.equal(weight.detach(), torch.full((3,), 0.75))
    assert weight._version > version


def test_input_written_right_after_the_call_changes_nothing() -> None:
    function = compiled(lambda x, w: (x @ w).sum(0))
    inputs, weight = torch.ones(512, 512), torch.ones(512, 512)
    for _ in range(5):
        inputs.fill_(1)
        result = function(inputs, weight)
        inputs.fill_(float("nan"))
        assert torch.equal(result, torch.full((512,), 512.0 * 512))


def test_results_are_the_callers_to_write() -> None:
    function = compiled(lambda x: (x + 1, x * 2))
    inputs = torch.ones(4)
    first, second = function(inputs)
    first.fill_(0)
    assert torch.equal(second, torch.full((4,), 2.0))
    again, _ = function(inputs)
    assert torch.equal(again, torch.full((4,), 2.0))


def test_unaligned_inputs_are_read_right() -> None:
    function = compiled(lambda x: x * 2)
    for offset in range(5):
        inputs = torch.arange(16.0)[offset : offset + 8]
        assert torch.equal(function(inputs), inputs * 2)


def test_batch_norm_statistics_and_counter() -> None:
    model = nn.BatchNorm1d(3).train()
    function = compiled(model)
    for step in range(3):
        function(torch.randn(5, 3))
        assert model.num_batches_tracked.item() == step + 1
    reference = nn.BatchNorm1d(3).train()
    torch.manual_seed(0)
    for _ in range(3):
        reference(torch.randn(5, 3))
    torch.testing.assert_close(model.running_var, reference.running_var, rtol=1e-5, atol=1e-6)


def test_manual_seed_repeats_and_calls_differ() -> None:
    function = compiled(lambda x: nn.functional.dropout(x, 0.5, training=True))
    inputs = torch.ones(1000)
    torch.manual_seed(1)
    first, second = function(inputs), function(inputs)
    torch.manual_seed(1)
    assert torch.equal(function(inputs), first)
    assert not torch.equal(first, second)
    assert set(first.unique().tolist()) == {0.0, 2.0}


def test_dropout_mask_is_the_same_in_forward_and_backward() -> None:
    inputs = torch.ones(1000, requires_grad=True)
    output = compiled(lambda x: nn.functional.dropout(x * 3, 0.25, training=True))(inputs)
    output.sum().backward()
    torch.testing.assert_close(inputs.grad, output.detach())


def test_exact_buckets_compile_a_program_for_each_size() -> None:
    function = torch.compile(
        lambda x: (x * x.shape[0]).sum(0), backend="tpu", dynamic=True, options={"buckets": "exact"}
    )
    for size in (2, 5, 7, 5):
        inputs = torch.randn(size, 3)
        torch.testing.assert_close(function(inputs), (inputs * size).sum(0))
    assert tpu_compile.stats().xla_compiles == 3


SIZES_AS_DATA: dict[str, Callable[[torch.Tensor], Any]] = {
    "in a shape": lambda x: x.view(x.shape[0] * 2, -1) * (x.shape[0] + 1),
    "in a new tensor": lambda x: (x.new_zeros(x.shape[0] + x.shape[1]), torch.arange(x.shape[0])),
    "in arithmetic": lambda x: (x / x.numel(), x.sum() / x.shape[0] ** 0.5, x.mean()),
    "in a slice": lambda x: (x.reshape(-1)[-3:], x[: x.shape[0] - 1], x[-1]),
    "in a cat": lambda x: torch.cat([x, x[:1]]).cumsum(0),
}


@pytest.mark.parametrize("name", SIZES_AS_DATA)
def test_symbolic_sizes_are_eagers_as_data(name: str) -> None:
    function = SIZES_AS_DATA[name]
    run = torch.compile(
        function, backend="tpu", dynamic=True, fullgraph=True, options={"fallback": "error"}
    )
    for size in (2, 3, 5):
        inputs = torch.randn(size, 4)
        torch.testing.assert_close(run(inputs), function(inputs))


def test_training_with_a_dynamic_batch() -> None:
    model = nn.Linear(4, 4)
    run = torch.compile(
        lambda x: (model(x) * x.shape[0]).square().mean(),
        backend="tpu",
        dynamic=True,
        fullgraph=True,
        options={"fallback": "error"},
    )
    for size in (2, 3, 5):
        inputs = torch.randn(size, 4)
        (ours,) = torch.autograd.grad(run(inputs), model.weight)
        (eager,) = torch.autograd.grad((model(inputs) * size).square().mean(), model.weight)
        torch.testing.assert_close(ours, eager)


def test_backward_sees_a_mutated_input_as_it_was_before() -> None:
    """What was saved for backward is the old value, although the graph writes to the input."""

    def function(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        y = x * state.clone()
        state.add_(1)
        return y

    inputs, state = torch.ones(3, requires_grad=True), torch.arange(3.0)
    output = compiled(function)(inputs, state)
    assert torch.equal(state, torch.arange(3.0) + 1)
    output.sum().backward()
    assert torch.equal(inputs.grad, torch.arange(3.0))


@pytest.mark.parametrize("count", [16, 17, 1000])
def test_constants_of_any_size(count: int) -> None:
    values = list(range(count))
    inputs = torch.ones(count, requires_grad=True)
    output = compiled(lambda x: x * torch.tensor([float(value) for value in values]))(inputs)
    assert torch.equal(output.detach(), torch.arange(float(count)))
    output.sum().backward()
    assert torch.equal(inputs.grad, torch.arange(float(count)))


def test_complex_numbers_in_a_training_graph() -> None:
    ours, eager = (torch.tensor([1 + 2j, -0.5j], requires_grad=True) for _ in range(2))
    compiled(lambda x: x * 2j)(ours).abs().sum().backward()
    (eager * 2j).abs().sum().backward()
    torch.testing.assert_close(ours.grad, eager.grad)


def test_a_users_default_device_does_not_reach_inside() -> None:
    function = compiled(lambda x: nn.functional.dropout(x, 0.5) * 0 + x)
    function(torch.ones(3))
    with torch.device("meta"):
        assert torch.equal(function(torch.ones(3, device="cpu")), torch.ones(3, device="cpu"))


# torch imports Inductor's ops while it traces an optimizer, and its own import warns.
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")
def test_a_compiled_optimizer_step_needs_no_fallback() -> None:
    models = [nn.Linear(3, 2) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [torch.optim.AdamW(model.parameters(), lr=0.1) for model in models]
    # Not one graph: torch breaks it around the step by design.
    ours = torch.compile(optimizers[1].step, backend="tpu", options={"fallback": "error"})
    steps = [optimizers[0].step, ours]
    for _ in range(4):
        for model, optimizer, step in zip(models, optimizers, steps, strict=True):
            optimizer.zero_grad()
            model(torch.ones(5, 3)).square().sum().backward()
            step()
    torch.testing.assert_close(models[1].weight, models[0].weight)


def test_jagged_tensors() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    result = torch.compile(lambda x: x * 2, backend="tpu")(nested)
    assert torch.equal(result.values(), torch.full((5,), 2.0))


def test_double_backward_is_refused_not_wrong() -> None:
    inputs = torch.randn(3, requires_grad=True)
    output = compiled(lambda x: (x * x * x).sum())(inputs)
    (gradient,) = torch.autograd.grad(output, inputs, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        gradient.sum().backward()
