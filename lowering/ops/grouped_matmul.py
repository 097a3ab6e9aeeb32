"""Products of groups of rows (or columns) with a matrix of their own: mixtures of experts.

TPUs have a ragged product. Elsewhere it is a loop over the groups, with the rows of the other
groups masked: as many products of the full size as there are groups.
"""

from __future__ import annotations

import torch

from lowering import hlo
from lowering.context import LoweringContext
from lowering.dtypes import TensorSpec, spec_of, tensor_type
from lowering.mlir import chlo, ir, stablehlo
from lowering.ops import matrices
from lowering.ops.matmul import accumulation_dtype, contract
from lowering.registry import Padding, lowering

aten = torch.ops.aten

_I32 = torch.int32
_RAGGED_PLATFORM = "tpu"


@lowering(aten._grouped_mm.default, padding=Padding.EXACT)
def grouped_mm(
    ctx: LoweringContext,
    left: ir.Value,
    right: ir.Value,
    offs: ir.Value | None = None,
    bias: ir.Value | None = None,
    out_dtype: torch.dtype | None = None,
) -> ir.Value:
    """The product of each group; `offs` are the ends of the groups along the ragged dim.

    `[m, k] @ [g, k, n]` groups the rows, `[g, m, k] @ [k, n]` the columns, `[m, k] @ [k, n]` the
    inner dim with a `[g, m, n]` result; without groups it is a batched product. What lies beyond
    the last end is zero (eager leaves it as the memory was).
    """
    if bias is not None:
        raise ctx.unsupported("eager has no grouped product with a bias")
    ranks = (spec_of(left).rank, spec_of(right).rank)
    if offs is None:
        product = matrices.product(ctx, left, right)
    elif ranks == (2, 3):
        product = rows_by_group(ctx, left, right, offs)
    elif ranks == (3, 2):
        turned = rows_by_group(ctx, matrices.transpose(right), matrices.transpose(left), offs)
        product = matrices.transpose(turned)
    else:
        product = inner_by_group(ctx, left, right, offs)
    return hlo.convert(product, ctx.result.dtype)


def rows_by_group(
    ctx: LoweringContext, left: ir.Value, right: ir.Value, ends: ir.Value
) -> ir.Value:
    """Return `[rows, inner] @ right[group of the row]`, in the accumulation dtype."""
    row_count, _ = spec_of(left).shape
    groups, _, width = spec_of(right).shape
    spec = TensorSpec((row_count, width), accumulation_dtype(spec_of(left).dtype))
    if 0 in (*spec.shape, groups):
        return hlo.full(spec.shape, spec.dtype, 0)
    if ctx.options.platform == _RAGGED_PLATFORM:
        return _ragged_dot(ctx, left, right, ends, spec, contracting=(1, 1), ragged=0, group=[0])
    bounds = _bounds(ends)

    def add_group(group: ir.Value, total: ir.Value) -> ir.Value:
        rows = _masked(left, bounds, group, dim=0)
        return stablehlo.add(
            total, contract(ctx, rows, hlo.dynamic_index(right, group), ([1], [0]))
        )

    return _over_groups(groups, hlo.full(spec.shape, spec.dtype, 0), add_group)


def inner_by_group(
    ctx: LoweringContext, left: ir.Value, right: ir.Value, ends: ir.Value
) -> ir.Value:
    """Return `[groups, rows, columns]` partial sums of left @ right, in the accumulation dtype."""
    (groups,) = spec_of(ends).shape
    shape = (groups, spec_of(left).shape[0], spec_of(right).shape[1])
    spec = TensorSpec(shape, accumulation_dtype(spec_of(left).dtype))
    if 0 in (*shape, spec_of(left).shape[1]):
        return hlo.full(shape, spec.dtype, 0)
    if ctx.options.platform == _RAGGED_PLATFORM:
        return _ragged_dot(ctx, left, right, ends, spec, contracting=(1, 0), ragged=1, group=[])
    bounds = _bounds(ends)

    def put_group(group: ir.Value, parts: ir.Value) -> ir.Value:
        # Both factors, since a masked zero times an infinity would be NaN.
        columns = _masked(left, bounds, group, dim=1)
        rows = _masked(right, bounds, group, dim=0)
        return hlo.dynamic_update(parts, contract(ctx, columns, rows, ([1], [0])), group)

    return _over_groups(groups, hlo.full(shape, spec.dtype, 0), put_group)


def _over_groups(groups: int, start: ir.Value, step: object) -> ir.Value:
    """Return what `step(group, value)` makes of `start` in a loop over the groups."""

    def unfinished(group: ir.Value, _: ir.Value) -> ir.Value:
        return hlo.compare(group, hlo.scalar(groups, _I32), "LT")

    def advance(group: ir.Value, value: ir.Value) -> list[ir.Value]:
        return [stablehlo.add(group, hlo.scalar(1, _I32)), step(group, value)]  # type: ignore[operator]

    return hlo.while_loop(unfinished, advance, [hlo.scalar(0, _I32), start])[1]


def _bounds(ends: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return where each group starts and ends, i32."""
    ends = hlo.convert(ends, _I32)
    (groups,) = spec_of(ends).shape
    starts = hlo.pad(hlo.slice_in_dim(ends, 0, groups - 1, dim=0), [1], [0])
    return starts, ends


def _masked(
    operand: ir.Value, bounds: tuple[ir.Value, ir.Value], group: ir.Value, *, dim: int
) -> ir.Value:
    """Return `operand` with zeros outside the group along `dim`."""
    position = hlo.iota(spec_of(operand).shape, dim)
    start, end = (
        hlo.broadcast_to(hlo.dynamic_index(bound, group), spec_of(operand).shape)
        for bound in bounds
    )
    inside = stablehlo.and_(hlo.compare(position, start, "GE"), hlo.compare(position, end, "LT"))
    return hlo.select(inside, operand, hlo.full_like(operand, 0))


def _ragged_dot(
    ctx: LoweringContext,
    left: ir.Value,
    right: ir.Value,
    ends: ir.Value,
    spec: TensorSpec,
    *,
    contracting: tuple[int, int],
    ragged: int,
    group: list[int],
) -> ir.Value:
    starts, ends = _bounds(ends)
    precision = chlo.PrecisionAttr.get(ctx.precision(left, right))
    numbers = chlo.RaggedDotDimensionNumbers.get(
        lhs_batching_dimensions=[],
        rhs_batching_dimensions=[],
        lhs_contracting_dimensions=[contracting[0]],
        rhs_contracting_dimensions=[contracting[1]],
        lhs_ragged_dimensions=[ragged],
        rhs_group_dimensions=group,
    )
    return chlo.ragged_dot(
        tensor_type(spec),
        left,
        right,
        stablehlo.subtract(ends, starts),
        numbers,
        precision_config=ir.ArrayAttr.get([precision, precision]),
    )
