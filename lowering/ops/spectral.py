"""Eigenvalues, singular values, and the pseudo-inverse that they give.

Eigenvectors and singular vectors are those of the platform's routine: another one than eager's may
choose other signs. An iteration that does not converge gives NaN where eager raises.
"""

from __future__ import annotations

import torch

from lowering import hlo
from lowering.bucketing.batches import batched
from lowering.bucketing.matrices import pseudo_inverse, self_adjoint, singular_values
from lowering.context import LoweringContext
from lowering.dtypes import spec_of
from lowering.mlir import ir, stablehlo
from lowering.ops import factorizations, matrices
from lowering.ops.normalization import empty_result
from lowering.registry import lowering

aten = torch.ops.aten


@lowering(aten._linalg_eigh.default, padding=self_adjoint)
def linalg_eigh(
    ctx: LoweringContext, matrix: ir.Value, UPLO: str = "L", compute_v: bool = True
) -> tuple[ir.Value, ir.Value]:
    """Ascending eigenvalues and eigenvectors; the triangle `UPLO` of the matrix is read."""
    values, basis = factorizations.eigh(ctx, matrix, lower=UPLO.upper() == "L", vectors=compute_v)
    return values, basis if compute_v else empty_result(ctx, 1)


@lowering(aten._linalg_svd.default, padding=singular_values)
def linalg_svd(
    ctx: LoweringContext,
    matrix: ir.Value,
    full_matrices: bool = False,
    compute_uv: bool = True,
    *,
    driver: str | None = None,
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """U, descending singular values, and V's adjoint."""
    u, values, vh = factorizations.svd(ctx, matrix, full=full_matrices, vectors=compute_uv)
    if not compute_uv:
        return empty_result(ctx, 0), values, empty_result(ctx, 2)
    return u, values, vh


@lowering(aten.linalg_eig.default, padding=batched(self=2))
def linalg_eig(ctx: LoweringContext, matrix: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Complex eigenvalues and eigenvectors, in the order of LAPACK's geev."""
    return factorizations.eig(ctx, matrix)


@lowering(aten._linalg_eigvals.default, padding=batched(self=2))
def linalg_eigvals(ctx: LoweringContext, matrix: ir.Value) -> ir.Value:
    """Complex eigenvalues."""
    return factorizations.eig(ctx, matrix, vectors=False)[0]


@lowering(aten.linalg_pinv.atol_rtol_tensor, padding=pseudo_inverse)
def linalg_pinv(
    ctx: LoweringContext,
    matrix: ir.Value,
    *,
    atol: ir.Value | None = None,
    rtol: ir.Value | None = None,
    hermitian: bool = False,
) -> ir.Value:
    """The pseudo-inverse: singular values up to max(atol, rtol * largest) count as zero.

    `rtol` defaults to epsilon times the larger side, and to 0 where an `atol` above 0 is given.
    """
    spec = spec_of(matrix)
    if 0 in spec.shape:
        return hlo.full(ctx.result.shape, ctx.result.dtype, 0)
    if hermitian:
        signed, basis = factorizations.eigh(ctx, matrix, lower=True)
        left, right = basis, matrices.adjoint(basis)
        values: ir.Value = stablehlo.abs(signed)
    else:
        u, values, vh = factorizations.svd(ctx, matrix, full=False)
        signed, left, right = values, matrices.adjoint(vh), matrices.adjoint(u)
    limit = _limit(values, atol, rtol, max(spec.shape[-2:]))
    kept = hlo.compare(values, limit, "GT")
    one = hlo.full_like(signed, 1)
    inverse: ir.Value = stablehlo.divide(one, hlo.select(kept, signed, one))
    inverse = hlo.select(kept, inverse, hlo.full_like(inverse, 0))
    return matrices.product(ctx, matrices.scale_columns(left, inverse), right)


def _limit(
    values: ir.Value, atol: ir.Value | None, rtol: ir.Value | None, longer_side: int
) -> ir.Value:
    """Return, in the shape of `values`, the largest value that counts as zero."""
    spec = spec_of(values)
    batch = spec.shape[:-1]
    default = hlo.full(batch, spec.dtype, longer_side * torch.finfo(spec.dtype).eps)
    absolute = (
        hlo.full(batch, spec.dtype, 0)
        if atol is None
        else hlo.broadcast_to(hlo.convert(atol, spec.dtype), batch)
    )
    if rtol is not None:
        relative = hlo.broadcast_to(hlo.convert(rtol, spec.dtype), batch)
    else:
        zero = hlo.full_like(default, 0)
        relative = hlo.select(hlo.compare(absolute, zero, "GT"), zero, default)
    largest = hlo.reduce_max(values, [len(batch)])
    limit = stablehlo.maximum(absolute, stablehlo.multiply(relative, largest))
    return hlo.broadcast_in_dim(limit, spec.shape, range(len(batch)))
