"""`torch.tpu`: what torch and its users ask of a device."""

from __future__ import annotations

from typing import Any

import torch

from tpu_compile.device import compat
from tpu_compile.device.client import device_client
from tpu_compile.device.generators import DEFAULT
from tpu_compile.device.trace import flush
from tpu_compile.errors import DeviceError


def is_available() -> bool:
    """Whether the device can be used."""
    return True


def is_initialized() -> bool:
    """Whether the device is in use already."""
    return True


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
    index = (
        torch.device(compat.NAME, device).index
        if isinstance(device, int)
        else torch.device(device).index
    )
    if index not in (None, 0):
        raise DeviceError(
            f"There is no device tpu:{index}", why="this process has one device, tpu:0"
        )


def synchronize(device: Any = None) -> None:
    """Run every op that waits, and wait until the device has computed them."""
    flush()
    device_client().synchronize()


def manual_seed(seed: int) -> None:
    """Start the device's random numbers anew."""
    DEFAULT.seed(int(seed))


manual_seed_all = manual_seed


def seed() -> None:
    """Start the device's random numbers anew from a seed of the system's."""
    DEFAULT.seed(int.from_bytes(__import__("os").urandom(8), "little"))


def initial_seed() -> int:
    """The seed of the device's random numbers."""
    return DEFAULT.initial_seed


def get_rng_state(device: Any = "tpu") -> torch.Tensor:
    """The state of the device's random numbers, uint8[16] on the CPU."""
    return DEFAULT.get_state()


def set_rng_state(new_state: torch.Tensor, device: Any = "tpu") -> None:
    """Go back to a state of `get_rng_state`."""
    DEFAULT.set_state(new_state)


def _is_in_bad_fork() -> bool:
    return False


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that autocast may use."""
    return [torch.bfloat16, torch.float16]
