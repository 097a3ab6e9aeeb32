"""Streams and events of the device, which has one queue: all work is in the order of the calls."""

from __future__ import annotations

import time
from typing import Any

import torch

from tpu_compile.device import compat
from tpu_compile.device.client import device_client
from tpu_compile.device.trace import flush
from tpu_compile.device.values import check_device, current_device
from tpu_compile.errors import DeviceError


def wait_for_device() -> None:
    """Run every op that waits, and wait until the device has computed them."""
    flush()
    device_client().synchronize()


class Event:
    """A point in the device's queue.

    With `enable_timing`, `record` waits for all work before it and notes the host's time.
    """

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> None:
        self.device = current_device()
        self.enable_timing = enable_timing
        self._seconds: float | None = None

    def record(self, stream: Any = None) -> None:
        """Take the present end of the queue."""
        if self.enable_timing:
            wait_for_device()
        else:
            flush()
        self._seconds = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """Nothing: later work runs after earlier work."""

    def query(self) -> bool:
        """Whether the work before it is done: true, after waiting for it."""
        self.synchronize()
        return True

    def synchronize(self) -> None:
        """Wait until the work before it is done."""
        wait_for_device()

    def elapsed_time(self, end_event: Event) -> float:
        """The milliseconds between two recorded events that were made with `enable_timing`.

        Raises:
            DeviceError: one of them was not recorded, or not timed.
        """
        if not (self.enable_timing and end_event.enable_timing):
            raise DeviceError("Both events must be made with enable_timing=True")
        if self._seconds is None or end_event._seconds is None:
            raise DeviceError("Both events must be recorded before the time between them is read")
        return (end_event._seconds - self._seconds) * 1000


class Stream(torch.Stream):
    """The device's one queue: every `Stream` stands for it."""

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Stream:
        """Return a stream, which is the device's queue.

        Raises:
            DeviceError: there is no such device.
        """
        check_device(None if device is None else as_device(device))
        return super().__new__(cls, device=current_device(), **kwargs)

    def synchronize(self) -> None:
        """Wait until all work is done."""
        wait_for_device()

    def query(self) -> bool:
        """Whether all work is done: true, after waiting for it."""
        self.synchronize()
        return True

    def record_event(self, event: Any = None) -> Any:
        """Record `event`, or a new one; return it."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Any) -> None:
        """Nothing: later work runs after earlier work."""

    def wait_stream(self, stream: Any) -> None:
        """Nothing: there is one queue."""


class StreamContext:
    """The block's work goes to `stream`, which is the one that there is."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __enter__(self) -> Any:
        return self.stream

    def __exit__(self, *exc_info: object) -> None:
        pass


def stream(stream: Any) -> StreamContext:
    """A context in which work goes to `stream`."""
    return StreamContext(stream)


def set_stream(stream: Any) -> None:
    """Nothing: there is one queue."""


def current_stream(device: Any = None) -> Stream:
    """The stream that work goes to."""
    return Stream(device)


default_stream = current_stream


def as_device(device: Any) -> torch.device:
    """Return what a call of `torch.tpu` takes for a device (an index, a name) as one.

    Raises:
        DeviceError: it is of another type.
    """
    given = torch.device(compat.NAME, device) if isinstance(device, int) else torch.device(device)
    if given.type != compat.NAME:
        raise DeviceError(
            f"{str(given)!r} is no device of torch.{compat.NAME}",
            ways_out=(f"torch.{given.type}",) if hasattr(torch, given.type) else (),
        )
    return given
