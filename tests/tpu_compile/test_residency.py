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


def test_parameters_are_uploaded_once(uploads: list[tuple[int, ...]]) -> None:
    model = nn.Linear(3, 5)
    function = compiled(model)
    with torch.no_grad():
        for _ in range(3):
            function(torch.randn(2, 3))
    assert uploads.count((5,)) == 1
    assert uploads.count((5, 3)) == 1
    assert uploads.count((2, 3)) == 3


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
