"""Largest and smallest elements over dims, and where they are.

NaN counts as the extreme; among equals the first position wins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch._ops import OpOverload

from lowering import hlo
from lowering.bucketing.call import Fill
from lowering.bucketing.ordered import finds_extreme
from lowering.bucketing.rules import reduces
from lowering.context import LoweringContext
from lowering.dtypes import spec_of
from lowering.mlir import ir, stablehlo
from lowering.ops.reduction import Dims, finish
from lowering.registry import PaddingRule, lowering

aten = torch.ops.aten


def reduce_extreme(operand: ir.Value, dims: Sequence[int], *, largest: bool) -> ir.Value:
    """Return the largest or smallest element over `dims`; NaN wins."""
    dtype = spec_of(operand).dtype
    if largest:
        return hlo.reduce_max(operand, dims)
    return hlo.reduce(operand, dims, hlo.highest(dtype), stablehlo.minimum)


def reduce_extreme_with_index(
    operand: ir.Value, dim: int, *, largest: bool
) -> tuple[ir.Value, ir.Value]:
    """Return the extreme over one dim and its first position (int32), both without that dim."""
    spec = spec_of(operand)
    worst = hlo.lowest(spec.dtype) if largest else hlo.highest(spec.dtype)
    # An element equal to the start value still wins: its index is smaller.
    last = torch.iinfo(torch.int32).max
    better = "GT" if largest else "LT"

    def pick(
        left: ir.Value, left_index: ir.Value, right: ir.Value, right_index: ir.Value
    ) -> list[ir.Value]:
        wins = hlo.compare(left, right, better)
        ties = hlo.compare(left, right, "EQ")
        if spec.dtype.is_floating_point:
            left_nan, right_nan = hlo.is_nan(left), hlo.is_nan(right)
            wins = stablehlo.or_(wins, stablehlo.and_(left_nan, stablehlo.not_(right_nan)))
            ties = stablehlo.or_(ties, stablehlo.and_(left_nan, right_nan))
        first = hlo.compare(left_index, right_index, "LT")
        take_left = stablehlo.or_(wins, stablehlo.and_(ties, first))
        return [
            hlo.select(take_left, left, right),
            hlo.select(take_left, left_index, right_index),
        ]

    index = hlo.iota(spec.shape, dim)
    values, indices = hlo.reduce_many((operand, index), [dim], (worst, last), pick)
    return values, indices


def _amax(largest: bool) -> Callable[..., ir.Value]:
    def rule(
        ctx: LoweringContext, operand: ir.Value, dim: Dims = (), keepdim: bool = False
    ) -> ir.Value:
        """The extreme element over `dim` (none given: over all); NaN wins."""
        dims = hlo.canonical_dims(dim, spec_of(operand).rank)
        return finish(ctx, reduce_extreme(operand, dims, largest=largest))

    return rule


def _extreme_of_dim(largest: bool) -> Callable[..., tuple[ir.Value, ir.Value]]:
    def rule(
        ctx: LoweringContext, operand: ir.Value, dim: int, keepdim: bool = False
    ) -> tuple[ir.Value, ir.Value]:
        """The extreme element over one dim and its first position (int64); NaN wins."""
        spec = spec_of(operand)
        if spec.rank == 0:
            return operand, hlo.scalar(0, torch.int64)
        dim = hlo.canonical_dim(dim, spec.rank)
        values, indices = reduce_extreme_with_index(operand, dim, largest=largest)
        return finish(ctx, values, 0), finish(ctx, indices, 1)

    return rule


def _position(largest: bool) -> Callable[..., ir.Value]:
    def rule(
        ctx: LoweringContext, operand: ir.Value, dim: int | None = None, keepdim: bool = False
    ) -> ir.Value:
        """The first position (int64) of the extreme element, over one dim or over all; NaN wins."""
        spec = spec_of(operand)
        if dim is None or spec.rank == 0:
            # Positions of the whole tensor count in row-major order.
            operand, dim = hlo.reshape(operand, (math.prod(spec.shape),)), 0
        dim = hlo.canonical_dim(dim, spec_of(operand).rank)
        return finish(ctx, reduce_extreme_with_index(operand, dim, largest=largest)[1])

    return rule


_Family = Callable[[bool], Callable[..., object]]

# Each takes whether the largest element is looked for, and gives the rule; the other is its
# padding rule.
_FAMILIES: dict[OpOverload, tuple[_Family, bool, Callable[[Fill], PaddingRule]]] = {
    aten.amax.default: (_amax, True, reduces),
    aten.amin.default: (_amax, False, reduces),
    aten.max.default: (_amax, True, reduces),
    aten.min.default: (_amax, False, reduces),
    aten.max.dim: (_extreme_of_dim, True, finds_extreme),
    aten.min.dim: (_extreme_of_dim, False, finds_extreme),
    aten.argmax.default: (_position, True, finds_extreme),
    aten.argmin.default: (_position, False, finds_extreme),
}

for _overload, (_family, _largest, _padding) in _FAMILIES.items():
    _fill = Fill.LOWEST if _largest else Fill.HIGHEST
    lowering(_overload, padding=_padding(_fill))(_family(_largest))
