"""Positions that differ because several elements are equal: eager does not say which it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten

# Where an op takes its dim among the arguments, and what it is if not given (None: all elements).
_DIMS: dict[Any, tuple[int, int | None]] = {
    aten.sort.default: (1, -1),
    aten.topk.default: (2, -1),
    aten.kthvalue.default: (2, -1),
    aten.median.dim: (1, -1),
    aten.nanmedian.dim: (1, -1),
    aten.mode.default: (1, -1),
    aten.max.dim: (1, -1),
    aten.min.dim: (1, -1),
    aten.argmax.default: (1, None),
    aten.argmin.default: (1, None),
}


def are_ties(
    node: fx.Node,
    values: Mapping[fx.Node, Any],
    ours: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
) -> bool:
    """Whether the results differ only in positions, and those name equal elements."""
    if node.target not in _DIMS:
        return False
    for mine, eager in zip(ours, expected, strict=True):
        if torch.equal(mine, eager) or (mine.isnan() & eager.isnan() | (mine == eager)).all():
            continue
        if mine.dtype is not torch.int64 or mine.shape != eager.shape:
            return False
        if not torch.equal(_named(node, values, mine), _named(node, values, eager)):
            return False
    return True


def _named(node: fx.Node, values: Mapping[fx.Node, Any], positions: torch.Tensor) -> torch.Tensor:
    """Return the elements at `positions`, numbers out of range as -1; NaN as one number."""
    operand: torch.Tensor = values[node.args[0]]  # type: ignore[index]
    index, default = _DIMS[node.target]
    dim: Any = node.args[index] if len(node.args) > index else node.kwargs.get("dim", default)
    if dim is None or operand.ndim == 0:
        operand, dim = operand.reshape(-1), 0
        positions = positions.reshape(-1)
    elif positions.ndim < operand.ndim:
        positions = positions.unsqueeze(dim)
    inside = positions.clamp(0, max(operand.shape[dim] - 1, 0))
    found = operand.take_along_dim(inside, dim)
    found = torch.stack([found.isnan().double(), found.nan_to_num().double()])
    return torch.where(inside == positions, found, torch.full_like(found, -1))
