"""What is wrong with a call is said: devices that are not there, mixed devices, lost clients."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tpu_compile
import tpu_compile.device
from tpu_compile.device import client, compat
from tpu_compile.runtime import pjrt, platforms


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(2, device="tpu:7"),
        lambda: torch.empty(2, device="tpu:7"),
        lambda: torch.tensor([1.0], device="tpu:7"),
        lambda: torch.rand(2, device=torch.device("tpu", 7)),
        lambda: torch.ones(2).to("tpu:7"),
        lambda: torch.ones(2).tpu(7),
        lambda: torch.ones(2, device="tpu").to("tpu:7"),
        lambda: torch.zeros_like(torch.ones(2), device="tpu:7"),
        lambda: torch.nn.Linear(2, 2).to("tpu:7"),
        lambda: torch.ones(2, device="tpu").new_zeros(2, device="tpu:7"),
    ],
)
def test_there_is_one_device(make: Callable[[], Any]) -> None:
    with pytest.raises(tpu_compile.DeviceError, match=r"no device 'tpu:7'.*one device, tpu:0"):
        make()


def mixed_calls() -> list[Callable[[torch.Tensor, torch.Tensor], Any]]:
    return [
        lambda ours, host: ours + host,
        lambda ours, host: host + ours,
        lambda ours, host: host @ ours,
        lambda ours, host: torch.nn.functional.linear(ours, host),
        lambda ours, host: torch.cat([ours, host]),
        lambda ours, host: torch.where(ours > 0, ours, host),
        lambda ours, host: torch.add(ours, ours, out=host),
        lambda ours, host: host.add_(ours),
        lambda ours, host: torch._foreach_add([ours], [host]),
        lambda ours, host: torch.nn.functional.mse_loss(ours, host),
    ]


@pytest.mark.parametrize("call", mixed_calls())
def test_mixed_devices(call: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
    """Nothing is moved behind the user's back, and no CPU kernel reads a device's address."""
    ours, host = torch.ones(2, 2, device="tpu"), torch.ones(2, 2)
    with pytest.raises(tpu_compile.DeviceError, match=r"several devices: .*tpu.*\.to\("):
        call(ours, host)


def test_numbers_and_indices_of_the_cpu_may_be_mixed() -> None:
    x = torch.arange(3.0).to("tpu")
    assert (x + torch.tensor(1.0)).tolist() == [1, 2, 3]
    assert x[torch.tensor([2, 0])].tolist() == [2, 0]
    x[torch.tensor([True, False, False])] = 5
    assert x.tolist() == [5, 1, 2]
    host = torch.zeros(3)
    host.copy_(x)
    host[1] = x[2]
    assert host.tolist() == [5, 2, 2]


def test_module_and_input_on_different_devices() -> None:
    model = torch.nn.Linear(2, 2).to("tpu")
    with pytest.raises(tpu_compile.DeviceError, match="several devices"):
        model(torch.ones(1, 2))


def test_layouts_that_the_device_has_not() -> None:
    with pytest.raises(tpu_compile.DeviceError, match="no sparse tensors"):
        torch.eye(2, device="tpu").to_sparse()


def test_dtypes_that_the_device_has_not() -> None:
    with pytest.raises(tpu_compile.DeviceError, match=r"no tensors of torch\.complex32"):
        torch.empty(2, dtype=torch.complex32, device="tpu")


@pytest.fixture
def closed_client(monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    """A tensor whose client another platform's choice has closed."""
    x = torch.ones(2).to("tpu")
    before = platforms.current_client()
    monkeypatch.setattr(platforms, "_chosen", platforms._chosen)
    monkeypatch.setattr(platforms, "_client", before)
    monkeypatch.setattr(before, "is_open", True)
    tpu_compile.set_platform("another")
    return x


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x + 1,
        lambda x: x.cpu(),
        lambda x: x.item() if x.numel() == 1 else x.tolist(),
        lambda x: torch.ones(2).to("tpu"),
        lambda x: torch.tpu.synchronize(),
        lambda x: torch.tpu.memory_allocated(),
        lambda x: repr(x),
    ],
)
def test_closed_client(closed_client: torch.Tensor, use: Callable[[torch.Tensor], Any]) -> None:
    with pytest.raises(tpu_compile.DeviceError, match=r"was closed.*set_platform"):
        use(closed_client)


def test_forked_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads of the client are not in a fork, where a read would wait for ever."""
    x = torch.ones(2).to("tpu")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            x.cpu()
            message = "no error"
        except tpu_compile.DeviceError as error:
            message = str(error)
        message += str(torch.tpu._is_in_bad_fork())
        os.write(writing, message.encode())
        os._exit(0)
    os.waitpid(child, 0)
    message = os.read(reading, 10_000).decode()
    assert "forked" in message
    assert "spawn" in message
    assert message.endswith("True")
    assert not torch.tpu._is_in_bad_fork()
    assert not client.in_bad_fork()


def test_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    (error,) = pjrt.RUNTIME_ERRORS

    def full(*args: Any, **kwargs: Any) -> Any:
        raise error("RESOURCE_EXHAUSTED: Out of memory allocating 17179869184 bytes.")

    monkeypatch.setattr(pjrt.Client, "put", full)
    with pytest.raises(tpu_compile.DeviceError, match=r"out of memory.*17179869184") as caught:
        torch.ones(2).to("tpu")
    assert "memory_allocated" in str(caught.value)


def test_self_test_names_torch_and_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    hooks = (*compat._HOOKS, "torch._C._acc.make_devices", "torch.gone.entirely")
    monkeypatch.setattr(compat, "_HOOKS", hooks)
    with pytest.raises(tpu_compile.DeviceError) as caught:
        compat.require_hooks()
    assert torch.__version__ in str(caught.value)
    assert "there is no torch._C._acc.make_devices, torch.gone.entirely." in str(caught.value)
    assert "backend=" in str(caught.value)


def test_another_plugin_has_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C, "_get_privateuse1_backend_name", lambda: "npu")
    with pytest.raises(tpu_compile.DeviceError, match="'npu' is there already"):
        compat.require_hooks()
