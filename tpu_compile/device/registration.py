"""Makes `tpu` a device of torch, once a process."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import torch
from torch._ops import OpOverload
from torch.autograd.graph import increment_version
from torch.optim.optimizer import register_optimizer_step_post_hook

from tpu_compile.device import (
    attention,
    autocast,
    compat,
    composed,
    dispatch,
    exports,
    module,
    storages,
)
from tpu_compile.device.kernels import HOST_KERNELS
from tpu_compile.device.schemas import is_computed
from tpu_compile.device.trace import flush
from tpu_compile.errors import DeviceError

_lock = threading.Lock()
# Kernels are registered as long as their libraries live.
_libraries: list[torch.library.Library] = []


def enable() -> None:
    """Make `tpu` a device of torch; calling it again does nothing.

    Raises:
        DeviceError: this torch lacks what it takes, or another plugin has taken the place.
    """
    with _lock:
        if _libraries:
            return
        compat.require_hooks()
        compat.register_device(module)
        _register_kernels()
        compat.patch()
        compat.patch_storages(storages.make, storages.METHODS)
        compat.patch_methods(torch.Tensor, exports.METHODS)
        compat.patch_accelerator(module.ACCELERATOR)
        register_optimizer_step_post_hook(_after_optimizer_step)
        # accelerate, which transformers trains with, knows devices by a list; this it asks first.
        os.environ.setdefault("ACCELERATE_TORCH_DEVICE", compat.NAME)


def _after_optimizer_step(*args: Any) -> None:
    """Run what is recorded: a step ends in the same place each time, so it is the same program."""
    flush()


def _register_kernels() -> None:
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(dispatch.run, compat.KEY)
    for key, what in compat.LACKING_KEYS.items():
        everything.fallback(functools.partial(_refuse, what), key)
    aten = torch.library.Library("aten", "IMPL")
    lists = dict(_writing_to_lists())
    for overload in {*composed.KERNELS, *lists, *_computed()}:
        kernel = composed.KERNELS.get(overload) or functools.partial(dispatch.run, overload)
        if overload in lists:
            kernel = _counted(kernel, lists[overload])
        aten.impl(_name(overload), kernel, compat.KEY)
    # Above autograd, which differentiates what it is made of.
    aten.impl(
        "scaled_dot_product_attention", attention.scaled_dot_product_attention, compat.AUTOGRAD_KEY
    )
    for overload, kernel in HOST_KERNELS.items():
        aten.impl(_name(overload), kernel, "CPU")
    everything.fallback(torch.library.fallthrough_kernel, compat.AUTOCAST_KEY)
    for overload, kernel in autocast.kernels():
        aten.impl(_name(overload), kernel, compat.AUTOCAST_KEY)
    _libraries.extend([everything, aten])


def _refuse(what: str, op: OpOverload, *args: Any, **kwargs: Any) -> NoReturn:
    raise DeviceError(
        f"{op} got {what} tensors, which the device tpu has not",
        ways_out=("tensors of the CPU for this part", "to_dense(), where that is possible"),
    )


def _computed() -> Iterator[OpOverload]:
    """Yield what torch would make of other ops, and what is better one program."""
    for overload, is_structured in compat.composite_overloads():
        if overload not in composed.KERNELS and (is_structured or is_computed(overload)):
            yield overload


def _writing_to_lists() -> Iterator[tuple[OpOverload, list[int]]]:
    """Yield the overloads that write to lists of tensors, with the positions of those."""
    for overload in compat.aten_overloads(("_foreach_", "_fused_", "_amp_foreach_")):
        positions = [
            index
            for index, argument in enumerate(overload._schema.arguments)
            if argument.alias_info and argument.alias_info.is_write and not argument.is_out
        ]
        if positions:
            yield overload, positions


def _counted(kernel: Callable[..., Any], positions: Sequence[int]) -> Callable[..., Any]:
    """Return a kernel that raises the versions of tensors in lists, as torch does of all others."""

    def run(*args: Any, **kwargs: Any) -> Any:
        result = kernel(*args, **kwargs)
        for item in [args[position] for position in positions if position < len(args)]:
            tensors = item if isinstance(item, (list, tuple)) else ()
            increment_version([tensor for tensor in tensors if not tensor.is_inference()])
        return result

    return run


def _name(overload: Any) -> str:
    name = overload._schema.name
    return f"{name}.{overload._overloadname}" if overload._overloadname != "default" else name
