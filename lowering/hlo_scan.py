"""Running reductions along one dim, built as one `reduce_window` that reaches back to the start.

XLA rewrites such a window into a tree of short ones, on CPU and TPU alike: the work grows with
n log n, and the module by one op. Windows over several operands at once are not rewritten (they
exhaust memory on the CPU), so running indices are found by a second scan.
"""

from __future__ import annotations

import torch

from lowering import hlo
from lowering.dtypes import spec_of
from lowering.hlo import Combiner, Scalar
from lowering.mlir import ir, stablehlo


def cumulative(operand: ir.Value, dim: int, identity: Scalar, combine: Combiner) -> ir.Value:
    """Return at each position of `dim` the elements up to it, combined; shape of `operand`."""
    shape = spec_of(operand).shape
    if 0 in shape or shape[dim] == 1:
        return operand
    rank = len(shape)
    return hlo.reduce_window(
        operand,
        identity,
        combine,
        window=[shape[axis] if axis == dim else 1 for axis in range(rank)],
        strides=[1] * rank,
        padding=[(shape[axis] - 1 if axis == dim else 0, 0) for axis in range(rank)],
    )


def cumulative_sum(operand: ir.Value, dim: int) -> ir.Value:
    """Return running sums along `dim`; integers wrap."""
    return cumulative(operand, dim, 0, stablehlo.add)


def cumulative_max(operand: ir.Value, dim: int) -> ir.Value:
    """Return running maxima along `dim`; from a NaN on, NaN."""
    return cumulative(operand, dim, hlo.lowest(spec_of(operand).dtype), stablehlo.maximum)


def cumulative_min(operand: ir.Value, dim: int) -> ir.Value:
    """Return running minima along `dim`; from a NaN on, NaN."""
    return cumulative(operand, dim, hlo.highest(spec_of(operand).dtype), stablehlo.minimum)


def last_true(marks: ir.Value, dim: int) -> ir.Value:
    """Return at each position the last position of `dim` up to it where `marks` holds (i32).

    -1 where there is none.
    """
    position = hlo.iota(spec_of(marks).shape, dim)
    return cumulative_max(hlo.select(marks, position, hlo.full_like(position, -1)), dim)


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which sums of `dtype` are taken: float32 for the half types."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
