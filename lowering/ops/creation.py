"""Tensors made from nothing: constants, ranges, index grids and memory without content.

"Empty" tensors are zeros: eager gives whatever lies in memory, a program has to give something.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lowering import hlo
from lowering.bucketing.rules import counted, creates
from lowering.context import LoweringContext
from lowering.dtypes import opmath_dtype
from lowering.mlir import ir, stablehlo
from lowering.registry import Padding, lowering

aten = torch.ops.aten


@lowering(aten.full.default, padding=creates)
def full(
    ctx: LoweringContext,
    size: Sequence[int],
    fill_value: hlo.Scalar | ir.Value,
    *,
    dtype: torch.dtype | None = None,
) -> ir.Value:
    """`fill_value` at every position."""
    return ctx.broadcast_operands((fill_value,), ctx.result.dtype)[0]


@lowering(aten.full_like.default, padding=creates)
def full_like(
    ctx: LoweringContext,
    operand: ir.Value,
    fill_value: hlo.Scalar | ir.Value,
    *,
    dtype: torch.dtype | None = None,
) -> ir.Value:
    """`fill_value` at every position, in the shape of `operand` and its dtype or `dtype`."""
    return ctx.broadcast_operands((fill_value,), ctx.result.dtype)[0]


@lowering(aten.scalar_tensor.default, "prims.scalar_tensor.default", padding=creates)
def scalar_tensor(
    ctx: LoweringContext, number: hlo.Scalar | ir.Value, *, dtype: torch.dtype | None = None
) -> ir.Value:
    """A number as a 0-d tensor."""
    return ctx.as_value(number, ctx.result.dtype)


@lowering(
    aten.empty.memory_format,
    aten.empty_permuted.default,
    aten.empty_strided.default,
    aten.new_empty_strided.default,
    aten._efficientzerotensor.default,
    padding=creates,
)
def empty(ctx: LoweringContext, *_: object, dtype: torch.dtype | None = None) -> ir.Value:
    """Zeros; strides and memory order belong to the caller of the program."""
    return hlo.full(ctx.result.shape, ctx.result.dtype, 0)


@lowering(aten.arange.start_step, padding=counted)
def arange(
    ctx: LoweringContext,
    start: hlo.Scalar,
    end: hlo.Scalar,
    step: hlo.Scalar = 1,
    *,
    dtype: torch.dtype | None = None,
) -> ir.Value:
    """start, start + step, ... below `end`; narrow floats are computed in float32."""
    (size,), dtype = ctx.result.shape, ctx.result.dtype
    if dtype.is_floating_point:
        inner = opmath_dtype(dtype)
    else:
        # ATen truncates the arguments before it multiplies.
        start, step = int(start), int(step)  # type: ignore[arg-type]
        last = start + step * max(size - 1, 0)
        inner = torch.int32 if _fits_int32(start, step, last, size) else torch.int64
    index = hlo.iota((size,), 0, torch.int32 if size < 2**31 else torch.int64)
    index = hlo.convert(index, inner)
    if step != 1:
        index = stablehlo.multiply(index, hlo.full_like(index, step))
    if start != 0:
        index = stablehlo.add(index, hlo.full_like(index, start))
    return hlo.convert(index, dtype)


def _fits_int32(*numbers: int) -> bool:
    limits = torch.iinfo(torch.int32)
    return all(limits.min <= number <= limits.max for number in numbers)


# --- index grids ---------------------------------------------------------------------------------


@lowering(aten.tril_indices.default, padding=Padding.EXACT)
def tril_indices(
    ctx: LoweringContext,
    row: int,
    col: int,
    offset: int = 0,
    *,
    dtype: torch.dtype | None = None,
) -> ir.Value:
    """`[2, count]` row and column of each entry on or below the diagonal, row by row."""
    count = ctx.result.shape[1]
    index = hlo.iota((count,), 0)

    def before(rows: ir.Value) -> ir.Value:
        return _subtract(_ramp_sum(_plus(rows, offset), col), _host_ramp_sum(offset, col))

    rows = _last_row_starting_by(index, row, before)
    columns = stablehlo.subtract(index, before(rows))
    return _grid(rows, columns, ctx)


@lowering(aten.triu_indices.default, padding=Padding.EXACT)
def triu_indices(
    ctx: LoweringContext,
    row: int,
    col: int,
    offset: int = 0,
    *,
    dtype: torch.dtype | None = None,
) -> ir.Value:
    """`[2, count]` row and column of each entry on or above the diagonal, row by row."""
    count = ctx.result.shape[1]
    index = hlo.iota((count,), 0)

    def before(rows: ir.Value) -> ir.Value:
        missing = _subtract(
            _ramp_sum(_plus(rows, offset - 1), col), _host_ramp_sum(offset - 1, col)
        )
        return stablehlo.subtract(_times(rows, col), missing)

    rows = _last_row_starting_by(index, row, before)
    skipped = _limited(_plus(rows, offset), 0, col)
    columns = stablehlo.add(stablehlo.subtract(index, before(rows)), skipped)
    return _grid(rows, columns, ctx)


def _last_row_starting_by(index: ir.Value, rows: int, before: object) -> ir.Value:
    """Return the last of `rows` rows with `before(row) <= index`, found bit by bit.

    `before` counts the entries in earlier rows; it never falls, and whole numbers keep the search
    exact where a square root would not.
    """
    found = hlo.full_like(index, 0)
    for bit in reversed(range(max(rows - 1, 0).bit_length())):
        candidate = _plus(found, 1 << bit)
        starts = hlo.compare(before(candidate), index, "LE")  # type: ignore[operator]
        inside = hlo.compare(candidate, hlo.full_like(index, rows), "LT")
        found = hlo.select(stablehlo.and_(starts, inside), candidate, found)
    return found


def _ramp_sum(limit: ir.Value, top: int) -> ir.Value:
    """Return the sum over all j up to `limit` of j clamped to [0, top], element by element."""
    inside = _limited(limit, 0, top)
    triangle = stablehlo.divide(
        stablehlo.multiply(inside, _plus(inside, 1)), hlo.full_like(inside, 2)
    )
    beyond = stablehlo.maximum(_plus(limit, -top), hlo.full_like(limit, 0))
    return stablehlo.add(triangle, _times(beyond, top))


def _host_ramp_sum(limit: int, top: int) -> int:
    inside = min(max(limit, 0), top)
    return inside * (inside + 1) // 2 + top * max(limit - top, 0)


def _grid(rows: ir.Value, columns: ir.Value, ctx: LoweringContext) -> ir.Value:
    stacked = hlo.concatenate([hlo.expand_dims(rows, [0]), hlo.expand_dims(columns, [0])], 0)
    return hlo.convert(stacked, ctx.result.dtype)


def _plus(operand: ir.Value, number: int) -> ir.Value:
    return stablehlo.add(operand, hlo.full_like(operand, number))


def _subtract(operand: ir.Value, number: int) -> ir.Value:
    return _plus(operand, -number)


def _times(operand: ir.Value, number: int) -> ir.Value:
    return stablehlo.multiply(operand, hlo.full_like(operand, number))


def _limited(operand: ir.Value, low: int, high: int) -> ir.Value:
    raised = stablehlo.maximum(operand, hlo.full_like(operand, low))
    return stablehlo.minimum(raised, hlo.full_like(operand, high))
