"""Matrix products by groups of rows (mixture of experts): `_grouped_mm` and transformers' own ops.

The groups lie one after the other along one dim of a 2-d operand; `offs` holds where each of them
ends. On a TPU `chlo.ragged_dot` does it; XLA's CPU compiler refuses that op, and
there every group is computed densely and what belongs to others is dropped. It is dropped
by selection, never by multiplying with zero: an infinite weight stays in its group.
"""

from __future__ import annotations

import torch
from torch import fx

from lowering import hlo
from lowering.bucketing.products import grouped, grouped_backward
from lowering.context import LoweringContext
from lowering.dtypes import TensorSpec, spec_of, tensor_type
from lowering.mlir import chlo, ir, stablehlo
from lowering.ops.matmul import accumulation_dtype, contract
from lowering.registry import lowering

aten = torch.ops.aten


def _bias_reason(node: fx.Node) -> str | None:
    bias = node.args[3] if len(node.args) > 3 else node.kwargs.get("bias")
    return "eager PyTorch takes no bias here either" if bias is not None else None


@lowering(aten._grouped_mm.default, padding=grouped("self", "mat2"), check=_bias_reason)
def grouped_mm(
    ctx: LoweringContext,
    left: ir.Value,
    right: ir.Value,
    offs: ir.Value | None = None,
    bias: None = None,
    out_dtype: torch.dtype | None = None,
) -> ir.Value:
    """Products of the groups of a 2-d operand with the matrices (or the groups) of the other one.

    - `[rows, inner] @ [groups, inner, columns]` -> `[rows, columns]`: groups of rows;
    - `[groups, rows, inner] @ [inner, columns]` -> `[rows, columns]`: groups of columns;
    - `[rows, inner] @ [inner, columns]` -> `[groups, rows, columns]`: groups of the summed dim;
    - with two 3-d operands it is `bmm`.

    Rows and columns past the last end, which eager leaves as they come, are zero.
    """
    dtype = ctx.result.dtype
    ranks = (len(left.type.shape), len(right.type.shape))
    if offs is None:
        return hlo.convert(contract(ctx, left, right, ([2], [1]), ([0], [0])), dtype)
    if ranks == (2, 2):
        return hlo.convert(_groups_summed(ctx, left, right, offs), dtype)
    if ranks == (2, 3):
        return hlo.convert(_groups_of_rows(ctx, left, right, offs), dtype)
    transposed = hlo.transpose(right, [1, 0]), hlo.transpose(left, [0, 2, 1])
    return hlo.convert(hlo.transpose(_groups_of_rows(ctx, *transposed, offs), [1, 0]), dtype)


@lowering("transformers.grouped_mm_fallback.default", padding=grouped("input", "weight"))
def grouped_mm_fallback(
    ctx: LoweringContext, input: ir.Value, weight: ir.Value, offs: ir.Value
) -> ir.Value:
    """`[rows, inner] @ [groups, inner, columns]` by groups of rows; zero past the last end."""
    return hlo.convert(_groups_of_rows(ctx, input, weight, offs), ctx.result.dtype)


@lowering("transformers.grouped_mm_fallback_backward.default", padding=grouped_backward)
def grouped_mm_fallback_backward(
    ctx: LoweringContext, input: ir.Value, weight: ir.Value, offs: ir.Value, grad_output: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """Gradients of the rows and of the weight for that of the result."""
    by_rows = _groups_of_rows(ctx, grad_output, hlo.transpose(weight, [0, 2, 1]), offs)
    by_groups = _groups_summed(ctx, hlo.transpose(input, [1, 0]), grad_output, offs)
    dtype = ctx.result.dtype
    return hlo.convert(by_rows, dtype), hlo.convert(by_groups, dtype)


def _groups_of_rows(
    ctx: LoweringContext, rows: ir.Value, weight: ir.Value, ends: ir.Value
) -> ir.Value:
    """Return `[rows, columns]`, each row times the matrix of its group, wide."""
    (count, inner), (groups, _, columns) = rows.type.shape, weight.type.shape
    dtype = accumulation_dtype(spec_of(rows).dtype)
    if 0 in (count, inner, groups, columns):
        return hlo.full((count, columns), dtype, 0)
    mine = _membership(ends, count)
    if ctx.options.platform == "tpu":
        product = _ragged_dot(
            ctx, rows, weight, ends, (count, columns), contracting=1, ragged=0, group=[0]
        )
        # What the op leaves in rows of no group is not specified.
        grouped = hlo.reduce(mine, [0], False, stablehlo.or_)
        grouped = hlo.broadcast_in_dim(grouped, (count, columns), [0])
        return hlo.select(grouped, product, hlo.full_like(product, 0))
    # One plain product: XLA's CPU runtime has no 16-bit dot with more than one free dim a side.
    flat = hlo.reshape(hlo.transpose(weight, [1, 0, 2]), (inner, groups * columns))
    product = hlo.reshape(contract(ctx, rows, flat, ([1], [0])), (count, groups, columns))
    mine = hlo.broadcast_in_dim(mine, (count, groups, columns), [1, 0])
    return hlo.reduce_sum(hlo.select(mine, product, hlo.full_like(product, 0)), [1])


def _groups_summed(
    ctx: LoweringContext, left: ir.Value, right: ir.Value, ends: ir.Value
) -> ir.Value:
    """Return `[groups, rows, columns]`: the products over each group of the inner dim, wide."""
    (rows, inner), (_, columns), (groups,) = left.type.shape, right.type.shape, ends.type.shape
    shape = (groups, rows, columns)
    if 0 in (*shape, inner):
        return hlo.full(shape, accumulation_dtype(spec_of(left).dtype), 0)
    if ctx.options.platform == "tpu":
        return _ragged_dot(ctx, left, right, ends, shape, contracting=0, ragged=1, group=[])
    mine = _membership(ends, inner)
    lefts = _selected(left, mine, (groups, rows, inner), [1, 2], [0, 2])
    rights = _selected(right, mine, (groups, inner, columns), [1, 2], [0, 1])
    return contract(ctx, lefts, rights, ([2], [1]), ([0], [0]))


def _selected(
    operand: ir.Value,
    mine: ir.Value,
    shape: tuple[int, int, int],
    operand_dims: list[int],
    mask_dims: list[int],
) -> ir.Value:
    """Return one copy of `operand` a group, zero outside the group."""
    copies = hlo.broadcast_in_dim(operand, shape, operand_dims)
    mask = hlo.broadcast_in_dim(mine, shape, mask_dims)
    return hlo.select(mask, copies, hlo.full_like(copies, 0))


def _starts(ends: ir.Value) -> ir.Value:
    """Return where each group starts."""
    return hlo.pad(ends, [1], [-1])


def _membership(ends: ir.Value, count: int) -> ir.Value:
    """Return `[groups, count]`: whether a position is one of the group's."""
    shape = (ends.type.shape[0], count)
    dtype = spec_of(ends).dtype
    position = hlo.iota(shape, 1, dtype)
    start, end = (hlo.broadcast_in_dim(edge, shape, [0]) for edge in (_starts(ends), ends))
    return stablehlo.and_(hlo.compare(position, start, "GE"), hlo.compare(position, end, "LT"))


def _ragged_dot(
    ctx: LoweringContext,
    left: ir.Value,
    right: ir.Value,
    ends: ir.Value,
    shape: tuple[int, ...],
    *,
    contracting: int,
    ragged: int,
    group: list[int],
) -> ir.Value:
    """Return `chlo.ragged_dot` over dim 1 of `left` and dim `contracting` of `right`."""
    dtype = accumulation_dtype(spec_of(left).dtype)
    numbers = chlo.RaggedDotDimensionNumbers.get(
        lhs_batching_dimensions=[],
        rhs_batching_dimensions=[],
        lhs_contracting_dimensions=[1],
        rhs_contracting_dimensions=[contracting],
        lhs_ragged_dimensions=[ragged],
        rhs_group_dimensions=group,
    )
    precision = chlo.PrecisionAttr.get(ctx.precision(left, right))
    return chlo.ragged_dot(
        tensor_type(TensorSpec(shape, dtype)),
        left,
        right,
        stablehlo.subtract(ends, _starts(ends)),
        numbers,
        precision_config=ir.ArrayAttr.get([precision, precision]),
    )
