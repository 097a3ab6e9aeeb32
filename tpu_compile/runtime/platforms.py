"""Which PJRT platform this process uses, and its one open client."""

from __future__ import annotations

import importlib.util
import threading

from tpu_compile.errors import OptionError
from tpu_compile.options import platform_from_environment
from tpu_compile.runtime.pjrt import Client, open_client, tpu_is_attached

_lock = threading.RLock()
_chosen: str | None = None
_client: Client | None = None


def set_platform(platform: str) -> None:
    """Choose the platform of everything compiled from now on.

    `"cpu"`, `"tpu"`, or the name of an installed PJRT plugin. Wins over `TPU_COMPILE_PLATFORM`.
    The client opens at first use. Functions that were compiled for another platform raise
    `DeviceError` when called again; `torch._dynamo.reset()` lets them compile anew.
    """
    global _chosen, _client
    if not isinstance(platform, str) or not platform:
        raise OptionError(
            f"set_platform got {platform!r}",
            why='it takes "cpu", "tpu" or the name of a PJRT plugin',
        )
    with _lock:
        _chosen = platform
        if _client is not None and _client.platform != platform:
            _client.close()
            _client = None


def current_platform() -> str:
    """Return the platform in force: chosen, from the environment, or TPU if one is attached."""
    with _lock:
        return _chosen or platform_from_environment() or ("tpu" if _tpu_usable() else "cpu")


def current_client() -> Client:
    """Return the open client of the current platform, opening it at first use.

    Raises:
        DeviceError: the platform's plugin is missing or does not start.
    """
    global _client
    with _lock:
        platform = current_platform()
        if _client is not None and _client.platform != platform:
            _client.close()
            _client = None
        if _client is None:
            _client = open_client(platform)
        return _client


def opened_client() -> Client | None:
    """Return the open client; None if nothing has been compiled yet."""
    return _client


def use_client(client: Client) -> None:
    """Make `client` the open client of its platform (tests of the copying path)."""
    global _chosen, _client
    with _lock:
        if _client is not None and _client is not client:
            _client.close()
        _chosen = client.platform
        _client = client


def _tpu_usable() -> bool:
    """Whether a TPU sits in this machine and libtpu is installed; starts nothing."""
    return importlib.util.find_spec("libtpu") is not None and tpu_is_attached()
