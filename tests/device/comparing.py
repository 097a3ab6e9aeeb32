"""Helpers of the device's tests: the same on the CPU and on the device must be the same."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.utils import _pytree as pytree

import tpu_compile.device


def moved(item: Any) -> Any:
    """Return a copy of `item` on the device: tensors, modules, and containers of them.

    Leaves that require gradients stay leaves that do.
    """

    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.nn.Module):
            return copy.deepcopy(leaf).to("tpu")
        if isinstance(leaf, torch.Tensor):
            return leaf.detach().to("tpu").requires_grad_(leaf.requires_grad)
        return leaf

    return pytree.tree_map(move, item)


def assert_same(device: Any, host: Any, **tolerances: float) -> None:
    """Check that what the device gave is on it, and equals what the CPU gave."""
    ours, theirs = pytree.tree_leaves(device), pytree.tree_leaves(host)
    assert len(ours) == len(theirs)
    for mine, expected in zip(ours, theirs, strict=True):
        if isinstance(expected, torch.Tensor):
            assert mine.device == torch.device("tpu", 0)
            torch.testing.assert_close(mine.cpu(), expected, **tolerances)
        else:
            assert mine == expected


def fallbacks() -> dict[str, int]:
    """Return the ops that ran on the CPU since the test began."""
    return dict(tpu_compile.stats().fallback_ops)
