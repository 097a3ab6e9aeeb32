"""Judges an eager call on the device "tpu" by what the same call gives on the CPU.

The tensors of a sample are moved with the strides, offsets and aliases that they have; every other
sample sees each of its tensors as a view into a larger one. Results must lie on the device. What
ran on the CPU for want of a program, and is counted by the device as a fallback, is told apart.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

import tpu_compile
from tests.conformance.cases import Case, Sample
from tests.conformance.judging import (
    Observed,
    Outcome,
    call_of,
    difference,
    first_line,
    is_random,
    observe,
)

# Take sizes as tensors, which torch wants on the CPU for any device.
_TAKES_HOST_ARGUMENTS = frozenset({"tensor_split"})

# Gap before and after the elements of a tensor that is made a view, in elements.
_GAP = 3


def judge_on_device(case: Case, sample: Sample, *, as_views: bool = False) -> Outcome:
    """Return how the device does on `sample`; with `as_views`, on views into larger tensors."""
    # Makes the device, which processes that judge other kinds do without.
    importlib.import_module("tpu_compile.device")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if case.kind == "device-error":
            return _judge_error(case, sample)
        try:
            expected = observe(sample, sample.function)
        except Exception as error:
            return Outcome("outside", f"eager itself: {first_line(error)}")
        before = _fallbacks()
        fault = _fault_of(case, sample, expected, as_views)
        fallbacks = tuple([op for op, n in _fallbacks().items() if n > before.get(op, 0)])
        if fault is not None:
            return Outcome("failed", fault, fallbacks=fallbacks)
        return Outcome("passed", fallbacks=fallbacks)


def _fallbacks() -> dict[str, int]:
    return dict(tpu_compile.stats().fallback_ops)


def _fault_of(case: Case, sample: Sample, expected: Observed, as_views: bool) -> str | None:
    try:
        actual = observe(sample, sample.function, copy=lambda one: on_device(case, one, as_views))
    except Exception as error:
        return first_line(error)
    fault = _place_fault(sample, actual, expected) or difference(
        case, sample, _on_host(actual), expected
    )
    if fault is None or not is_random(sample, expected):
        return fault
    return difference(case, sample, _on_host(actual), expected, values=False)


def _place_fault(sample: Sample, actual: Observed, expected: Observed) -> str | None:
    """Return which result is not on the device, though something that the call got is."""
    if not actual.arguments and "device" not in sample.kwargs:
        return None
    groups = (("output", actual.outputs), ("gradient", actual.gradients))
    for what, items in groups:
        for index, item in enumerate(items):
            if isinstance(item, torch.Tensor) and item.device.type != "tpu":
                return f"{what} {index} is on {item.device}"
    return None


def _on_host(observed: Observed) -> Observed:
    def move(item: Any) -> Any:
        return item.cpu() if isinstance(item, torch.Tensor) else item

    return Observed(*[[move(item) for item in group] for group in observed])


def on_device(case: Case, sample: Sample, as_views: bool = False) -> Sample:
    """Return the sample on the device: tensors moved, and the places that arguments name."""
    moved: dict[int, torch.Tensor] = {}

    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.device) or (isinstance(leaf, str) and leaf == "cpu"):
            return torch.device("tpu")
        if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided:
            return leaf
        if id(leaf) not in moved:
            moved[id(leaf)] = _moved(leaf, as_views)
        return moved[id(leaf)]

    if case.name in _TAKES_HOST_ARGUMENTS:
        return Sample(sample.function, (move(sample.args[0]), *sample.args[1:]), sample.kwargs)
    args, kwargs = pytree.tree_map(move, (sample.args, sample.kwargs))
    return Sample(sample.function, args, kwargs)


def _moved(tensor: torch.Tensor, as_views: bool) -> torch.Tensor:
    """Return a copy on the device with the strides of `tensor`, those with gaps too."""
    data = tensor.detach()
    if data.is_conj():
        return _moved(data.conj(), as_views).conj().requires_grad_(tensor.requires_grad)
    if data.is_neg():
        moved = torch._neg_view(_moved(torch._neg_view(data), as_views))
        return moved.requires_grad_(tensor.requires_grad)
    size, stride = data.shape, data.stride()
    if as_views and data.numel():
        reach = 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        memory = torch.zeros(reach + 2 * _GAP, dtype=data.dtype)
        memory.as_strided(size, stride, _GAP).copy_(data)
        moved = memory.to("tpu").as_strided(size, stride, _GAP)
    elif data.is_contiguous() and not data.storage_offset():
        moved = data.to("tpu")
    else:
        count = data.untyped_storage().nbytes() // data.itemsize
        memory = data.as_strided((count,), (1,), 0).to("tpu")
        moved = memory.as_strided(size, stride, data.storage_offset())
    return moved.requires_grad_(tensor.requires_grad)


def _judge_error(case: Case, sample: Sample) -> Outcome:
    """The device must refuse what the CPU refuses, with an exception of the same type."""
    host = _raised(lambda: call_of(sample.copy(), sample.function))
    if host is None:
        return Outcome("outside", "the CPU does not refuse it")
    ours = _raised(lambda: _read(call_of(on_device(case, sample), sample.function)))
    if ours is None:
        return Outcome("failed", f"no error was raised; the CPU raises {first_line(host)}")
    if not isinstance(ours, type(host)):
        return Outcome("failed", f"{first_line(ours)}; the CPU raises {first_line(host)}")
    return Outcome("passed")


def _read(outputs: Any) -> None:
    """Wait for everything that a call gives."""
    pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.cpu(), outputs)


def _raised(call: Callable[[], Any]) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None
