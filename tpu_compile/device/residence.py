"""What compiled graphs need of the device: arrays of arguments, and tensors for results.

Nothing is copied through the host here: a tensor that is the whole of its storage is passed as it
is, any other view is made dense on the device first.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.graph import increment_version

from lowering.signature import dense_strides
from tpu_compile.device import fallback
from tpu_compile.device.generators import DEFAULT
from tpu_compile.device.trace import LOCK, flush
from tpu_compile.device.transfer import host_view
from tpu_compile.device.values import Kind, Value, is_on_device, new_tensor, store_of, whole_order
from tpu_compile.device.values import view_of as _view_of


class DeviceSlot:
    """Brings one argument of a program from the device, where it is."""

    __slots__ = ("_host", "_identity", "_kind", "_order")

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, order: Sequence[int], host: Any):
        """Make a slot for tensors that lie in memory as `order`; `host` takes CPU tensors."""
        self._order = tuple(order)
        self._identity = self._order == tuple(range(len(self._order)))
        self._kind = Kind.of(dtype, [shape[dim] for dim in order])
        self._host = host

    def array(self, tensor: torch.Tensor) -> Any:
        """Return the array with the tensor's present data; ops that it waits for are run."""
        store = getattr(tensor.untyped_storage(), "store", None)
        if store is None:
            return self._host.array(tensor)
        value = store.value
        if value.array is None or value.kind is not self._kind or not self._is_whole(tensor):
            value = self._settled(tensor)
        return value.array

    def _is_whole(self, tensor: torch.Tensor) -> bool:
        if tensor.is_conj() or tensor.is_neg():
            # The memory holds other numbers than the tensor.
            return False
        if self._identity:
            return tensor.is_contiguous() and not tensor.storage_offset()
        view = _view_of(tensor, self._kind)
        return view is None or whole_order(view, self._kind) == self._order

    def _settled(self, tensor: torch.Tensor) -> Value:
        """Return a value of the kind that the program takes, with the tensor's data."""
        with LOCK:
            flush()
            value = store_of(tensor).value
            if value.error is not None:
                raise value.error
            if value.array is not None and value.kind is self._kind and self._is_whole(tensor):
                return value
            dense = (
                tensor.detach()
                .resolve_conj()
                .resolve_neg()
                .permute(self._order)
                .clone(memory_format=torch.contiguous_format)
            )
            flush()
            return store_of(dense).value


def result_tensor(array: Any, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return a contiguous device tensor that holds a result of a program."""
    kind = Kind.of(dtype, shape)
    return new_tensor(Value(kind, array), kind.shape, dense_strides(kind.shape, range(len(shape))))


def replace(tensor: torch.Tensor, result: torch.Tensor) -> bool:
    """Give `tensor` the contents of a program's `result`, if it is all of its storage.

    Tells whether it was done. `result` lies in memory as `tensor` does, and is not used again.
    """
    if tensor.stride() != result.stride() or tensor.shape != result.shape:
        return False
    store, value = store_of(tensor), store_of(result).value
    if tensor.storage_offset() or store.value.kind.nbytes != value.kind.nbytes:
        return False
    with LOCK:
        store.value = value
    # The version counter tells autograd of the write.
    increment_version((tensor,))
    return True


def lose(tensors: Sequence[torch.Tensor], error: Exception) -> None:
    """Let later reads of device tensors raise `error`, where a failed program took their arrays."""
    with LOCK:
        for tensor in filter(is_on_device, tensors):
            value = store_of(tensor).value
            if value.array is not None and value.array.is_deleted():
                store_of(tensor).value = lost = Value(value.kind)
                lost.error = error


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return the data of a device tensor as a CPU tensor; not to be written to."""
    return host_view(tensor) if is_on_device(tensor) else tensor


def from_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a CPU tensor as a new device tensor."""
    return fallback.from_host(tensor)


def draw_key() -> torch.Tensor:
    """Return the key of one call, drawn from the device's random numbers: uint32[2] on the CPU."""
    return torch.tensor(struct.unpack("<q", DEFAULT.next_key()), dtype=torch.int64).view(
        torch.uint32
    )
