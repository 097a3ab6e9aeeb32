"""PJRT plugins: where they are, loading them, and keeping their start off the terminal."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from tpu_compile.errors import DeviceError
from tpu_compile.runtime.pjrt.bindings import xc

_GOOGLE_PCI_VENDOR = "0x1ae0"


class PluginMissingError(DeviceError):
    """No PJRT plugin is installed for a platform."""


def load_plugin(platform: str) -> None:
    """Load the plugin of `platform` into this process, once.

    Raises:
        PluginMissingError: there is none.
        DeviceError: it does not load.
    """
    if xc.pjrt_plugin_loaded(platform):
        return
    path = plugin_path(platform)
    near = platform.strip().lower()
    if path is None:
        raise PluginMissingError(
            f"There is no PJRT plugin for the platform {platform!r}",
            why="neither libtpu nor a package under `jax_plugins` provides it"
            + (f"; did you mean {near!r}?" if near in ("cpu", "tpu") and near != platform else ""),
            ways_out=(
                "pip install tpu_compile[tpu] for TPUs",
                "set PJRT_NAMES_AND_LIBRARY_PATHS=name:/path/to/plugin.so",
                'tpu_compile.set_platform("cpu")',
            ),
        )
    try:
        xc.load_pjrt_plugin_dynamically(platform, path)
        xc.initialize_pjrt_plugin(platform)
    except Exception as error:
        raise DeviceError(
            f"The PJRT plugin {platform!r} cannot be loaded",
            why=str(error),
            ways_out=('tpu_compile.set_platform("cpu")',),
        ) from error


def plugin_path(platform: str) -> str | None:
    """Return the shared library of a PJRT plugin, or None if none is installed.

    Looks at `PJRT_NAMES_AND_LIBRARY_PATHS` (`name:path,name:path`, as JAX does), at libtpu, and
    for a library in the folder `jax_plugins/<platform>` that plugin packages install.
    """
    named = named_by_environment(platform)
    if named is not None:
        return named
    if platform == "tpu":
        with contextlib.suppress(ImportError):
            import libtpu

            return str(libtpu.get_library_path())
    plugins = importlib.util.find_spec("jax_plugins")
    for folder in plugins.submodule_search_locations or () if plugins else ():
        for library in sorted(Path(folder, platform).glob("*.so")):
            return str(library)
    return None


def plugin_names() -> list[str]:
    """Return the platforms besides the CPU that `plugin_path` finds a plugin for."""
    names = {pair.partition(":")[0] for pair in _environment_pairs()} | {"tpu"}
    plugins = importlib.util.find_spec("jax_plugins")
    for folder in plugins.submodule_search_locations or () if plugins else ():
        names.update(library.parent.name for library in Path(folder).glob("*/*.so"))
    return sorted(name for name in names if name and plugin_path(name) is not None)


def _environment_pairs() -> list[str]:
    return os.environ.get("PJRT_NAMES_AND_LIBRARY_PATHS", "").split(",")


def named_by_environment(platform: str) -> str | None:
    """Return the library that `PJRT_NAMES_AND_LIBRARY_PATHS` gives `platform`, or None."""
    for pair in _environment_pairs():
        name, _, path = pair.partition(":")
        if name == platform and path:
            return path
    return None


def tpu_is_attached() -> bool:
    """Whether a TPU chip is among this machine's PCI devices; starts nothing."""
    for vendor in Path("/sys/bus/pci/devices").glob("*/vendor"):
        with contextlib.suppress(OSError):
            if vendor.read_text().strip() == _GOOGLE_PCI_VENDOR:
                return True
    return False


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Keep what native code prints while it starts or compiles off the user's terminal.

    jaxlib and libtpu write informational lines straight to file descriptor 2; an error still
    arrives as an exception.
    """
    sys.stderr.flush()
    saved = os.dup(2)
    try:
        with open(os.devnull, "wb") as sink:
            os.dup2(sink.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
