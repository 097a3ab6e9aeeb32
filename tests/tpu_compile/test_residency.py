"""Parameters are uploaded once, reused, and never stale; on both kinds of client."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import tpu_compile
from tests.tpu_compile.comparing import compiled
from tpu_compile import backend
from tpu_compile.runtime import pjrt, platforms


@pytest.fixture(params=["aliasing", "copying"])
def client(request: pytest.FixtureRequest) -> Iterator[pjrt.Client]:
    """The CPU client, and one that holds copies as a device does."""
    opened = pjrt.open_client("cpu", alias_host_memory=request.param == "aliasing")
    platforms.use_client(opened)
    yield opened
    platforms.use_client(pjrt.open_client("cpu"))


@pytest.fixture
def uploads(client: pjrt.Client, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes that were brought to the device."""
    shapes: list[tuple[int, ...]] = []
    original = pjrt.Client.put

    def put(self: pjrt.Client, tensor: torch.Tensor, plan: pjrt.Put) -> Any:
        shapes.append(tuple(tensor.shape))
        return original(self, tensor, plan)

    monkeypatch.setattr(pjrt.Client, "put", put)
    return shapes


def test_parameters_are_uploaded_once(client: pjrt.Client, uploads: list[tuple[int, ...]]) -> None:
    model = nn.Linear(3, 5)
    small, large = compiled(model), compiled(lambda x: x + 1)
    with torch.no_grad():
        for _ in range(3):
            small(torch.randn(2, 3))
            large(torch.randn(20_000, 3))
    assert uploads.count((5,)) == 1
    assert uploads.count((5, 3)) == 1
    # Where memory is shared, a small input is copied to where an array lies already.
    assert uploads.count((2, 3)) == (1 if client.aliases_host_memory else 3)
    assert uploads.count((20_000, 3)) == 3


def test_optimizer_steps_and_load_state_dict_are_seen(client: pjrt.Client) -> None:
    model, inputs = nn.Linear(3, 5), torch.randn(2, 3)
    function = compiled(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        function(inputs).square().sum().backward()
        optimizer.step()
        torch.testing.assert_close(function(inputs), model(inputs))
    state = {name: torch.randn_like(value) for name, value in model.state_dict().items()}
    model.load_state_dict(state)
    torch.testing.assert_close(function(inputs), model(inputs))
    model.load_state_dict(
        {name: torch.randn_like(value) for name, value in state.items()}, assign=True
    )
    torch.testing.assert_close(function(inputs), model(inputs))


def test_data_moved_to_other_memory_is_seen(client: pjrt.Client) -> None:
    model, inputs = nn.Linear(3, 5), torch.randn(2, 3)
    function = compiled(model)
    with torch.no_grad():
        function(inputs)
        model.weight.data = torch.randn(5, 3)
        torch.testing.assert_close(function(inputs), model(inputs))


def test_write_through_data_is_seen_or_invalidated(client: pjrt.Client) -> None:
    model, inputs = nn.Linear(3, 5), torch.randn(2, 3)
    function = compiled(model)
    with torch.no_grad():
        function(inputs)
        model.weight.data.mul_(3)
        if not client.aliases_host_memory:
            tpu_compile.invalidate(model)
        torch.testing.assert_close(function(inputs), model(inputs))


def test_mutated_buffers_stay_on_the_device(uploads: list[tuple[int, ...]]) -> None:
    model = nn.BatchNorm1d(7).train()
    reference = nn.BatchNorm1d(7).train()
    function = compiled(model)
    for _ in range(4):
        inputs = torch.randn(5, 7)
        with torch.no_grad():
            function(inputs)
            reference(inputs)
    torch.testing.assert_close(model.running_mean, reference.running_mean)
    torch.testing.assert_close(model.running_var, reference.running_var)
    # Two statistics, weight and bias: none is brought to the device a second time.
    assert uploads.count((7,)) <= 4


def test_two_functions_share_parameters(client: pjrt.Client) -> None:
    model, inputs = nn.Linear(3, 5), torch.randn(2, 3)
    first = compiled(lambda x: model(x) + 1)
    second = compiled(lambda x: model(x) * 2)
    with torch.no_grad():
        first(inputs)
        second(inputs)
        model.bias.add_(1)
        torch.testing.assert_close(first(inputs), model(inputs) + 1)
        torch.testing.assert_close(second(inputs), model(inputs) * 2)


def test_a_dropped_model_is_freed(client: pjrt.Client) -> None:
    model = nn.Linear(300, 500)
    function = compiled(model)
    with torch.no_grad():
        function(torch.randn(2, 300))
    watched = weakref.ref(model.weight)
    del model, function
    torch._dynamo.reset()
    gc.collect()
    assert watched() is None


def test_inference_tensors_are_never_stale(client: pjrt.Client) -> None:
    with torch.inference_mode():
        weight = nn.Parameter(torch.ones(3), requires_grad=False)
        function = compiled(lambda x: x * weight)
        function(torch.ones(3))
        weight.mul_(4)
        assert torch.equal(function(torch.ones(3)), torch.full((3,), 4.0))


def test_threads_share_a_module_with_mutated_buffers(client: pjrt.Client) -> None:
    model = nn.BatchNorm1d(3).train()
    function = compiled(model)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            with torch.no_grad():
                for _ in range(50):
                    function(torch.randn(4, 3))
        except BaseException as error:
            failures.append(error)

    work()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_empty_results_have_eagers_strides(client: pjrt.Client) -> None:
    result = compiled(lambda x: x.new_zeros(0, 3) + x.sum())(torch.ones(2))
    assert result.stride() == (3, 1)


def test_every_dtype_crosses_both_ways(client: pjrt.Client) -> None:
    for dtype in pjrt.DTYPES:
        values = torch.arange(7).to(torch.float32).to(dtype)
        array = client.put(values, client.put_plan((7,), dtype))
        back = client.read(array, dtype)
        assert back.dtype is dtype
        assert torch.equal(back.view(torch.uint8), values.view(torch.uint8))


SMALL, LARGE = (3, 4), (300, 400)


@pytest.mark.parametrize("shape", [SMALL, LARGE, (0, 4), ()])
@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.float8_e5m2],
)
def test_inputs_of_every_size_and_dtype(
    client: pjrt.Client, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    function = compiled(lambda x: x.clone())
    for _ in range(3):
        x = torch.randn(shape).to(dtype)
        assert (
            torch.equal(function(x).view(torch.uint8), x.view(torch.uint8))
            if shape
            else (function(x).item() == x.item())
        )


@pytest.mark.parametrize("shape", [SMALL, LARGE])
def test_results_do_not_change_with_later_inputs(
    client: pjrt.Client, shape: tuple[int, ...]
) -> None:
    function = compiled(lambda x: (x.clone(), x.reshape(-1), x.t().contiguous()))
    inputs = [torch.randn(shape) for _ in range(4)]
    results = [function(x) for x in inputs]
    for x, (same, flat, turned) in zip(inputs, results, strict=True):
        assert torch.equal(same, x)
        assert torch.equal(flat, x.reshape(-1))
        assert torch.equal(turned, x.t())


@pytest.mark.parametrize("shape", [SMALL, LARGE])
def test_views_arrive_as_what_they_show(client: pjrt.Client, shape: tuple[int, ...]) -> None:
    rows, columns = shape
    base = torch.randn(rows * 2, columns * 2, dtype=torch.complex64)
    views = {
        "transposed": base[:rows, :columns].t(),
        "strided": base[::2, ::2],
        "expanded": base[:1, :columns].expand(rows, columns),
        "offset": base[1 : rows + 1, 1 : columns + 1],
        "conjugated": base[:rows, :columns].conj(),
        "negated": torch._neg_view(base[:rows, :columns]),
        "imaginary part of a conjugated": base.conj().imag[:rows, :columns],
    }
    for name, view in views.items():
        torch._dynamo.reset()
        function = compiled(lambda x: x * 2)
        for _ in range(2):
            assert torch.equal(function(view), view * 2), name


def test_a_function_first_called_in_inference_mode_runs_outside_of_it(
    client: pjrt.Client,
) -> None:
    function = compiled(lambda x: x + 1)
    x = torch.randn(3)
    with torch.inference_mode():
        assert torch.equal(function(x), x + 1)
    for _ in range(2):
        assert torch.equal(function(x), x + 1)
    leaf = torch.randn(3, requires_grad=True)
    for _ in range(2):
        (gradient,) = torch.autograd.grad(function(leaf).sum(), leaf)
        assert torch.equal(gradient, torch.ones(3))


def test_an_input_that_requires_grad_but_gets_none(client: pjrt.Client) -> None:
    function = compiled(lambda x: x.argmax())
    x = torch.tensor([1.0, 3.0, 2.0], requires_grad=True)
    for _ in range(3):
        assert function(x).item() == 1


def test_threads_with_inputs_of_their_own(client: pjrt.Client) -> None:
    weight = nn.Parameter(torch.randn(8))
    function = compiled(lambda x, y: (x * weight).sum() + y.sum())
    wrong: list[object] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        try:
            with torch.no_grad():
                for _ in range(60):
                    x = torch.randn(8, generator=generator)
                    y = torch.randn(9_000, generator=generator)
                    torch.testing.assert_close(
                        function(x, y), (x * weight).sum() + y.sum(), rtol=1e-4, atol=1e-3
                    )
        except BaseException as error:
            wrong.append(error)

    with torch.no_grad():
        function(torch.randn(8), torch.randn(9_000))
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_memory_of_an_input_is_let_go_of_after_the_call(client: pjrt.Client) -> None:
    function = compiled(lambda x: x.sum())
    function(torch.randn(LARGE))
    x = torch.randn(LARGE)
    watched = weakref.ref(x.untyped_storage())
    function(x)
    del x
    # The device's references are dropped with the next call.
    function(torch.randn(LARGE))
    gc.collect()
    assert watched() is None


def test_a_parameter_moved_while_another_is_dropped(client: pjrt.Client) -> None:
    first, second = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))
    holder = nn.ParameterList([first, second])
    function = compiled(lambda x: x * holder[0] + holder[1])
    x = torch.randn(4)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(function(x), x * holder[0] + holder[1])
            holder[0].data = torch.randn(4)
            torch.testing.assert_close(function(x), x * holder[0] + holder[1])
            holder[1] = nn.Parameter(torch.randn(4))
            gc.collect()
            torch.testing.assert_close(function(x), x * holder[0] + holder[1])


def test_parameters_at_addresses_that_no_array_can_lie_on(client: pjrt.Client) -> None:
    memory = torch.randn(41)
    weight = nn.Parameter(memory[1:41].view(5, 8))
    function = compiled(lambda x: x @ weight)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(3, 5)
            torch.testing.assert_close(function(x), x @ weight)
            weight.add_(1)


def test_explain_tells_what_is_donated(client: pjrt.Client) -> None:
    running, filled = torch.zeros(3), torch.zeros(2, 4)

    def function(
        x: torch.Tensor, running: torch.Tensor, filled: torch.Tensor, other: torch.Tensor
    ) -> torch.Tensor:
        running.add_(x)
        filled.copy_(other)
        return x * 2

    report = tpu_compile.explain(function, torch.ones(3), running, filled, torch.ones(2, 4))
    (graph,) = report.graphs
    first, second = sorted(graph.donations, key=lambda one: "[2, 4]" in one.input)
    assert "float32[3]" in first.input
    if client.aliases_host_memory:
        assert "reads CPU tensors where they lie" in str(first.refused)
        assert "not donated" in str(report)
    else:
        assert first.refused is None
        assert f"donated: {first.input}" in str(report)
        assert second.refused is None
    assert torch.equal(running, torch.ones(3))
    assert torch.equal(filled, torch.ones(2, 4))


def test_nothing_is_donated_against_the_users_will() -> None:
    opened = pjrt.open_client("cpu", alias_host_memory=False)
    platforms.use_client(opened)
    try:
        with backend.observe() as observer:
            compiled(lambda x: x.add_(1), donate=False)(torch.ones(3))
        (report,) = observer.reports()
        assert [one.refused for one in report.donations] == ["the option `donate` is False"]
    finally:
        platforms.use_client(pjrt.open_client("cpu"))


def test_layers_of_one_structure_share_a_program_and_keep_their_arrays(
    uploads: list[tuple[int, ...]],
) -> None:
    layers = [nn.Linear(3, 5) for _ in range(4)]
    function = compiled(lambda x, weight, bias: torch.nn.functional.linear(x, weight, bias))
    x = torch.randn(2, 3)
    with torch.no_grad():
        for _ in range(3):
            for layer in layers:
                actual = function(x, layer.weight, layer.bias)
                torch.testing.assert_close(actual, layer(x))
    assert uploads.count((5, 3)) == len(layers)


def test_a_parameter_dropped_is_freed_by_later_calls_with_others(client: pjrt.Client) -> None:
    function = compiled(lambda x, weight: x * weight)
    x = torch.ones(6)
    parameters = [nn.Parameter(torch.ones(6)) for _ in range(3)]
    with torch.no_grad():
        for _ in range(2):
            for parameter in parameters:
                function(x, parameter)
    watched = [weakref.ref(parameter.untyped_storage()) for parameter in parameters]
    del parameter, parameters
    with torch.no_grad():
        # The device's references are dropped with the call after the next.
        for _ in range(2):
            function(x, nn.Parameter(torch.ones(6)))
    gc.collect()
    assert [reference() for reference in watched] == [None] * 3
