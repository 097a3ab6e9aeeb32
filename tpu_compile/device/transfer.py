"""Between the device and the host: values from CPU tensors and back."""

from __future__ import annotations

import torch

from tpu_compile.device import compat
from tpu_compile.device.client import device_client, explained
from tpu_compile.device.trace import LOCK, flush
from tpu_compile.device.values import Kind, Value, store_of
from tpu_compile.errors import DeviceError
from tpu_compile.runtime.pjrt import RUNTIME_ERRORS
from tpu_compile.statistics import RECORDER


def require_strided(layout: torch.layout) -> None:
    """Check that tensors of a layout can be on the device.

    Raises:
        DeviceError: they cannot.
    """
    if layout is not torch.strided:
        raise DeviceError(
            f"The device tpu has no {str(layout).removeprefix('torch.')} tensors",
            ways_out=("to_dense()", "a CPU tensor"),
        )


def value_from_host(tensor: torch.Tensor) -> Value:
    """Return the data of a CPU tensor as a value of its shape; it is copied.

    Raises:
        DeviceError: the device has no tensors of its layout or dtype.
    """
    require_strided(tensor.layout)
    kind = Kind.of(tensor.dtype, tensor.shape)
    RECORDER.count("uploads")
    dense = (
        tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    )
    client = device_client()
    try:
        array = client.put(dense, client.put_plan(dense.shape, dense.dtype))
    except RUNTIME_ERRORS as error:
        raise explained(error) from error
    return Value(kind, array)


def host_memory(value: Value) -> torch.Tensor:
    """Return the elements of `value` as a flat CPU tensor; waits for the device.

    It may share the memory of the array, which must not be written to.
    """
    RECORDER.count("downloads")
    with LOCK:
        if value.array is None and value.trace is not None:
            flush()
    if value.error is not None:
        raise value.error
    if value.array is None:
        return torch.zeros(value.kind.elements, dtype=value.kind.dtype, device="cpu")
    try:
        value.array.block_until_ready()
    except RUNTIME_ERRORS as error:
        raise explained(error) from error
    return device_client().read(value.array, value.kind.dtype).reshape(-1)


def host_view(tensor: torch.Tensor) -> torch.Tensor:
    """Return the data of a device tensor as a CPU tensor of the same sizes and strides.

    It may share the memory of the array, which must not be written to. Waits for the device.
    """
    memory = host_memory(store_of(tensor).value)
    if tensor.dtype is not memory.dtype:
        memory = _as_dtype(memory, tensor.dtype)
    view = memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    if tensor.is_conj():
        view = view.conj()
    return compat.negated(view) if tensor.is_neg() else view


def _as_dtype(memory: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return memory.view(dtype)
