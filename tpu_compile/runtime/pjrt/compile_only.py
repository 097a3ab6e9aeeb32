"""Compilers for chips that are not there: PJRT topologies without devices.

A plugin describes a topology by name, gives devices that only compile, and returns what it
compiled: optimized HLO, cost, memory. libtpu does so on any x86-64 Linux machine.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tpu_compile.errors import CompilationError, DeviceError
from tpu_compile.runtime.pjrt.bindings import _jax, xc
from tpu_compile.runtime.pjrt.client import compile_error, compile_options
from tpu_compile.runtime.pjrt.plugins import load_plugin, quiet_stderr

# Compiles of one process take turns: what native code prints is kept off file descriptor 2, which
# all threads share.
_lock = threading.Lock()

_SIZES = re.compile(
    r"(\d+(?:\.\d+)?)([KMGT]?)\) exceeds available HBM \((\d+(?:\.\d+)?)([KMGT]?)\)"
)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class OutOfMemoryError(CompilationError):
    """The compiler found that a program needs more memory than the chip has.

    `needed` and `available` are bytes, as precise as the compiler's message (two decimals); None
    where it names none.
    """

    needed: int | None = None
    available: int | None = None


class UnknownTopologyError(DeviceError):
    """The plugin knows no topology of that name."""


class CompileOnlyClient:
    """The compiler of one kind of chip, which need not be there."""

    def __init__(self, platform: str, devices: Sequence[Any], version: str) -> None:
        self.platform = platform
        self.version = version
        """The plugin's own text: platform, build."""
        self.device_count = len(devices)
        self._device = devices[0]
        self._device_list = _jax.DeviceList((self._device,))
        self._available: int | None = None

    @property
    def device_kind(self) -> str:
        """The device's own name, such as `"TPU v6 lite"`."""
        return str(self._device.device_kind)

    def compile(self, module: Any, xla_options: Sequence[tuple[str, Any]] = ()) -> Any:
        """Return the executable of an `ir.Module`; it can be asked, not run.

        Raises:
            OutOfMemoryError: the program does not fit the chip's memory.
            CompilationError, OptionError: XLA rejects the module or an option.
        """
        try:
            with _lock, quiet_stderr():
                return self._device.client.compile(
                    module, self._device_list, compile_options(xla_options)
                )
        except xc.XlaRuntimeError as error:
            if str(error).startswith("RESOURCE_EXHAUSTED"):
                raise _out_of_memory(error) from error
            raise compile_error(error, xla_options) from error

    def available_bytes(self, make_probe: Callable[[], Any]) -> int | None:
        """Return the bytes of HBM that a program may use; None where the compiler does not say.

        It is less than the capacity: the run time keeps some. `make_probe` gives a module that
        fits no chip, of which the compiler says so.
        """
        if self._available is None:
            try:
                self.compile(make_probe())
            except OutOfMemoryError as error:
                self._available = error.available
        return self._available


def cost_of(executable: Any) -> Mapping[str, float]:
    """Return XLA's cost analysis: `"flops"`, `"bytes accessed"`, `"transcendentals"`, ..."""
    found = executable.cost_analysis()
    return dict(found[0] if isinstance(found, list) else found)


def hlo_of(executable: Any) -> str:
    """Return the optimized HLO of an executable as text.

    Raises:
        CompilationError: jaxlib cannot read it: the plugin is of a much newer release.
    """
    try:
        return "\n".join(module.to_string() for module in executable.hlo_modules())
    except xc.XlaRuntimeError as error:
        raise CompilationError(
            "The HLO of a compiled program cannot be read",
            why=str(error),
            ways_out=("the libtpu that pip install 'tpu_compile[tpu]' chooses for this jaxlib",),
        ) from error


def memory_of(executable: Any) -> Mapping[str, int]:
    """Return the bytes of arguments, outputs, aliased outputs, temporaries and code."""
    found = executable.get_compiled_memory_stats()
    return {
        "arguments": found.argument_size_in_bytes,
        "outputs": found.output_size_in_bytes,
        "aliased": found.alias_size_in_bytes,
        "temporaries": found.temp_size_in_bytes,
        "code": found.generated_code_size_in_bytes,
    }


def serialized(executable: Any) -> bytes:
    """Return an executable as the bytes that its plugin can load."""
    return bytes(executable.serialize())


def open_compile_only(platform: str, topology: str, one_chip: bool) -> CompileOnlyClient:
    """Return the compiler for a topology of `platform`, such as `"v6e:2x2"` of `"tpu"`.

    `one_chip` is for a topology of a single chip, which is smaller than a host.

    Raises:
        DeviceError: the plugin is missing.
        UnknownTopologyError: it knows no such topology.
    """
    with _lock, quiet_stderr():
        # libtpu would ask Google Cloud's metadata server which machine this is, for minutes.
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
        # It guards the chips of a machine against a second process; a compiler needs none of them.
        os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
        load_plugin(platform)
        bounds = {"chips_per_host_bounds": (1, 1, 1)} if one_chip else {}
        try:
            described: Any = xc.make_tfrt_tpu_c_api_device_topology(topology, **bounds)
            devices = described._make_compile_only_devices()
        except xc.XlaRuntimeError as error:
            raise UnknownTopologyError(
                f"The compiler of {platform!r} knows no topology {topology!r}", why=str(error)
            ) from error
        return CompileOnlyClient(platform, devices, str(described.platform_version))


def _out_of_memory(error: Exception) -> OutOfMemoryError:
    text = " ".join(str(error).split())
    why = re.sub(r"^RESOURCE_EXHAUSTED: (E\d+: )?", "", text)
    raised = OutOfMemoryError(
        "A program does not fit the memory of the chip",
        why=why,
        ways_out=("a smaller batch or shorter sequences", "a chip with more memory"),
    )
    found = _SIZES.search(text)
    if found is not None:
        raised.needed = _bytes(found[1], found[2])
        raised.available = _bytes(found[3], found[4])
    return raised


def _bytes(number: str, unit: str) -> int:
    return round(float(number) * _UNITS[unit])
