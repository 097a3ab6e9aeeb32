"""Matrix products: mm, bmm and the forms that add a tensor to a product.

Products of 16-bit floats accumulate in float32, those of narrow integers in 32 bits; the sum with
the added tensor happens there too, and the result is rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from lowering import hlo
from lowering.bucketing.contractions import contracts
from lowering.bucketing.products import batches_added, three_multiplied
from lowering.context import LoweringContext
from lowering.dtypes import is_unsigned, spec_of
from lowering.mlir import ir, stablehlo
from lowering.registry import lowering

aten = torch.ops.aten


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which a sum of products of `dtype` is held."""
    if dtype.is_floating_point and dtype.itemsize < 4:
        return torch.float32
    if not dtype.is_floating_point and not dtype.is_complex and dtype.itemsize < 4:
        # Wrapping to fewer bits commutes with sums and products.
        return torch.uint32 if is_unsigned(dtype) else torch.int32
    return dtype


def contract(
    ctx: LoweringContext,
    lhs: ir.Value,
    rhs: ir.Value,
    contracting: tuple[Sequence[int], Sequence[int]],
    batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
) -> ir.Value:
    """Return the contraction of two values of one dtype, in their accumulation dtype."""
    return hlo.dot_general(
        lhs,
        rhs,
        contracting=contracting,
        batch=batch,
        precision=ctx.precision(lhs, rhs),
        dtype=accumulation_dtype(spec_of(lhs).dtype),
    )


class _Matrix(NamedTuple):
    """A matrix as the value that it was before leading dims were merged."""

    value: ir.Value
    rows: list[int]
    columns: list[int]

    def sizes(self, dims: Sequence[int]) -> list[int]:
        return [spec_of(self.value).shape[dim] for dim in dims]


def multiply_matrices(ctx: LoweringContext, left: ir.Value, right: ir.Value) -> ir.Value:
    """Return left @ right in the accumulation dtype, with the dims that a view merged.

    `torch.nn.functional.linear` merges batch and time into the rows of a matrix. XLA fuses less
    across such a reshape, so the product is taken of the value before it: `[batch, time, inner]
    @ [inner, columns]` gives `[batch, time, columns]`, which the caller reshapes.
    """
    # What the operands come from decides, which no two nodes need to have in common.
    ctx.asked_for_own += 1
    first, second = _before_merge(left), _before_merge(right)
    if first.sizes(first.columns) != second.sizes(second.rows):
        first, second = (
            _Matrix(value, [0], [1]) if len(dims) > 1 else matrix
            for matrix, dims, value in (
                (first, first.columns, left),
                (second, second.rows, right),
            )
        )
    return contract(ctx, first.value, second.value, (first.columns, second.rows))


def _before_merge(matrix: ir.Value) -> _Matrix:
    """Return the value that `matrix`, or its transpose, is a reshape `[a, b, ..., n] -> [m, n]` of.

    Without one it is the matrix itself.
    """
    shape = spec_of(matrix).shape
    source = _operand_of(matrix, "stablehlo.transpose")
    merged = matrix if source is None else source
    value = merged
    while (before := _operand_of(value, "stablehlo.reshape")) is not None:
        if spec_of(before).shape[-1:] != spec_of(merged).shape[-1:]:
            break
        value = before
    rank = spec_of(value).rank
    if value is merged or rank < 3 or 0 in shape:
        return _Matrix(matrix, [0], [1])
    rows, columns = list(range(rank - 1)), [rank - 1]
    return _Matrix(value, rows, columns) if source is None else _Matrix(value, columns, rows)


def _operand_of(value: ir.Value, op: str) -> ir.Value | None:
    """Return the operand of the op that gives `value`, if it is of that name; else None."""
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.name != op:
        return None
    operand: ir.Value = owner.operands[0]
    return operand


@lowering(aten.mm.default, padding=contracts("self", "mat2", (1, 0)))
def mm(ctx: LoweringContext, operand: ir.Value, other: ir.Value) -> ir.Value:
    """`[rows, inner] @ [inner, columns]`; integers wrap, an empty inner dim gives zeros."""
    product = hlo.convert(multiply_matrices(ctx, operand, other), ctx.result.dtype)
    return hlo.reshape(product, ctx.result.shape)


@lowering(aten._int_mm.default, padding=contracts("self", "mat2", (1, 0)))
def int_mm(ctx: LoweringContext, operand: ir.Value, other: ir.Value) -> ir.Value:
    """int8 `[rows, inner] @ [inner, columns]` with an int32 result."""
    return contract(ctx, operand, other, ([1], [0]))


@lowering(aten.bmm.default, padding=contracts("self", "mat2", (2, 1), [(0, 0)]))
def bmm(ctx: LoweringContext, operand: ir.Value, other: ir.Value) -> ir.Value:
    """`[batch, rows, inner] @ [batch, inner, columns]` for each batch entry."""
    product = contract(ctx, operand, other, ([2], [1]), ([0], [0]))
    return hlo.convert(product, ctx.result.dtype)


@lowering(aten.addmm.default, padding=contracts("mat1", "mat2", (1, 0), added="self"))
def addmm(
    ctx: LoweringContext,
    added: ir.Value,
    left: ir.Value,
    right: ir.Value,
    *,
    beta: hlo.Scalar = 1,
    alpha: hlo.Scalar = 1,
) -> ir.Value:
    """Return beta * added + alpha * (left @ right), `added` broadcast to `[rows, columns]`."""
    return add_product(ctx, added, multiply_matrices(ctx, left, right), beta, alpha)


@lowering(aten.addmv.default, padding=contracts("mat", "vec", (1, 0), added="self"))
def addmv(
    ctx: LoweringContext,
    added: ir.Value,
    matrix: ir.Value,
    vector: ir.Value,
    *,
    beta: hlo.Scalar = 1,
    alpha: hlo.Scalar = 1,
) -> ir.Value:
    """Return beta * added + alpha * (matrix @ vector), `added` broadcast to `[rows]`."""
    return add_product(ctx, added, contract(ctx, matrix, vector, ([1], [0])), beta, alpha)


@lowering(aten.addbmm.default, padding=batches_added)
def addbmm(
    ctx: LoweringContext,
    added: ir.Value,
    left: ir.Value,
    right: ir.Value,
    *,
    beta: hlo.Scalar = 1,
    alpha: hlo.Scalar = 1,
) -> ir.Value:
    """Return beta * added + alpha * (sum over the batch of left @ right), in one contraction."""
    product = contract(ctx, left, right, ([0, 2], [0, 1]))
    return add_product(ctx, added, product, beta, alpha)


def add_product(
    ctx: LoweringContext,
    added: ir.Value,
    product: ir.Value,
    beta: hlo.Scalar | ir.Value,
    alpha: hlo.Scalar | ir.Value,
) -> ir.Value:
    """Return beta * added + alpha * product in the result's dtype and shape.

    As in BLAS a factor of zero drops its term whole, NaN and infinities included. The dims of
    `product` may be those of the result before they were merged.
    """
    dtype, shape = spec_of(product).dtype, spec_of(product).shape
    terms = []
    for term, factor in ((_matching(ctx, added, shape), beta), (product, alpha)):
        if isinstance(factor, ir.Value):
            terms.append(_scaled(hlo.convert(term, dtype), factor))
            continue
        factor = _cast(factor, ctx.result.dtype)
        if factor == 0:
            continue
        term = hlo.convert(term, dtype)
        if factor != 1:
            term = stablehlo.multiply(term, hlo.full_like(term, factor))
        terms.append(term)
    if not terms:
        return hlo.full(ctx.result.shape, ctx.result.dtype, 0)
    total = terms[0] if len(terms) == 1 else stablehlo.add(*terms)
    return hlo.reshape(hlo.convert(total, ctx.result.dtype), ctx.result.shape)


def _matching(ctx: LoweringContext, added: ir.Value, shape: tuple[int, ...]) -> ir.Value:
    """Return `added` broadcast to the result, in the `shape` that it has before dims are merged."""
    if spec_of(added).shape == shape[-1:]:
        # A reshape of the broadcast bias would keep XLA from fusing it with the product.
        return hlo.broadcast_to(added, shape)
    return hlo.reshape(hlo.broadcast_to(added, ctx.result.shape), shape)


def _scaled(term: ir.Value, factor: ir.Value) -> ir.Value:
    """Return `term` times a 0-d factor that only the run can tell; zero if that is zero."""
    spec = spec_of(term)
    factor = hlo.broadcast_to(hlo.convert(factor, spec.dtype), spec.shape)
    zero = hlo.full_like(term, 0)
    dropped = hlo.compare(factor, zero, "EQ")
    return hlo.select(dropped, zero, stablehlo.multiply(term, factor))


def _cast(factor: hlo.Scalar, dtype: torch.dtype) -> hlo.Scalar:
    """Return `factor` cast to an integer where the tensors are integers, as eager does."""
    if dtype.is_floating_point or dtype.is_complex:
        return factor
    return int(factor)  # type: ignore[arg-type]


@lowering(aten._trilinear.default, padding=three_multiplied)
def trilinear(
    ctx: LoweringContext,
    first: ir.Value,
    second: ir.Value,
    third: ir.Value,
    expand_first: Sequence[int],
    expand_second: Sequence[int],
    expand_third: Sequence[int],
    summed: Sequence[int],
    unroll_dim: int = 1,
) -> ir.Value:
    """Sum over the dims `summed` of first * second * third, each unsqueezed at its own dims.

    `unroll_dim` only steers eager's loop. The first two factors are multiplied element by
    element, the third is contracted with them.
    """
    rank = len(first.type.shape) + len(expand_first)
    operands = [
        hlo.expand_dims(operand, [dim % rank for dim in dims])
        for operand, dims in (
            (first, expand_first),
            (second, expand_second),
            (third, expand_third),
        )
    ]
    dtype = accumulation_dtype(ctx.result.dtype)
    wide = [hlo.convert(operand, dtype) for operand in operands]
    product = stablehlo.multiply(*hlo.broadcast(wide[0], wide[1]))
    left, right = hlo.broadcast(product, wide[2])
    dropped = sorted(dim % rank for dim in summed)
    if not dropped:
        return hlo.convert(stablehlo.multiply(left, right), ctx.result.dtype)
    batch = [dim for dim in range(rank) if dim not in dropped]
    return hlo.convert(
        contract(ctx, left, right, (dropped, dropped), (batch, batch)), ctx.result.dtype
    )
