"""LU decompositions, and what eager computes by them: solutions, inverses, determinants.

Pivots are LAPACK's: i32, counted from 1.
"""

from __future__ import annotations

import torch

from lowering import hlo
from lowering.bucketing.matrices import of_matrices, right_side, side
from lowering.context import LoweringContext
from lowering.dtypes import real_dtype, spec_of
from lowering.mlir import ir, stablehlo
from lowering.ops import factorizations, matrices
from lowering.ops.normalization import empty_result
from lowering.registry import lowering

aten = torch.ops.aten


@lowering(aten.linalg_lu_factor_ex.default, padding=of_matrices(A="square"))
def linalg_lu_factor_ex(
    ctx: LoweringContext, matrix: ir.Value, *, pivot: bool = True, check_errors: bool = False
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """L and U in one matrix, pivots and info; `check_errors` has no effect."""
    if not pivot:
        raise ctx.unsupported("LAPACK always pivots")
    return factorizations.lu(ctx, matrix)


@lowering(aten.linalg_lu.default, padding=of_matrices(A="square"))
def linalg_lu(
    ctx: LoweringContext, matrix: ir.Value, *, pivot: bool = True
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """P, L and U with P @ L @ U = matrix."""
    if not pivot:
        raise ctx.unsupported("LAPACK always pivots")
    factors, pivots, _ = factorizations.lu(ctx, matrix)
    lower, upper = _parts(factors)
    return _permutation(ctx, factors, pivots), lower, upper


@lowering(aten.lu_unpack.default, padding=of_matrices(LU_data="square", LU_pivots="pivots"))
def lu_unpack(
    ctx: LoweringContext,
    factors: ir.Value,
    pivots: ir.Value,
    unpack_data: bool = True,
    unpack_pivots: bool = True,
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """P, L and U; what is not asked for is an empty tensor."""
    lower, upper = _parts(factors) if unpack_data else (empty_result(ctx, 1), empty_result(ctx, 2))
    if not unpack_pivots:
        return empty_result(ctx, 0), lower, upper
    return _permutation(ctx, factors, pivots), lower, upper


def _parts(factors: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return L `[..., rows, k]` with ones on its diagonal and U `[..., k, columns]`."""
    rank = min(spec_of(factors).shape[-2:])
    lower = matrices.triangle(matrices.columns(factors, rank), lower=True, strict=True)
    upper = matrices.triangle(matrices.rows(factors, rank), lower=False)
    return matrices.with_unit_diagonal(lower), upper


def _permutation(ctx: LoweringContext, factors: ir.Value, pivots: ir.Value) -> ir.Value:
    """Return P of result 0's dtype: column i has its one in the row that became row i."""
    *batch, row_count, _ = spec_of(factors).shape
    order = factorizations.row_order(pivots, row_count)
    shape = (*batch, row_count, row_count)
    order = hlo.broadcast_to(hlo.expand_dims(order, [len(batch)]), shape)
    is_one = hlo.compare(hlo.iota(shape, len(batch)), order, "EQ")
    return hlo.convert(is_one, ctx.result.dtype)


# --- solutions -----------------------------------------------------------------------------------


def solve_by_lu(
    ctx: LoweringContext,
    factors: ir.Value,
    pivots: ir.Value,
    other: ir.Value,
    *,
    left: bool = True,
    adjoint: bool = False,
) -> ir.Value:
    """Return x with op(A) @ x = other (x @ op(A) if not `left`), op the adjoint if asked.

    A = P @ L @ U. Batch dims broadcast.
    """
    if not left:
        mirrored = solve_by_lu(ctx, factors, pivots, matrices.adjoint(other), adjoint=not adjoint)
        return matrices.adjoint(mirrored)
    order = factorizations.row_order(pivots, spec_of(factors).shape[-2], inverse=adjoint)
    factors, other = matrices.broadcast_batches(factors, other)
    if 0 in spec_of(other).shape:
        return other
    if not adjoint:
        other = matrices.permute_rows(other, order)
    for lower in (False, True) if adjoint else (True, False):
        other = factorizations.solve_triangular(
            ctx, factors, other, lower=lower, unit=lower, transpose="C" if adjoint else "N"
        )
    return matrices.permute_rows(other, order) if adjoint else other


@lowering(aten.linalg_lu_solve.default, padding=of_matrices(LU="square", pivots="pivots", B=side))
def linalg_lu_solve(
    ctx: LoweringContext,
    factors: ir.Value,
    pivots: ir.Value,
    other: ir.Value,
    *,
    left: bool = True,
    adjoint: bool = False,
) -> ir.Value:
    """The x of A @ x = other, given A's decomposition."""
    return solve_by_lu(ctx, factors, pivots, other, left=left, adjoint=adjoint)


@lowering(aten._linalg_solve_ex.default, padding=of_matrices(A="square", B=right_side))
def linalg_solve_ex(
    ctx: LoweringContext,
    matrix: ir.Value,
    other: ir.Value,
    *,
    left: bool = True,
    check_errors: bool = False,
) -> tuple[ir.Value, ir.Value, ir.Value, ir.Value]:
    """The solution, LU, pivots and info; `other` is a matrix or, by its shape, a vector."""
    shape, other_shape = spec_of(matrix).shape, spec_of(other).shape
    is_vector = len(other_shape) == 1 or other_shape == shape[:-1]
    factors, pivots, info = factorizations.lu(ctx, matrix)
    other = matrices.as_column(other) if is_vector else other
    solution = solve_by_lu(ctx, factors, pivots, other, left=left)
    return hlo.reshape(solution, ctx.result.shape), factors, pivots, info


@lowering(aten.linalg_inv_ex.default, padding=of_matrices(A="square"))
def linalg_inv_ex(
    ctx: LoweringContext, matrix: ir.Value, *, check_errors: bool = False
) -> tuple[ir.Value, ir.Value]:
    """The inverse and info; a singular matrix gives infinities and NaN."""
    factors, pivots, info = factorizations.lu(ctx, matrix)
    identity = matrices.identity(ctx.result.shape, ctx.result.dtype)
    return solve_by_lu(ctx, factors, pivots, identity), info


# --- determinants --------------------------------------------------------------------------------


def _decompose(ctx: LoweringContext, matrix: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return LU and pivots of the matrix or of its transpose, whose determinant is the same.

    Eager takes the transpose of a real contiguous matrix (its memory is column-major then); the
    gradient formulas know this of the LU that the op gives back.
    """
    argument = ctx.argument(0)
    if argument.is_contiguous() and not argument.is_complex():
        matrix = matrices.transpose(matrix)
    factors, pivots, _ = factorizations.lu(ctx, matrix)
    return factors, pivots


def _swaps_sign(pivots: ir.Value, dtype: torch.dtype) -> ir.Value:
    """Return the determinant of P: -1 for an odd number of rows swapped."""
    shape = spec_of(pivots).shape
    own = stablehlo.add(hlo.iota(shape, len(shape) - 1), hlo.full(shape, torch.int32, 1))
    swapped = hlo.convert(hlo.compare(pivots, own, "NE"), torch.int32)
    count = hlo.reduce_sum(swapped, [len(shape) - 1])
    odd = hlo.convert(stablehlo.and_(count, hlo.full_like(count, 1)), torch.bool)
    one = hlo.full(spec_of(odd).shape, dtype, 1)
    return hlo.select(odd, stablehlo.negate(one), one)


@lowering(aten._linalg_det.default, padding=of_matrices(A="square"))
def linalg_det(ctx: LoweringContext, matrix: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """The determinant, LU and pivots; 1 for a matrix without rows."""
    factors, pivots = _decompose(ctx, matrix)
    main = matrices.diagonal(factors)
    last = spec_of(main).rank - 1
    result = hlo.reduce(main, [last], 1, stablehlo.multiply)
    result = stablehlo.multiply(result, _swaps_sign(pivots, spec_of(main).dtype))
    return result, factors, pivots


@lowering(aten._linalg_slogdet.default, padding=of_matrices(A="square"))
def linalg_slogdet(
    ctx: LoweringContext, matrix: ir.Value
) -> tuple[ir.Value, ir.Value, ir.Value, ir.Value]:
    """Sign and logarithm of the absolute value of the determinant, LU and pivots.

    The sign of a complex determinant is on the unit circle; a singular matrix gives 0 and -inf.
    """
    factors, pivots = _decompose(ctx, matrix)
    main = matrices.diagonal(factors)
    spec = spec_of(main)
    last = spec.rank - 1
    sign = hlo.reduce(stablehlo.sign(main), [last], 1, stablehlo.multiply)
    sign = stablehlo.multiply(sign, _swaps_sign(pivots, spec.dtype))
    logarithm = hlo.reduce_sum(stablehlo.log(stablehlo.abs(main)), [last])
    return sign, hlo.convert(logarithm, real_dtype(spec.dtype)), factors, pivots
