"""Tensors without data: where a model is made and called ahead of time.

The only module of this package that touches torch's private fake tensors.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    unset_fake_temporarily,
)

__all__ = ["NEEDS_DATA", "fake_tensors", "unset_fake_temporarily"]

NEEDS_DATA = (DataDependentOutputException, DynamicOutputShapeException)
"""What an op raises whose result, or its size, only the data can tell; `.func` is the op."""


@contextlib.contextmanager
def fake_tensors() -> Iterator[FakeTensorMode]:
    """Make every tensor of the block a fake one; `mode.from_tensor` makes one of a real one."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    swap_tensors = torch.utils.swap_tensors

    def swap(first: torch.Tensor, second: torch.Tensor) -> None:
        # `Module.to(dtype)` swaps fake parameters, which is refused where something refers to them
        # weakly: the mode does, to find again what it converted.
        _forget(mode, first, second)
        swap_tensors(first, second)  # type: ignore[no-untyped-call]

    torch.utils.swap_tensors = swap
    try:
        with mode:
            yield mode
    finally:
        torch.utils.swap_tensors = swap_tensors


def _forget(mode: FakeTensorMode, *tensors: torch.Tensor) -> None:
    """Drop the mode's weak references to `tensors`, which it made itself."""
    memo: Any = mode.fake_tensor_converter.meta_converter.tensor_memo
    for key, value in list(memo.items()):
        target = value() if isinstance(value, weakref.ref) else value
        if any(target is tensor for tensor in tensors):
            del memo[key]
