"""What `torch.UntypedStorage` does where the storage is the device's.

A storage's address names it and nothing else, so every method of torch's that reads or writes
memory is replaced by one that goes through the storage's contents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from lowering.signature import dense_strides
from tpu_compile.device import compat
from tpu_compile.device.trace import LOCK
from tpu_compile.device.transfer import host_memory, value_from_host
from tpu_compile.device.values import (
    Kind,
    Value,
    check_device,
    memory_layout,
    new_storage,
    new_tensor,
    store_in,
    store_of,
)
from tpu_compile.errors import DeviceError

Storage = torch.UntypedStorage

METHODS: dict[str, Callable[..., Any]] = {}
"""By name of the method of `torch.UntypedStorage`: the device's."""


def method(function: Callable[..., Any]) -> Callable[..., Any]:
    """Register the decorated function as the device's method of its name."""
    METHODS[function.__name__] = function
    return function


def make(size: int = 0, device: Any = None) -> Storage:
    """Return a new storage of `size` bytes, as `torch.UntypedStorage(size, device="tpu")`."""
    check_device(torch.device(device))
    return new_storage(Value(Kind.of(torch.uint8, (size,))))


@method
def cpu(self: Storage) -> Storage:
    """A copy of the bytes on the CPU; waits for the device."""
    memory = host_memory(store_in(self).value)
    if memory.is_complex():
        memory = torch.view_as_real(memory).reshape(-1)
    return memory.view(torch.uint8).clone().untyped_storage()


@method
def clone(self: Storage) -> Storage:
    """A storage with a copy of the contents."""
    return new_storage(_copied(store_in(self).value), self.nbytes())


def _copied(value: Value) -> Value:
    """Return a copy with an array of its own: compiled graphs may donate that of `value`."""
    shape = value.kind.shape
    return store_of(new_tensor(value, shape, dense_strides(shape, range(len(shape)))).clone()).value


@method
def copy_(self: Storage, source: Storage, non_blocking: bool | None = None) -> Storage:
    """`self` with the bytes of `source`, of the CPU or the device.

    Raises:
        RuntimeError: the sizes differ.
    """
    if self.nbytes() != source.nbytes():
        raise RuntimeError(
            f"size does not match, self was {self.nbytes()} bytes but src was "
            f"{source.nbytes()} bytes"
        )
    with LOCK:
        if source.device.type == "cpu":
            memory = torch.empty(0, dtype=torch.uint8, device="cpu").set_(source)
            _write(self, memory)
        else:
            store_in(self).value = _copied(store_in(source).value)
    return self


def _write(storage: Storage, memory: torch.Tensor) -> None:
    """Give a storage the bytes of a CPU tensor, as elements of the dtype that it had."""
    dtype = store_in(storage).value.kind.dtype
    if memory.numel() % dtype.itemsize == 0:
        memory = memory.view(dtype)
    store_in(storage).value = value_from_host(memory)


@method
def resize_(self: Storage, size: int) -> Storage:
    """`self` with `size` bytes, the first of which stay as they are; every view of it sees them."""
    with LOCK:
        if size != self.nbytes():
            contents = _resized(store_in(self).value, size)
            compat.swap_memory(self, new_storage(contents, size))
            store_in(self).value = contents
    return self


def _resized(old: Value, nbytes: int) -> Value:
    dtype = torch.uint8 if nbytes % old.kind.dtype.itemsize else old.kind.dtype
    elements = nbytes // dtype.itemsize
    kept = min(elements, old.kind.elements * old.kind.dtype.itemsize // dtype.itemsize)
    if not kept or old.is_unwritten:
        return Value(Kind.of(dtype, (elements,)))
    resized = compat.new_tensor(
        new_storage(Value(Kind.of(dtype, (elements,)))), dtype, (elements,), (1,)
    )
    resized[:kept].copy_(compat.new_tensor(new_storage(old), dtype, (kept,), (1,)))
    return store_of(resized).value


@method
def fill_(self: Storage, value: int) -> Storage:
    """`self` with `value` in every byte."""
    with LOCK:
        _write(self, torch.full((self.nbytes(),), value, dtype=torch.uint8, device="cpu"))
    return self


@method
def __getitem__(self: Storage, index: int | slice) -> Any:
    return cpu(self)[index]


@method
def __setitem__(self: Storage, index: int | slice, value: int) -> None:
    with LOCK:
        memory = cpu(self)
        memory[index] = value
        copy_(self, memory)


@method
def tolist(self: Storage) -> list[int]:
    """The bytes as numbers."""
    return cpu(self).tolist()


@method
def __iter__(self: Storage) -> Any:
    return iter(tolist(self))


@method
def _write_file(self: Storage, *args: Any) -> None:
    cpu(self)._write_file(*args)


@method
def _set_from_file(self: Storage, *args: Any) -> Storage:
    memory = Storage(self.nbytes())
    memory._set_from_file(*args)
    return copy_(self, memory)


@method
def share_memory_(self: Storage, *args: Any, **kwargs: Any) -> Storage:
    """Refused.

    Raises:
        DeviceError: always.
    """
    raise DeviceError(
        "Memory of the device tpu cannot be shared between processes",
        ways_out=("share a CPU copy: tensor.cpu().share_memory_()",),
    )


@method
def is_shared(self: Storage) -> bool:
    """Whether other processes see the memory: they never do."""
    return False


@method
def _share_fd_cpu_(self: Storage, *args: Any, **kwargs: Any) -> Any:
    share_memory_(self)


@method
def _share_filename_cpu_(self: Storage, *args: Any, **kwargs: Any) -> Any:
    share_memory_(self)


def retype(
    storage: Storage, dtype: torch.dtype, size: Sequence[int], stride: Sequence[int], offset: int
) -> None:
    """Keep the contents as the elements of a tensor in `storage`, if they came as bytes.

    Those of a file do. Otherwise each op on the tensor would have to convert them.
    """
    with LOCK:
        value = store_in(storage).value
        gapless, _, shape = memory_layout(tuple(size), tuple(stride))
        kind = Kind.of(dtype, shape)
        came_as_bytes = value.kind.dtype is torch.uint8 and len(value.kind.shape) == 1
        is_whole = kind.nbytes == value.kind.nbytes and not offset and gapless == tuple(stride)
        if not (came_as_bytes and is_whole) or kind is value.kind or value.trace is not None:
            return
        if value.is_unwritten:
            store_in(storage).value = Value(kind)
        elif value.array is not None:
            store_in(storage).value = value_from_host(host_memory(value).view(dtype).view(shape))
