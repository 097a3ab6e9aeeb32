"""The one client that the device's arrays live in."""

from __future__ import annotations

from tpu_compile.errors import DeviceError
from tpu_compile.runtime.pjrt import Client
from tpu_compile.runtime.platforms import current_client

_client: Client | None = None


def device_client() -> Client:
    """Return the client of the device, opened at first use.

    Raises:
        DeviceError: the platform does not open, or its client was closed since.
    """
    global _client
    if _client is None:
        _client = current_client()
    if not _client.is_open:
        raise DeviceError(
            "The client that device tensors live in was closed",
            why="tpu_compile.set_platform chose another platform after the first of them was made",
            ways_out=("tpu_compile.set_platform before any tensor is moved to the device",),
        )
    return _client
