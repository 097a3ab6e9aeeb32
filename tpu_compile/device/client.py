"""The one client that the device's arrays live in."""

from __future__ import annotations

import os

from tpu_compile.errors import DeviceError
from tpu_compile.runtime.pjrt import Client
from tpu_compile.runtime.platforms import current_client

_client: Client | None = None
_forked = False


def device_client() -> Client:
    """Return the client of the device, opened at first use.

    Raises:
        DeviceError: the platform does not open, its client was closed since, or this process was
            forked from one that had opened it.
    """
    global _client
    if _forked:
        raise DeviceError(
            "The device tpu cannot be used in this process",
            why="it was forked from one that uses the device, whose threads are not in the fork",
            ways_out=(
                'multiprocessing.set_start_method("spawn")',
                "CPU tensors in the workers of a DataLoader",
            ),
        )
    if _client is None:
        _client = current_client()
    if not _client.is_open:
        raise DeviceError(
            "The client that device tensors live in was closed",
            why="tpu_compile.set_platform chose another platform after the first of them was made",
            ways_out=("tpu_compile.set_platform before any tensor is moved to the device",),
        )
    return _client


def explained(error: Exception) -> DeviceError:
    """Return what to raise for an error of PJRT's: the device's memory is full, or it failed."""
    if "RESOURCE_EXHAUSTED" in str(error) or "out of memory" in str(error).lower():
        return DeviceError(
            "The device tpu is out of memory",
            why=str(error),
            ways_out=(
                "a smaller batch",
                "del of tensors that are no longer used (torch.tpu.memory_allocated tells)",
                "torch.no_grad where no gradients are needed",
            ),
        )
    return DeviceError("The device tpu failed", why=str(error))


def opened() -> bool:
    """Whether the client is open."""
    return _client is not None and _client.is_open and not _forked


def in_bad_fork() -> bool:
    """Whether this process was forked from one that had opened the client."""
    return _forked


def _after_fork() -> None:
    global _forked
    _forked = _client is not None


os.register_at_fork(after_in_child=_after_fork)
