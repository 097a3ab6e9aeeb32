"""The only module of the device that touches private calls of torch.

A new torch release is this file's work: `require_hooks` says what a release lacks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._C import DispatchKey, DispatchKeySet
from torch._ops import OpOverload
from torch.utils import backend_registration

from tpu_compile.errors import DeviceError

NAME = "tpu"
KEY = "PrivateUse1"
"""The dispatch key of a plugin's device."""
AUTOGRAD_KEY = "AutogradPrivateUse1"
_CPU = DispatchKeySet(DispatchKey.CPU)

# What is used of torch's private side, as (owner, attribute).
_HOOKS: tuple[tuple[Any, str], ...] = (
    (torch._C, "_acc"),
    (torch._C, "_construct_storage_from_data_pointer"),
    (torch._C, "_dispatch_get_registrations_for_dispatch_key"),
    (torch._C, "_get_privateuse1_backend_name"),
    (backend_registration, "_setup_privateuseone_for_python_backend"),
    (getattr(torch._C, "_acc", None), "create_empty_tensor"),
    (OpOverload, "redispatch"),
)


def require_hooks() -> None:
    """Check that this torch has what a device written in Python needs.

    Raises:
        DeviceError: it has not, or another backend has taken the place.
    """
    missing = [f"{owner!r}.{name}" for owner, name in _HOOKS if not hasattr(owner, name)]
    if missing:
        raise DeviceError(
            f"torch {torch.__version__} lacks what the device {NAME!r} is made of",
            why=f"there is no {', '.join(missing)}",
            ways_out=(
                "a release of torch that docs/compatibility.md lists",
                'torch.compile(..., backend="tpu") on CPU tensors, which needs none of it',
            ),
        )
    taken = torch._C._get_privateuse1_backend_name()
    if taken not in ("privateuseone", NAME):
        raise DeviceError(
            f"The device {NAME!r} cannot be registered",
            why=f"torch has room for one device of a plugin, and {taken!r} is there already",
            ways_out=("a process that does not import the other plugin",),
        )


def register_device(module: Any, hooks: Any, guard: Any) -> None:
    """Make `tpu` a device of torch, with `module` as `torch.tpu`."""
    backend_registration._setup_privateuseone_for_python_backend(
        NAME, backend_module=module, hook=hooks, device_guard=guard
    )


class Hooks(torch._C._acc.PrivateUse1Hooks):
    """What torch's C++ side asks about the device as a whole."""

    def is_available(self) -> bool:
        """Whether the device can be used: always, on the CPU if nothing else."""
        return True

    def is_built(self) -> bool:
        """Whether torch was built with it."""
        return True

    def has_primary_context(self, dev_id: int) -> bool:
        """Whether the device is in use already."""
        return True


class Guard(torch._C._acc.DeviceGuard):
    """What torch's C++ side asks when it changes devices: there is one."""

    def type_(self) -> Any:
        """The kind of device that this guards."""
        return torch._C._autograd.DeviceType.PrivateUse1


# Looked up once: these are on the path of every op.
_construct = torch._C._construct_storage_from_data_pointer
_empty = torch._C._acc.create_empty_tensor
_set = torch.ops.aten.set_.source_Storage_storage_offset._handle.redispatch_boxed


def new_storage(pointer: int, device: torch.device, nbytes: int) -> torch.UntypedStorage:
    """Return a storage of the device; `pointer` is a name for it and never read from."""
    storage: Any = _construct(pointer, device, nbytes)
    return storage


def new_tensor(
    storage: torch.UntypedStorage,
    dtype: torch.dtype,
    size: Sequence[int],
    stride: Sequence[int],
    offset: int = 0,
) -> torch.Tensor:
    """Return a tensor of the device that lies in `storage`."""
    tensor = _empty((0,), dtype)
    _set(_CPU, tensor, storage, offset, size, stride)
    return tensor


def as_metadata(op: OpOverload) -> Callable[..., Any]:
    """Return a kernel that runs the CPU's: right where only sizes and strides change."""
    return functools.partial(op._handle.redispatch_boxed, _CPU)


def composite_overloads() -> list[tuple[OpOverload, bool]]:
    """Return the overloads of ATen that torch makes of others on a device without kernels.

    The flag says that torch would make them of `empty` and their `out=` variant.
    """
    found: dict[OpOverload, bool] = {}
    for key in ("CompositeExplicitAutogradNonFunctional", "CompositeExplicitAutograd"):
        for name in torch._C._dispatch_get_registrations_for_dispatch_key(key):
            namespace, _, rest = name.partition("::")
            packet, _, overload = rest.partition(".")
            if namespace == "aten":
                op = getattr(getattr(torch.ops.aten, packet), overload or "default")
                found.setdefault(op, key.endswith("NonFunctional"))
    return list(found.items())


def patch() -> None:
    """Set what torch must be told of a device without memory of its own."""
    torch.__future__.set_swap_module_params_on_conversion(True)
