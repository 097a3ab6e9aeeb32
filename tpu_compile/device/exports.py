"""How device tensors leave for other libraries: through a CPU copy, which the caller asks for.

`numpy()` and `numpy.asarray` refuse, in torch itself, as they do for CUDA's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.dlpack import DLDeviceType

METHODS: dict[str, Callable[..., Any]] = {}
"""By name of the method of `torch.Tensor`: the device's."""

_CPU = (DLDeviceType.kDLCPU, 0)


def _method(function: Callable[..., Any]) -> Callable[..., Any]:
    METHODS[function.__name__] = function
    return function


@_method
def __dlpack_device__(self: torch.Tensor) -> tuple[Any, int]:
    """A device that only its own library knows."""
    return DLDeviceType.kDLExtDev, 0


@_method
def __dlpack__(
    self: torch.Tensor,
    *,
    stream: Any = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[Any, int] | None = None,
    copy: bool | None = None,
) -> Any:
    """A capsule of a CPU copy, where the caller asks for the CPU.

    Raises:
        BufferError: it asks for the device's own memory, which has no address, or for no copy.
    """
    if dl_device is None or tuple(dl_device) != _CPU:
        raise BufferError(
            f"can't export a {self.device} device tensor through DLPack. Use Tensor.cpu() to copy "
            'the tensor to host memory first, or numpy.from_dlpack(tensor, device="cpu").'
        )
    if copy is False:
        raise BufferError(f"a {self.device} device tensor is not in host memory: it must be copied")
    return self.detach().cpu().__dlpack__(max_version=max_version)
