"""Ops without a program: they run on the CPU, are counted, and said once."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from tpu_compile.device import compat
from tpu_compile.device.transfer import host_view, require_strided, value_from_host
from tpu_compile.device.values import is_on_device, memory_layout, new_storage
from tpu_compile.errors import FallbackWarning, UnsupportedOpError
from tpu_compile.statistics import RECORDER

_warned: set[str] = set()
_is_error = False


def set_fallback(kind: str) -> None:
    """Choose what becomes of an op without a program.

    `"eager"` runs it on the CPU, `"error"` raises `UnsupportedOpError`.

    Raises:
        ValueError: `kind` is neither.
    """
    global _is_error
    if kind not in ("eager", "error"):
        raise ValueError(f'fallback is "eager" or "error", not {kind!r}')
    _is_error = kind == "error"


def run(
    op: OpOverload, args: Any, kwargs: dict[str, Any], why: str, *, counted: bool = True
) -> Any:
    """Run `op` on the CPU and bring its results to the device.

    `counted` is False for ops that read data to tell a size or a number: those wait anyway.

    Raises:
        UnsupportedOpError: fallbacks are errors.
        RuntimeError, ...: what the CPU raises for wrong arguments.
    """
    moved: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def to_host(item: Any) -> Any:
        if isinstance(item, torch.device):
            return torch.device("cpu")
        if not isinstance(item, torch.Tensor) or not is_on_device(item):
            return item
        if id(item) not in moved:
            view = host_view(item)
            copy = view.clone()
            moved[id(item)] = item, copy
        return moved[id(item)][1]

    host_args, host_kwargs = pytree.tree_map(to_host, (list(args), dict(kwargs)))
    # First of all, so that the CPU refuses wrong arguments in its own words.
    result = op(*host_args, **host_kwargs)
    originals = {id(copy): item for item, copy in moved.values()}

    def to_device(item: Any) -> Any:
        if not isinstance(item, torch.Tensor):
            return item
        return originals[id(item)] if id(item) in originals else from_host(item)

    results = pytree.tree_map(to_device, result)
    if counted:
        _report(op, why)
    for item, copy in _written(op, args, kwargs, moved):
        if copy.shape != item.shape:
            resize(item, tuple(copy.shape))
        item.copy_(copy)
    return results


def _report(op: OpOverload, why: str) -> None:
    if _is_error:
        raise UnsupportedOpError(
            f"{op} cannot run on the device",
            why=why,
            ways_out=(
                'tpu_compile.device.set_fallback("eager") to run it on the CPU',
                "tpu_compile.register_lowering to lower it yourself",
            ),
        )
    RECORDER.count_fallback(str(op))
    if str(op) not in _warned:
        _warned.add(str(op))
        warnings.warn(
            f"{op} runs on the CPU: {why}. Ways out: tpu_compile.register_lowering to lower it "
            f'yourself, or tpu_compile.device.set_fallback("error") to make this an error.',
            FallbackWarning,
            stacklevel=2,
        )


def _written(
    op: OpOverload, args: Any, kwargs: dict[str, Any], moved: dict[int, Any]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    pairs = []
    for position, argument in enumerate(op._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        for item in pytree.tree_leaves(value):
            if id(item) in moved:
                pairs.append(moved[id(item)])
    return pairs


def from_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a CPU tensor as a new device tensor with the same strides where they have no gaps.

    Raises:
        DeviceError: the device has no tensors of its layout or dtype.
    """
    require_strided(tensor.layout)
    size = tuple(tensor.shape)
    stride, order, _ = memory_layout(size, tuple(tensor.stride()))
    value = value_from_host(tensor.permute(order))
    return compat.new_tensor(new_storage(value), tensor.dtype, size, stride)


def resize(tensor: torch.Tensor, size: tuple[int, ...]) -> None:
    """Give a tensor, to which an op writes its result, another size; warn as torch does."""
    if tensor.numel():
        warnings.warn(
            f"An output with one or more elements was resized since it had shape "
            f"{list(tensor.shape)}, which does not match the required output shape {list(size)}. "
            "Resize it to zero elements first with t.resize_(0).",
            UserWarning,
            stacklevel=2,
        )
    torch.ops.aten.resize_.default(tensor, list(size))
