"""What device tensors hold: a storage of torch's, its contents as a value, and views of them.

A device tensor is a plain `torch.Tensor`: size, strides and storage are torch's own. On the
storage's Python object hangs a `Store`, and the store has a `Value`: an array on the device, or the
promise of one. Values never change; a write gives the store another.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch

from lowering.dtypes import is_supported
from lowering.signature import dense_order, dense_strides
from tpu_compile.device import compat
from tpu_compile.errors import DeviceError

# Storages are told apart by address, as memory would be; nothing is ever read from one.
_addresses = itertools.count(1 << 40, 1 << 30)

# Arrays are told to NumPy on their way to the device, which has no more.
_MOST_DIMS = 64


class Kind:
    """Dtype and shape of values: one object for each, so that it is compared by identity."""

    __slots__ = ("dtype", "elements", "nbytes", "shape")

    _all: ClassVar[dict[tuple[torch.dtype, tuple[int, ...]], Kind]] = {}

    def __init__(self, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        self.dtype = dtype
        self.shape = shape
        self.elements = math.prod(shape)
        self.nbytes = self.elements * dtype.itemsize

    @classmethod
    def of(cls, dtype: torch.dtype, shape: Sequence[int]) -> Kind:
        """Return the kind of values with this dtype and shape.

        Raises:
            DeviceError: no program can hold the dtype, or so many dims.
        """
        key = dtype, tuple(shape)
        found = cls._all.get(key)
        if found is not None:
            return found
        if not is_supported(dtype):
            raise DeviceError(f"The device tpu has no tensors of {dtype}", ways_out=("the CPU",))
        if len(shape) > _MOST_DIMS:
            raise DeviceError(f"only tensors with up to {_MOST_DIMS} dims are supported")
        return cls._all.setdefault(key, cls(*key))

    def __repr__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"


class Value:
    """Immutable contents: elements of a dtype in an array of a shape, row-major.

    `array` is None as long as a trace only promises it (then `slot` is its number there), and for
    memory that nothing was written to yet.
    """

    __slots__ = ("__weakref__", "array", "error", "kind", "slot", "trace")

    def __init__(self, kind: Kind, array: Any = None, trace: Any = None, slot: int = -1) -> None:
        self.kind = kind
        self.array = array
        self.trace = trace
        self.slot = slot
        self.error: Exception | None = None

    @property
    def is_unwritten(self) -> bool:
        """Whether nothing was written to this memory yet: it reads as zeros."""
        return self.array is None and self.trace is None and self.error is None


class Store:
    """The contents of one storage."""

    __slots__ = ("__weakref__", "value")

    def __init__(self, value: Value) -> None:
        self.value = value


class View(NamedTuple):
    """How a tensor lies in a value that it is not the whole of: offset and strides in elements.

    Torch conjugates and negates lazily too: `is_conj` and `is_neg` say that the tensor is the
    conjugate, or the negative, of what lies there.
    """

    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    is_conj: bool = False
    is_neg: bool = False


def store_of(tensor: torch.Tensor) -> Store:
    """Return the contents of the storage of a device tensor."""
    return store_in(tensor.untyped_storage())


def store_in(storage: torch.UntypedStorage) -> Store:
    """Return the contents of a storage of the device.

    Raises:
        DeviceError: other code made the storage, which has none.
    """
    try:
        return storage.store  # type: ignore[attr-defined]
    except AttributeError as error:
        raise DeviceError(
            f"A storage on {storage.device} has no contents",
            why="it was not made by tpu_compile",
            ways_out=('tensor.to("tpu") of a CPU tensor',),
        ) from error


def view_of(tensor: torch.Tensor, kind: Kind) -> View | None:
    """Return how `tensor` lies in a value of `kind`; None if it is the whole of it, as it is."""
    if (
        tensor.shape == kind.shape
        and tensor.dtype is kind.dtype
        and tensor.is_contiguous()
        and not tensor.storage_offset()
        and not is_lazy(tensor)
    ):
        return None
    return View(
        tensor.dtype,
        tuple(tensor.shape),
        tuple(tensor.stride()),
        int(tensor.storage_offset()),
        tensor.is_conj(),
        tensor.is_neg(),
    )


def is_lazy(tensor: torch.Tensor) -> bool:
    """Whether a tensor is not what lies in its memory, but the conjugate or the negative of it."""
    return tensor.is_neg() or (tensor.dtype.is_complex and tensor.is_conj())


def whole_order(view: View, kind: Kind) -> tuple[int, ...] | None:
    """Return the memory order of the dims of a view of all of a value; None for a part of it."""
    if view.dtype is not kind.dtype or math.prod(view.size) != kind.elements or view.offset:
        return None
    return dense_order(view.size, view.stride)


def memory_layout(
    size: tuple[int, ...], stride: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return (stride, order, shape in memory) for a new tensor: contiguous if `stride` has gaps."""
    order = dense_order(size, stride)
    if order is None:
        order = tuple(range(len(size)))
    return dense_strides(size, order), order, tuple([size[dim] for dim in order])


def new_storage(value: Value, nbytes: int | None = None) -> torch.UntypedStorage:
    """Return a storage that holds `value`."""
    if nbytes is None:
        nbytes = value.kind.nbytes
    storage = compat.new_storage(next(_addresses), current_device(), nbytes)
    storage.store = Store(value)  # type: ignore[attr-defined]
    return storage


def new_tensor(
    value: Value, size: Sequence[int], stride: Sequence[int], offset: int = 0
) -> torch.Tensor:
    """Return a new device tensor that lies in a storage of its own, which holds `value`."""
    return compat.new_tensor(new_storage(value), value.kind.dtype, size, stride, offset)


@functools.cache
def current_device() -> torch.device:
    """Return the device; its name means something only once it is registered."""
    return torch.device(compat.NAME, 0)


def check_device(device: torch.device | None) -> None:
    """Check that a device of ours is there.

    Raises:
        DeviceError: its index is of another than the one that this process has.
    """
    if device is not None and device.index not in (None, 0):
        raise DeviceError(
            f"There is no device {str(device)!r}",
            why="this process has one device, tpu:0",
            ways_out=('torch.device("tpu")',),
        )


def is_on_device(tensor: torch.Tensor) -> bool:
    """Whether `tensor` lies on the device."""
    return tensor.device.type == compat.NAME
