"""Factorizations of batched matrices, by what the platform has: LAPACK, or XLA's own targets.

LAPACK runs on the CPU. TPUs have XLA's targets for eigh, QR and LU, and StableHLO's Cholesky; the
singular value decomposition is put together from them (`lowering.ops.polar`). `Qr` and `Eigh` are
expanded by XLA on every platform. No rule is here. Every function takes empty matrices, which
neither LAPACK nor XLA does. Where eager raises because an iteration did not converge, the results
are NaN.
"""

from __future__ import annotations

import torch

from lowering import hlo, hlo_custom_calls
from lowering.context import LoweringContext
from lowering.dtypes import real_dtype, spec_of
from lowering.mlir import ir, stablehlo
from lowering.ops import matrices
from lowering.ops.complex_numbers import conjugate
from lowering.ops.polar import polar_factors

_CPU = "cpu"
_TPU = "tpu"


def _is_cpu(ctx: LoweringContext) -> bool:
    return ctx.options.platform == _CPU


def _zeros(shape: tuple[int, ...], dtype: torch.dtype) -> ir.Value:
    return hlo.full(shape, dtype, 0)


def no_failure(matrix: ir.Value) -> ir.Value:
    """Return the info of matrices that cannot fail: zeros, one for each."""
    return _zeros(spec_of(matrix).shape[:-2], torch.int32)


def solve_triangular(
    ctx: LoweringContext,
    matrix: ir.Value,
    other: ir.Value,
    *,
    lower: bool,
    left: bool = True,
    unit: bool = False,
    transpose: str = "N",
) -> ir.Value:
    """Return x with op(matrix) @ x = other, or x @ op(matrix) = other; equal batch dims.

    One triangle of `matrix` is read; op takes the matrix as it is (N), transposed (T) or its
    adjoint (C).
    """
    if 0 in spec_of(other).shape:
        return other
    if _is_cpu(ctx):
        return hlo_custom_calls.trsm(
            matrix, other, left=left, lower=lower, transpose=transpose, unit=unit
        )
    kind = {"N": "NO_TRANSPOSE", "T": "TRANSPOSE", "C": "ADJOINT"}[transpose]
    return stablehlo.triangular_solve(
        matrix, other, left, lower, unit, stablehlo.TransposeAttr.get(kind)
    )


def cholesky(
    ctx: LoweringContext, matrix: ir.Value, *, lower: bool = True
) -> tuple[ir.Value, ir.Value]:
    """Return the Cholesky factor and info: the order of the first minor that is not positive.

    The given triangle is read and filled; the other one is zero. Without LAPACK a failed factor
    is NaN from some column on, at or before the failing one, and info is that column's number.
    """
    if 0 in spec_of(matrix).shape:
        return matrix, no_failure(matrix)
    if _is_cpu(ctx):
        factor, info = hlo_custom_calls.potrf(matrix, lower=lower)
        return matrices.triangle(factor, lower=lower), info
    factor = matrices.triangle(stablehlo.cholesky(matrix, lower=lower), lower=lower)
    return factor, matrices.first_marked(hlo.is_nan(matrices.diagonal(factor)))


def lu(ctx: LoweringContext, matrix: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Return L (unit diagonal left out) and U in one matrix, pivots and info.

    The pivots are LAPACK's: row i was swapped with row pivots[i], counted from 1. Info is the
    position, from 1, of the first zero on U's diagonal, or 0.
    """
    spec = spec_of(matrix)
    if 0 in spec.shape:
        pivots = _zeros((*spec.shape[:-2], min(spec.shape[-2:])), torch.int32)
        return matrix, pivots, no_failure(matrix)
    if _is_cpu(ctx):
        return hlo_custom_calls.getrf(matrix)
    if ctx.options.platform != _TPU:
        raise ctx.unsupported(f"XLA on {ctx.options.platform!r} has no LU decomposition")
    factors, pivots = hlo_custom_calls.xla_lu(matrix)
    main = matrices.diagonal(factors)
    info = matrices.first_marked(hlo.compare(main, hlo.full_like(main, 0), "EQ"))
    return factors, stablehlo.add(pivots, hlo.full_like(pivots, 1)), info


def row_order(pivots: ir.Value, row_count: int, *, inverse: bool = False) -> ir.Value:
    """Return the order of rows, `[..., rows]` i32 from 0, that LAPACK's pivots stand for.

    Rows taken in this order are L @ U; the inverse order puts the rows of L @ U back.
    """
    *batch, count = spec_of(pivots).shape
    order = hlo.iota((*batch, row_count), len(batch))
    if 0 in (*batch, count):
        return order
    place = hlo.iota((*batch, row_count), len(batch))
    last = len(batch)

    def unfinished(step: ir.Value, _: ir.Value) -> ir.Value:
        return hlo.compare(step, hlo.scalar(count, torch.int32), "LT")

    def swap(step: ir.Value, order: ir.Value) -> list[ir.Value]:
        """Exchange the entries `row` and `pivots[row] - 1`."""
        row = stablehlo.subtract(hlo.scalar(count - 1, torch.int32), step) if inverse else step
        other = hlo.dynamic_index(pivots, row, last)
        other = stablehlo.subtract(other, hlo.full_like(other, 1))
        at_row = hlo.compare(place, hlo.broadcast_to(row, spec_of(place).shape), "EQ")
        at_other = hlo.compare(place, matrices.spread(other, row_count), "EQ")
        in_row = hlo.dynamic_index(order, row, last)
        nothing = hlo.full_like(order, 0)
        in_other = hlo.reduce_sum(hlo.select(at_other, order, nothing), [last])
        order = hlo.select(at_other, matrices.spread(in_row, row_count), order)
        order = hlo.select(at_row, matrices.spread(in_other, row_count), order)
        return [stablehlo.add(step, hlo.scalar(1, torch.int32)), order]

    return hlo.while_loop(unfinished, swap, [hlo.scalar(0, torch.int32), order])[1]


def qr(ctx: LoweringContext, matrix: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return R above the Householder vectors, and their factors tau (LAPACK's geqrf)."""
    spec = spec_of(matrix)
    if 0 in spec.shape:
        return matrix, _zeros((*spec.shape[:-2], min(spec.shape[-2:])), spec.dtype)
    return hlo_custom_calls.geqrf(matrix) if _is_cpu(ctx) else hlo_custom_calls.xla_qr(matrix)


def householder_product(ctx: LoweringContext, packed: ir.Value, taus: ir.Value) -> ir.Value:
    """Return the first columns of H_1 @ H_2 @ ..., as many as `packed` has.

    H_i is the reflection by the vector below the diagonal of column i with the factor tau_i.
    """
    shape = spec_of(packed).shape
    if 0 in shape:
        return packed
    if spec_of(taus).shape[-1] == 0:
        return matrices.identity(shape, spec_of(packed).dtype)
    if _is_cpu(ctx):
        return hlo_custom_calls.orgqr(packed, taus)
    return hlo_custom_calls.xla_product_of_reflectors(packed, taus)


def eigh(
    ctx: LoweringContext, matrix: ir.Value, *, lower: bool, vectors: bool = True
) -> tuple[ir.Value, ir.Value]:
    """Return ascending eigenvalues and eigenvectors of what one triangle of `matrix` stands for.

    Without `vectors`, these are garbage.
    """
    spec = spec_of(matrix)
    if 0 in spec.shape:
        return _zeros(spec.shape[:-1], real_dtype(spec.dtype)), matrix
    if not _is_cpu(ctx):
        scaled, scale = matrices.normalized(matrices.mirrored(matrix, lower=lower))
        values, basis = hlo_custom_calls.xla_eigh(scaled, lower=True)
        return stablehlo.multiply(values, matrices.spread(scale, spec.shape[-1])), basis
    values, basis, info = hlo_custom_calls.syevd(matrix, lower=lower, vectors=vectors)
    return matrices.unless_failed(values, info), matrices.unless_failed(basis, info)


def svd(
    ctx: LoweringContext, matrix: ir.Value, *, full: bool, vectors: bool = True
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Return U, descending singular values, and V's adjoint; U and V square if `full`.

    Without `vectors`, U and V are garbage.
    """
    *batch, row_count, column_count = spec_of(matrix).shape
    dtype = spec_of(matrix).dtype
    rank = min(row_count, column_count)
    if 0 in spec_of(matrix).shape:
        left, right = (row_count, column_count) if full else (rank, rank)
        return (
            matrices.identity((*batch, row_count, left), dtype),
            _zeros((*batch, rank), real_dtype(dtype)),
            matrices.identity((*batch, right, column_count), dtype),
        )
    if _is_cpu(ctx):
        u, values, vh, info = hlo_custom_calls.gesdd(matrix, vectors=vectors, full=full)
        return tuple(matrices.unless_failed(part, info) for part in (u, values, vh))  # type: ignore[return-value]
    if row_count < column_count:
        v, values, uh = svd(ctx, matrices.adjoint(matrix), full=full, vectors=vectors)
        return matrices.adjoint(uh), values, matrices.adjoint(v)
    return _tall_svd(ctx, matrix, full=full)


def _tall_svd(
    ctx: LoweringContext, matrix: ir.Value, *, full: bool
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Return the decomposition of a matrix with no more columns than rows.

    QR leaves the square R; R = W H with W unitary and H positive semi-definite; the eigenvectors
    V of H are the right singular vectors, and Q W V the left ones. Backward stable (Nakatsukasa
    and Higham, SIAM Journal on Scientific Computing, 2013).
    """
    *_, row_count, column_count = spec_of(matrix).shape
    scaled, scale = matrices.normalized(matrix)
    packed, taus = qr(ctx, scaled)
    upper = matrices.triangle(matrices.rows(packed, column_count), lower=False)
    unitary, positive = polar_factors(ctx, upper)
    values, basis = eigh(ctx, positive, lower=True)
    # Ascending becomes descending; what rounding made negative is zero.
    values = stablehlo.reverse(values, [spec_of(values).rank - 1])
    basis = stablehlo.reverse(basis, [spec_of(basis).rank - 1])
    values = stablehlo.maximum(values, hlo.full_like(values, 0))
    values = stablehlo.multiply(values, matrices.spread(scale, column_count))
    left = _orthonormal(ctx, matrices.product(ctx, unitary, basis))
    width = row_count if full else column_count
    q = householder_product(ctx, matrices.grown(packed, row_count, width), taus)
    if width > column_count:
        left = matrices.grown(left, width, width)
        beyond = hlo.iota(spec_of(left).shape, spec_of(left).rank - 1)
        beyond = hlo.compare(beyond, hlo.full_like(beyond, column_count), "GE")
        ones = matrices.identity(spec_of(left).shape, spec_of(left).dtype)
        left = hlo.select(beyond, ones, left)
    return matrices.product(ctx, q, left), values, matrices.adjoint(basis)


def _orthonormal(ctx: LoweringContext, basis: ir.Value) -> ir.Value:
    """Return the columns made orthonormal, each kept in its direction.

    A singular matrix leaves columns of its unitary factor undetermined; QR fills them in.
    """
    packed, taus = qr(ctx, basis)
    q = householder_product(ctx, packed, taus)
    main = matrices.diagonal(packed)
    size = hlo.convert(stablehlo.abs(main), spec_of(main).dtype)
    zero = hlo.compare(size, hlo.full_like(size, 0), "EQ")
    one = hlo.full_like(size, 1)
    phase = hlo.select(zero, one, stablehlo.divide(main, hlo.select(zero, one, size)))
    return matrices.scale_columns(q, phase)


def eig(
    ctx: LoweringContext, matrix: ir.Value, *, vectors: bool = True
) -> tuple[ir.Value, ir.Value]:
    """Return complex eigenvalues and right eigenvectors of general square matrices."""
    spec = spec_of(matrix)
    dtype = spec.dtype.to_complex()
    if 0 in spec.shape:
        return _zeros(spec.shape[:-1], dtype), _zeros(spec.shape, dtype)
    if not _is_cpu(ctx):
        raise ctx.unsupported(
            f"XLA on {ctx.options.platform!r} has no eigenvalues of general matrices"
        )
    values, basis, info = hlo_custom_calls.geev(matrix, vectors=vectors)
    return matrices.unless_failed(values, info), matrices.unless_failed(basis, info)


def apply_householder(
    ctx: LoweringContext,
    packed: ir.Value,
    taus: ir.Value,
    other: ir.Value,
    *,
    left: bool,
    transpose: bool,
) -> ir.Value:
    """Return Q @ other or other @ Q (Q's adjoint if `transpose`) for the whole, square Q."""
    if 0 in spec_of(other).shape or spec_of(taus).shape[-1] == 0:
        return other
    packed = matrices.columns(packed, spec_of(taus).shape[-1])
    if _is_cpu(ctx):
        return hlo_custom_calls.ormqr(packed, taus, other, left=left, transpose=transpose)
    row_count = spec_of(packed).shape[-2]
    q = householder_product(ctx, matrices.grown(packed, row_count, row_count), taus)
    q = conjugate(matrices.transpose(q)) if transpose else q
    return matrices.product(ctx, q, other) if left else matrices.product(ctx, other, q)
