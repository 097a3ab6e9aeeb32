"""Kernels that are not programs: creation of memory, copies between devices, reads, sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from lowering.signature import dense_strides
from tpu_compile.device import compat, dispatch, fallback
from tpu_compile.device.storages import retype
from tpu_compile.device.trace import LOCK
from tpu_compile.device.transfer import host_view, require_strided, value_from_host
from tpu_compile.device.values import (
    Kind,
    Value,
    check_device,
    is_on_device,
    memory_layout,
    new_storage,
    store_of,
    view_of,
    whole_order,
)
from tpu_compile.errors import DeviceError

aten = torch.ops.aten

KERNELS: dict[OpOverload, Callable[..., Any]] = {}

HOST_KERNELS: dict[OpOverload, Callable[..., Any]] = {}
"""Kernels of CPU tensors that torch would ask the device for."""

# Change sizes, strides or the storage of a tensor and read no element.
METADATA = (
    aten.as_strided.default,
    aten.as_strided_.default,
    aten.view.default,
    aten._reshape_alias.default,
    aten.unfold.default,
    aten.view.dtype,
    aten.view_as_real.default,
    aten.view_as_complex.default,
    aten.set_.source_Tensor,
)


def kernel(overload: OpOverload) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as the kernel of `overload`."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        KERNELS[overload] = function
        return function

    return register


# --- memory --------------------------------------------------------------------------------------


def _check_layout(layout: torch.layout | None, pin_memory: bool | None) -> None:
    if layout is not None:
        require_strided(layout)
    if pin_memory:
        raise DeviceError("Only CPU tensors can be pinned, not those of the device tpu")


@kernel(aten.empty.memory_format)
def empty(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """A new tensor; what is in it reads as zeros."""
    _check_layout(layout, pin_memory)
    stride = _strides(size, memory_format)
    return empty_strided(size, stride, dtype=dtype, device=device)


def _strides(size: Sequence[int], memory_format: torch.memory_format | None) -> tuple[int, ...]:
    if memory_format in (None, torch.contiguous_format, torch.preserve_format):
        return torch.empty(tuple(size), device="meta").stride()
    return torch.empty(tuple(size), device="meta", memory_format=memory_format).stride()


@kernel(aten.empty_strided.default)
def empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    """A new tensor of these strides; what is in it reads as zeros."""
    check_device(device)
    _check_layout(layout, pin_memory)
    dtype = torch.get_default_dtype() if dtype is None else dtype
    size, stride = tuple(size), tuple(stride)
    gapless, _, shape = memory_layout(size, stride)
    if gapless != stride and 0 not in size:
        reach = 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        shape = (reach,)
    return compat.new_tensor(new_storage(Value(Kind.of(dtype, shape))), dtype, size, stride)


@kernel(aten._efficientzerotensor.default)
def zeros(size: Sequence[int], **kwargs: Any) -> torch.Tensor:
    """Zeros, as forward-mode autograd makes them."""
    return empty(size, **kwargs)


@kernel(aten.resize_.default)
def resize_(
    self: torch.Tensor, size: Sequence[int], *, memory_format: torch.memory_format | None = None
) -> torch.Tensor:
    """`self` in another size; its storage grows where it must, and keeps what it held."""
    size = tuple(size)
    stride = _strides(size, memory_format)
    offset = int(self.storage_offset())
    needed = offset + (
        math.prod(size) and 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    )
    storage = self.untyped_storage()
    if needed * self.itemsize > storage.nbytes():
        storage.resize_(needed * self.itemsize)
    return _set(self, storage, offset, size, stride)


_set = compat.as_metadata(aten.set_.source_Storage_storage_offset)


@kernel(aten.set_.source_Storage_storage_offset)
def set_storage(
    self: torch.Tensor,
    source: torch.UntypedStorage,
    storage_offset: int,
    size: Sequence[int],
    stride: Sequence[int] = (),
) -> torch.Tensor:
    """`self` as a view of another storage."""
    if source.device.type != compat.NAME:
        raise DeviceError(
            f"A tensor on tpu:0 cannot lie in a storage on {source.device}",
            ways_out=('tensor.to("tpu") of a tensor in that storage',),
        )
    stride = tuple(stride) or dense_strides(tuple(size), range(len(size)))
    retype(source, self.dtype, size, stride, storage_offset)
    return _set(self, source, storage_offset, tuple(size), stride)


@kernel(aten.set_.source_Storage)
def set_whole_storage(self: torch.Tensor, source: torch.UntypedStorage) -> torch.Tensor:
    """`self` as all of another storage, in one dim."""
    return set_storage(self, source, 0, (source.nbytes() // self.itemsize,), (1,))


@kernel(aten.set_.default)
def set_nothing(self: torch.Tensor) -> torch.Tensor:
    """`self` without elements, in a new storage."""
    return _set(self, new_storage(Value(Kind.of(self.dtype, (0,)))), 0, (0,), (1,))


# --- copies --------------------------------------------------------------------------------------


@kernel(aten.copy_.default)
def copy_(self: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """`self` with the elements of `src`, between devices or on one."""
    if not is_on_device(self):
        self.copy_(host_view(src))
        return self
    if is_on_device(src):
        if src.dtype.is_complex and not self.dtype.is_complex:
            src = torch.view_as_real(src).select(-1, 0)
        return dispatch.run(aten.copy_.default, self, src)
    if src.device.type != "cpu":
        raise DeviceError(
            f"A tensor cannot be copied from {src.device} to tpu:0",
            ways_out=("copy it to the CPU first",),
        )
    with LOCK:
        store = store_of(self)
        view = view_of(self, store.value.kind)
        order = tuple(range(self.dim())) if view is None else whole_order(view, store.value.kind)
        if order is not None:
            dense = src.detach().to(self.dtype).expand(self.shape).permute(order)
            if self.is_conj():
                dense = dense.conj()
            if self.is_neg():
                dense = dense.neg()
            store.value = value_from_host(dense)
            return self
    return dispatch.run(aten.copy_.default, self, fallback.from_host(src.expand(self.shape)))


@kernel(aten._to_copy.default)
def to_copy(
    self: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """A copy in another dtype or on another device; one to the host waits, `non_blocking` or not.

    Torch's own would pin the memory of a copy that does not wait.
    """
    if is_on_device(self) and (device is None or device.type == compat.NAME):
        check_device(device)
        _check_layout(layout, pin_memory)
        return dispatch.run(aten._to_copy.default, self, dtype=dtype, memory_format=memory_format)
    copy = aten.empty_like.default(
        self, dtype=dtype, layout=layout, device=device, memory_format=memory_format
    )
    return copy if copy.is_meta else copy.copy_(self)


@kernel(aten._copy_from.default)
def copy_from(self: torch.Tensor, dst: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """`dst` with the elements of `self`."""
    return copy_(dst, self, non_blocking)


@kernel(aten._copy_from_and_resize.default)
def copy_from_and_resize(self: torch.Tensor, dst: torch.Tensor) -> torch.Tensor:
    """`dst` with the sizes and elements of `self`."""
    return copy_(dst.resize_(self.shape), self)


# --- reads ---------------------------------------------------------------------------------------


@kernel(aten._local_scalar_dense.default)
def local_scalar_dense(self: torch.Tensor) -> Any:
    """The number in a tensor of one element; waits for it."""
    return host_view(self).item()


@kernel(aten.equal.default)
def equal(self: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether sizes and all elements are equal; waits for them."""
    if self.shape != other.shape:
        return False
    return bool(torch.eq(self, other).all())


# --- what schemas do not say ----------------------------------------------------------------------


@kernel(aten.native_batch_norm.default)
def native_batch_norm(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    **outs: torch.Tensor,
) -> Any:
    """Normalized `input`, mean and 1/deviation; in training the running statistics change too."""
    affine = (input, weight, bias)
    numbers = (training, momentum, eps)
    if not training:
        op = aten.native_batch_norm.out if outs else aten.native_batch_norm.default
        return dispatch.run(op, *affine, running_mean, running_var, *numbers, **outs)
    if running_mean is None or running_var is None:
        legit: Any = aten._native_batch_norm_legit.no_stats
        results = dispatch.run(legit, *affine, *numbers)
    else:
        legit = aten._native_batch_norm_legit.default
        results = dispatch.run(legit, *affine, running_mean, running_var, *numbers)
    if not outs:
        return results
    return [_fill(out, value) for out, value in zip(outs.values(), results, strict=True)]


KERNELS[aten.native_batch_norm.out] = native_batch_norm


def _fill(out: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return `out` with the size and elements of `value`."""
    if out.shape != value.shape:
        out.resize_(value.shape)
    return out.copy_(value)


# --- what hosts and other devices are asked -------------------------------------------------------


def pin_memory(self: torch.Tensor, device: torch.device | None = None) -> torch.Tensor:
    """A copy in ordinary memory: PJRT pins what it transfers, and no other."""
    return self.clone()


@kernel(aten.record_stream.default)
def record_stream(self: torch.Tensor, stream: torch.Stream) -> None:
    """Nothing: memory is freed after the work that uses it, and there is one queue."""


def to_sparse(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Refused.

    Raises:
        DeviceError: always.
    """
    raise DeviceError(
        "The device tpu has no sparse tensors", ways_out=("tensor.cpu() before the conversion",)
    )


for _name in ("_to_sparse", "_to_sparse_csr", "_to_sparse_csc", "_to_sparse_bsr", "_to_sparse_bsc"):
    for _overload in getattr(aten, _name).overloads():
        if not _overload.endswith("out"):
            KERNELS[getattr(getattr(aten, _name), _overload)] = to_sparse


HOST_KERNELS[aten._pin_memory.default] = pin_memory


for _op in METADATA:
    KERNELS[_op] = compat.as_metadata(_op)
