"""Clients, arrays and executables of the run time.

Nothing here imports `jax`, and nothing here makes jaxlib import it: jaxlib does so whenever it has
to invent an abstract value, so every call that makes an array is given ours (`_Aval`). A process
that also uses jax keeps both right: jax's x64 flag, which is off by default and would narrow 64-bit
data, is overruled for each array that is put.
"""

from __future__ import annotations

import functools
import hashlib
import platform
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy
import torch

from tpu_compile.errors import CompilationError, DeviceError, OptionError
from tpu_compile.runtime.pjrt.bindings import JAXLIB_VERSION, HloPrintOptions, _jax, lapack, xc
from tpu_compile.runtime.pjrt.identity import compiler_flags, library_digest
from tpu_compile.runtime.pjrt.plugins import (
    load_plugin,
    named_by_environment,
    plugin_path,
    quiet_stderr,
    tpu_is_attached,
)
from tpu_compile.runtime.residency import Residency

_NUMPY_DTYPES: dict[torch.dtype, numpy.dtype[Any]] = {
    torch.bool: numpy.dtype("bool"),
    torch.int8: numpy.dtype("int8"),
    torch.int16: numpy.dtype("int16"),
    torch.int32: numpy.dtype("int32"),
    torch.int64: numpy.dtype("int64"),
    torch.uint8: numpy.dtype("uint8"),
    torch.uint16: numpy.dtype("uint16"),
    torch.uint32: numpy.dtype("uint32"),
    torch.uint64: numpy.dtype("uint64"),
    torch.float16: numpy.dtype("float16"),
    torch.float32: numpy.dtype("float32"),
    torch.float64: numpy.dtype("float64"),
    torch.complex64: numpy.dtype("complex64"),
    torch.complex128: numpy.dtype("complex128"),
    torch.bfloat16: numpy.dtype(ml_dtypes.bfloat16),
    torch.float8_e4m3fn: numpy.dtype(ml_dtypes.float8_e4m3fn),
    torch.float8_e4m3fnuz: numpy.dtype(ml_dtypes.float8_e4m3fnuz),
    torch.float8_e5m2: numpy.dtype(ml_dtypes.float8_e5m2),
    torch.float8_e5m2fnuz: numpy.dtype(ml_dtypes.float8_e5m2fnuz),
}
DTYPES = frozenset(_NUMPY_DTYPES)
"""The dtypes that arrays can have."""
# dtypes that NumPy or dlpack lacks cross the border as the integers with the same bits.
_AS_BITS: dict[torch.dtype, torch.dtype] = {
    torch.bfloat16: torch.int16,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e4m3fnuz: torch.uint8,
    torch.float8_e5m2: torch.uint8,
    torch.float8_e5m2fnuz: torch.uint8,
}


class _Aval:
    """What jaxlib wants to know of an array: the part of JAX's abstract value that it reads."""

    __slots__ = ("dtype", "ndim", "shape", "size", "weak_type")

    def __init__(self, shape: tuple[int, ...], dtype: numpy.dtype[Any]) -> None:
        self.shape = shape
        self.dtype = dtype
        self.ndim = len(shape)
        self.size = int(numpy.prod(shape))
        self.weak_type = False


class _Sharding(_jax.SingleDeviceSharding):  # type: ignore[misc]
    """Placement on one device, with the two members that jaxlib asks of JAX's own class."""

    memory_kind = None

    def _to_xla_hlo_sharding(self, ndim: int) -> Any:
        return xc.HloSharding.replicate()


@dataclass(frozen=True)
class Put:
    """How one kind of tensor is brought to the device; made once by `Client.put_plan`."""

    aval: _Aval
    dtype: torch.dtype
    bits: torch.dtype | None
    """The dtype as which the data crosses into NumPy, where NumPy lacks its own."""
    may_be_lazy: bool
    """Whether a tensor of this dtype may be conjugated or negated only on reading."""


class Client:
    """An open PJRT client and its first device."""

    def __init__(self, platform: str, client: Any, *, aliases_host_memory: bool) -> None:
        self.platform = platform
        self.aliases_host_memory = aliases_host_memory
        self._client = client
        devices = client.local_devices()
        if not devices:
            raise DeviceError(
                f"The PJRT platform {platform!r} has no device in this process",
                ways_out=('tpu_compile.set_platform("cpu")',),
            )
        self._device = devices[0]
        self._devices = [self._device]
        self._device_list = _jax.DeviceList((self._device,))
        self._sharding = _Sharding(self._device)
        # As they are now: XLA reads them once.
        self.compiler_flags = compiler_flags(platform)
        """The compiler's flags that the environment gave, by variable (see `compiler_flags`)."""
        self.is_open = True
        self.residency = Residency()
        """The device copies of parameters and buffers."""
        self.dispatch_lock = threading.RLock()
        """Held from looking up shared arrays until an execution holds them."""

    @property
    def device_kind(self) -> str:
        """The device's own name, such as `"cpu"` or `"TPU v6 lite"`."""
        return str(self._device.device_kind)

    @functools.cached_property
    def versions(self) -> dict[str, str]:
        """What a serialized executable depends on: platform, plugin, jaxlib, device, processor."""
        versions = {
            "platform": self.platform,
            "plugin": str(self._client.platform_version),
            "jaxlib": JAXLIB_VERSION,
            "device": self.device_kind,
        }
        if self.platform == "cpu":
            # XLA compiles for the instruction set of the machine it runs on.
            versions["processor"] = (
                torch.backends.cpu.get_cpu_capability() + platform.machine() + _cpu_flags()
            )
            return versions
        versions["topology"] = _topology(self._client)
        path = plugin_path(self.platform)
        if path is not None:
            versions["library"] = library_digest(path)
        return versions

    @property
    def version(self) -> str:
        """All of `versions` as one text."""
        return "|".join(self.versions.values())

    def memory_counts(self) -> dict[str, int]:
        """Return what the device counts of its memory, by PJRT's names; empty on the CPU."""
        return dict(self._device.memory_stats() or {})

    def live_bytes(self) -> int:
        """Return the bytes that the client's arrays take, those of compiled functions included."""
        return sum(array.on_device_size_in_bytes() for array in self._client.live_arrays())

    def close(self) -> None:
        """Drop the client; later calls raise `DeviceError`. Its arrays stay readable."""
        self.is_open = False

    def require_open(self) -> None:
        """Raise `DeviceError` if the client was closed."""
        if not self.is_open:
            raise DeviceError(
                f"The PJRT client for {self.platform!r} was closed",
                why="tpu_compile.set_platform chose another platform after this was compiled",
                ways_out=("torch._dynamo.reset() so that functions compile for the new platform",),
            )

    # --- tensors to buffers and back -----------------------------------------------------------

    def put_plan(self, shape: Sequence[int], dtype: torch.dtype) -> Put:
        """Return what `put` needs for contiguous tensors of `shape` and `dtype`."""
        aval = _Aval(tuple(shape), _NUMPY_DTYPES[dtype])
        # The imaginary part of a conjugated tensor is a real tensor that is negated lazily.
        lazy = dtype.is_floating_point or dtype.is_complex
        return Put(aval, dtype, _AS_BITS.get(dtype), lazy)

    def put(self, tensor: torch.Tensor, plan: Put) -> Any:
        """Return a device array with the data of a contiguous CPU tensor.

        On the CPU client the array aliases the tensor's memory where that is aligned, and keeps
        it alive; elsewhere the data is copied before the call returns.
        """
        if plan.may_be_lazy and (tensor.requires_grad or tensor.is_conj() or tensor.is_neg()):
            tensor = tensor.detach().resolve_conj().resolve_neg()
        if plan.bits is None:
            array = tensor.numpy()
        else:
            array = tensor.view(plan.bits).numpy().view(plan.aval.dtype)
        return xc.batched_device_put(
            plan.aval, self._sharding, [array], self._devices, True, enable_x64=True
        )

    def shares(self, dtype: torch.dtype) -> bool:
        """Whether arrays and CPU tensors of `dtype` can lie on the same memory."""
        return self.aliases_host_memory and dtype not in _NO_DLPACK

    def aliases(self, array: Any, tensor: torch.Tensor) -> bool:
        """Whether `array` shares the memory of a contiguous `tensor`."""
        if not self.shares(tensor.dtype) or tensor.numel() == 0:
            return False
        return self.read(array, tensor.dtype).data_ptr() == tensor.data_ptr()

    def read_plan(self, shape: Sequence[int], dtype: torch.dtype) -> Any:
        """Return the handler that makes arrays of one result of an executable."""
        aval = _Aval(tuple(shape), _NUMPY_DTYPES[dtype])
        return xc.array_result_handler(aval, self._sharding, True, True)

    def read(self, array: Any, dtype: torch.dtype) -> torch.Tensor:
        """Return the array's data as a CPU tensor, once the device has computed it.

        On the CPU client the tensor shares the array's memory.
        """
        if self.shares(dtype):
            return _from_dlpack(_export_dlpack(array))
        if 0 in array.aval.shape:
            return torch.empty(array.aval.shape, dtype=dtype, device="cpu")
        host, _ = array._single_device_array_to_np_array_did_copy()
        bits = _AS_BITS.get(dtype)
        if bits is None:
            return torch.from_numpy(host.copy())
        return torch.from_numpy(host.view(_NUMPY_DTYPES[bits]).copy()).view(dtype)

    def read_all(self, arrays: Sequence[Any], dtypes: Sequence[torch.dtype]) -> list[torch.Tensor]:
        """Return the results of one execution as CPU tensors, once it is over."""
        # Reading an array whose computation failed ends the process; waiting for it raises.
        arrays[0].block_until_ready()
        if self.aliases_host_memory and _NO_DLPACK.isdisjoint(dtypes):
            return [_from_dlpack(_export_dlpack(array)) for array in arrays]
        return [self.read(array, dtype) for array, dtype in zip(arrays, dtypes, strict=True)]

    def synchronize(self) -> None:
        """Wait until the device has computed every array."""
        for array in self._client.live_arrays():
            array.block_until_ready()

    # --- compilation ---------------------------------------------------------------------------

    def compile(self, module: bytes, xla_options: Sequence[tuple[str, Any]] = ()) -> Any:
        """Return the loaded executable of a StableHLO module (MLIR bytecode or text).

        Raises:
            CompilationError: XLA rejects the module or an option.
        """
        self.require_open()
        _prepare_lapack(module)
        try:
            return self._client.compile_and_load(
                module, self._device_list, compile_options(xla_options)
            )
        except xc.XlaRuntimeError as error:
            raise compile_error(error, xla_options) from error

    def serialize(self, executable: Any) -> bytes:
        """Return the executable as bytes for `deserialize` on the same platform and version.

        Raises:
            CompilationError: the plugin cannot serialize it.
        """
        try:
            return bytes(self._client.serialize_executable(executable))
        except xc.XlaRuntimeError as error:
            raise CompilationError(
                f"The PJRT plugin {self.platform!r} cannot store an executable", why=str(error)
            ) from error

    def deserialize(self, data: bytes) -> Any:
        """Return the executable that `serialize` stored.

        Raises:
            CompilationError: this client cannot load the bytes.
        """
        self.require_open()
        _prepare_lapack(data)
        try:
            return self._client.deserialize_executable(data, self._device_list, xc.CompileOptions())
        except xc.XlaRuntimeError as error:
            raise CompilationError(
                "A stored executable cannot be loaded", why=str(error)
            ) from error

    def difference(self, one: Any, other: Any) -> str | None:
        """Return in which respect two executables differ; None if they do not.

        Compared are the optimized HLO without metadata and names of instructions, and the sizes of
        the buffers.
        """
        if _optimized_hlo(one) != _optimized_hlo(other):
            return "the optimized HLO differs"
        if _memory_use(one) != _memory_use(other):
            return "the sizes of its buffers differ"
        return None


def _optimized_hlo(executable: Any) -> list[str]:
    # Not `fingerprint()`, which leaves out the values of constants.
    options = HloPrintOptions.canonical()
    options.print_large_constants = True
    options.print_backend_config = True
    return [module.to_string(options) for module in executable.hlo_modules()]


def _memory_use(executable: Any) -> str | None:
    try:
        return str(executable.get_compiled_memory_stats())
    except xc.XlaRuntimeError:
        return None  # Not every plugin tells.


def _topology(client: Any) -> str:
    """Return how many devices a plugin has, and how they are laid out where it says so."""
    devices = client.devices()
    places = {tuple(getattr(device, "coords", None) or ()) for device in devices}
    bounds = [max(axis) + 1 for axis in zip(*places, strict=False)]
    return f"{len(devices)} devices" + (f" in {'x'.join(map(str, bounds))}" if bounds else "")


@functools.cache
def _cpu_flags() -> str:
    """Return a digest of the processor's features; empty where the system does not list them."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""
    flags = next((line for line in text.splitlines() if line.startswith(("flags", "Features"))), "")
    return hashlib.sha256(flags.encode()).hexdigest()


# Every LAPACK target is called `lapack_<routine>_ffi`, in modules and in stored executables alike.
_LAPACK_MARK = b"lapack_"


def _prepare_lapack(program: bytes) -> None:
    """Register jaxlib's LAPACK targets if `program` may call one (half a second, once)."""
    if _LAPACK_MARK in program:
        _register_lapack()


@functools.cache
def _register_lapack() -> None:
    # Finds the routines themselves, in SciPy, which jaxlib requires.
    lapack.prepare_lapack_call("getrf_ffi", numpy.dtype("float32"))  # type: ignore[no-untyped-call]
    for name, target, api_version in lapack.registrations()["cpu"]:
        xc.register_custom_call_target(name, target, platform="cpu", api_version=api_version)


# The bare C functions: `torch.from_dlpack` spends as long again on looking what it was given.
_export_dlpack = _jax.buffer_to_dlpack_managed_tensor
_from_dlpack = torch._C._from_dlpack

# torch imports no dlpack tensor of these dtypes on every supported release.
_NO_DLPACK = frozenset(_AS_BITS) - {torch.bfloat16}


def compile_options(xla_options: Sequence[tuple[str, Any]]) -> Any:
    """Return jaxlib's compile options with XLA's own options set by name."""
    options = xc.CompileOptions()
    if xla_options:
        options.env_option_overrides = [(name, _xla_value(value)) for name, value in xla_options]
    return options


def _xla_value(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str)) else str(value)


def compile_error(
    error: Exception, xla_options: Sequence[tuple[str, Any]]
) -> OptionError | CompilationError:
    """Return what to raise for a refusal of XLA's: an option's fault, or the module's."""
    for name, value in xla_options:
        if f"option: '{name}'" in str(error) or f"option {name}," in str(error):
            return OptionError(
                f"XLA refuses the compile option {name!r} with the value {value!r}",
                why=str(error),
                ways_out=("correct or drop it in `xla_options`",),
            )
    return CompilationError(
        "XLA could not compile a graph",
        why=str(error),
        ways_out=(
            'fallback="eager" around the op that the message names',
            "report this graph as a fault of tpu_compile",
        ),
    )


# What an execution or a transfer raises when the device fails.
RUNTIME_ERRORS: tuple[type[Exception], ...] = (xc.XlaRuntimeError,)


def execute(executable: Any, arrays: list[Any], handlers: list[Any]) -> list[Any]:
    """Start `executable` on `arrays` and return its result arrays; does not wait for them."""
    return executable.execute_sharded(arrays).consume_with_handlers(handlers)


# --- opening a client ------------------------------------------------------------------------

_lock = threading.Lock()


def open_client(platform: str, *, alias_host_memory: bool = True) -> Client:
    """Open a PJRT client for `"cpu"`, `"tpu"`, or any plugin that is installed by name.

    See `plugin_path` for where a plugin is looked for. On the CPU, `alias_host_memory=False`
    copies tensors to buffers of the client's own, as on a device (used to test that path).

    Raises:
        DeviceError: the plugin is missing or does not start.
    """
    with _lock:
        if platform == "cpu":
            with quiet_stderr():
                client = xc.make_cpu_client(asynchronous=True)
            return Client("cpu", client, aliases_host_memory=alias_host_memory)
        if platform == "tpu" and not named_by_environment(platform) and not tpu_is_attached():
            # libtpu would ask Google Cloud's metadata server for minutes before it gave up.
            raise DeviceError(
                "There is no TPU in this machine",
                why="no PCI device of Google's is listed",
                ways_out=(
                    'tpu_compile.set_platform("cpu")',
                    "PJRT_NAMES_AND_LIBRARY_PATHS=tpu:/path/to/libtpu.so to start it all the same",
                ),
            )
        load_plugin(platform)
        try:
            with quiet_stderr():
                client = xc.make_c_api_client(platform)
        except Exception as error:
            raise DeviceError(
                f"The PJRT plugin {platform!r} did not start",
                why=str(error),
                ways_out=("check that the device is attached", 'tpu_compile.set_platform("cpu")'),
            ) from error
        return Client(platform, client, aliases_host_memory=False)
