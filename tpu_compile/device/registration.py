"""Makes `tpu` a device of torch, once a process."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch._ops import OpOverload
from torch.optim.optimizer import register_optimizer_step_post_hook

from tpu_compile.device import attention, compat, dispatch, module
from tpu_compile.device.kernels import KERNELS
from tpu_compile.device.schemas import is_computed
from tpu_compile.device.trace import flush

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
        compat.register_device(module, compat.Hooks(), compat.Guard())
        _register_kernels()
        compat.patch()
        register_optimizer_step_post_hook(_after_optimizer_step)


def _after_optimizer_step(*args: Any) -> None:
    """Run what is recorded: a step ends in the same place each time, so it is the same program."""
    flush()


def _register_kernels() -> None:
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(dispatch.run, compat.KEY)
    aten = torch.library.Library("aten", "IMPL")
    for overload, kernel in KERNELS.items():
        aten.impl(_name(overload), kernel, compat.KEY)
    for overload in _computed():
        aten.impl(_name(overload), functools.partial(dispatch.run, overload), compat.KEY)
    # Above autograd, which differentiates what it is made of.
    aten.impl(
        "scaled_dot_product_attention", attention.scaled_dot_product_attention, compat.AUTOGRAD_KEY
    )
    _libraries.extend([everything, aten])


def _computed() -> Iterator[OpOverload]:
    """Yield what torch would make of other ops, and what is better one program."""
    for overload, is_structured in compat.composite_overloads():
        if overload not in KERNELS and (is_structured or is_computed(overload)):
            yield overload


def _name(overload: Any) -> str:
    name = overload._schema.name
    return f"{name}.{overload._overloadname}" if overload._overloadname != "default" else name
