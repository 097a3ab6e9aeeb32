"""`torch.tpu`: what torch and its users ask of a device."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from tpu_compile.device.client import device_client, in_bad_fork, opened
from tpu_compile.device.generators import DEFAULT
from tpu_compile.device.memory import (
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
)
from tpu_compile.device.streams import (
    Event,
    Stream,
    StreamContext,
    as_device,
    current_stream,
    default_stream,
    set_stream,
    stream,
    wait_for_device,
)
from tpu_compile.device.values import check_device
from tpu_compile.runtime.pjrt import DTYPES
from tpu_compile.runtime.platforms import current_platform

__all__ = [
    "DeviceProperties",
    "Event",
    "Stream",
    "StreamContext",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "empty_cache",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "get_rng_state_all",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "synchronize",
]

# --- devices --------------------------------------------------------------------------------------


def is_available() -> bool:
    """Whether the device can be used: it can, on the CPU if nothing else."""
    return True


def init() -> None:
    """Open the device's client, as the first op would."""
    device_client()


def is_initialized() -> bool:
    """Whether the device's client is open."""
    return opened()


# Checkpoints restore the state of a device's random numbers only if this says that it is in use.
_initialized = True


def _lazy_init() -> None:
    init()


def device_count() -> int:
    """How many devices this process has."""
    return 1


def current_device() -> int:
    """The index of the device in use."""
    return 0


def set_device(device: Any) -> None:
    """Choose the device in use.

    Raises:
        DeviceError: there is no such device.
    """
    check_device(as_device(device))


class device:
    """A context in which `device` is in use; None and negative indices change nothing."""

    def __init__(self, device: Any) -> None:
        if device is not None and not (isinstance(device, int) and device < 0):
            set_device(device)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc_info: object) -> None:
        pass


class device_of(device):
    """A context in which the device of a tensor is in use; a CPU tensor's changes nothing."""

    def __init__(self, obj: torch.Tensor) -> None:
        super().__init__(obj.get_device())


def _exchange_device(device: int) -> int:
    """Choose a device and return the one before."""
    if device >= 0:
        set_device(device)
    return 0


_maybe_exchange_device = _exchange_device


@dataclass(frozen=True)
class DeviceProperties:
    """What is known of a device."""

    name: str
    """Its kind, such as `"TPU v6 lite"` or `"cpu"`."""
    platform: str
    """The PJRT platform, such as `"tpu"` or `"cpu"`."""
    platform_version: str
    total_memory: int
    """Bytes: the device's, or the machine's where the device is the CPU."""
    multi_processor_count: int
    """1, or the number of the machine's processors where the device is the CPU."""


def get_device_properties(device: Any = None) -> DeviceProperties:
    """What is known of a device; opens the client.

    Raises:
        DeviceError: there is no such device, or its platform does not open.
    """
    set_device(0 if device is None else device)
    client = device_client()
    on_cpu = client.platform == "cpu"
    total = client.memory_counts().get("bytes_limit")
    if total is None:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if on_cpu else 0
    return DeviceProperties(
        client.device_kind,
        client.platform,
        client.version,
        total,
        (os.cpu_count() or 1) if on_cpu else 1,
    )


def get_device_name(device: Any = None) -> str:
    """The kind of a device, such as `"TPU v6 lite"`, or `"cpu"` without a TPU."""
    return get_device_properties(device).name


def get_device_capability(device: Any = None) -> dict[str, Any]:
    """The dtypes that tensors of the device can have."""
    set_device(0 if device is None else device)
    return {"supported_dtypes": set(DTYPES)}


def synchronize(device: Any = None) -> None:
    """Run every op that waits, and wait until the device has computed them."""
    if device is not None:
        set_device(device)
    wait_for_device()


# --- random numbers -------------------------------------------------------------------------------


def manual_seed(seed: int) -> None:
    """Start the device's random numbers anew."""
    DEFAULT.seed(int(seed))


manual_seed_all = manual_seed


def seed() -> None:
    """Start the device's random numbers anew from a seed of the system's."""
    DEFAULT.seed(int.from_bytes(os.urandom(8), "little"))


seed_all = seed


def initial_seed() -> int:
    """The seed of the device's random numbers."""
    return DEFAULT.initial_seed


def get_rng_state(device: Any = None) -> torch.Tensor:
    """The state of the device's random numbers, uint8[16] on the CPU."""
    set_device(0 if device is None else device)
    return DEFAULT.get_state()


def set_rng_state(new_state: torch.Tensor, device: Any = None) -> None:
    """Go back to a state of `get_rng_state`.

    Raises:
        ValueError: it is no such state.
    """
    set_device(0 if device is None else device)
    DEFAULT.set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all devices."""
    return [get_rng_state()]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Go back to the states of `get_rng_state_all`."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def _is_in_bad_fork() -> bool:
    return in_bad_fork()


# --- precision ------------------------------------------------------------------------------------


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that autocast may use."""
    return [torch.bfloat16, torch.float16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether the device computes with bfloat16: a TPU does, and the CPU emulates it."""
    return including_emulation or current_platform() == "tpu"


def _of_device(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(device: Any = None, /) -> Any:
        set_device(0 if device is None else device)
        return function()

    return call


ACCELERATOR: dict[str, Callable[..., Any]] = {
    function.__name__: _of_device(function)
    for function in (
        get_device_capability,
        max_memory_allocated,
        max_memory_reserved,
        memory_allocated,
        memory_reserved,
        memory_stats,
        reset_accumulated_memory_stats,
        reset_peak_memory_stats,
        synchronize,
    )
}
"""What `torch.accelerator` asks of the device, whatever its C++ side would say."""
ACCELERATOR["get_memory_info"] = _of_device(mem_get_info)
ACCELERATOR["empty_cache"] = empty_cache
ACCELERATOR["current_stream"] = _of_device(current_stream)
ACCELERATOR["set_stream"] = set_stream
ACCELERATOR["set_device_index"] = set_device
