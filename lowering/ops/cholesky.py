"""Cholesky factors, and systems solved with them. One triangle of an input is read, as in eager."""

from __future__ import annotations

import torch

from lowering.bucketing.matrices import of_matrices
from lowering.context import LoweringContext
from lowering.dtypes import spec_of
from lowering.mlir import ir
from lowering.ops import factorizations, matrices
from lowering.registry import lowering

aten = torch.ops.aten


@lowering(aten.linalg_cholesky_ex.default, padding=of_matrices(self="square"))
def linalg_cholesky_ex(
    ctx: LoweringContext, matrix: ir.Value, *, upper: bool = False, check_errors: bool = False
) -> tuple[ir.Value, ir.Value]:
    """The factor and LAPACK's info; `check_errors` has no effect (a program cannot raise)."""
    return factorizations.cholesky(ctx, matrix, lower=not upper)


@lowering(aten.cholesky.default, padding=of_matrices(self="square"))
def cholesky(ctx: LoweringContext, matrix: ir.Value, upper: bool = False) -> ir.Value:
    """The factor; NaN where eager raises because the matrix is not positive definite."""
    factor, info = factorizations.cholesky(ctx, matrix, lower=not upper)
    return matrices.unless_failed(factor, info)


@lowering(aten.cholesky_solve.default, padding=of_matrices(input2="square", self="rows"))
def cholesky_solve(
    ctx: LoweringContext, other: ir.Value, factor: ir.Value, upper: bool = False
) -> ir.Value:
    """The solution x of A @ x = other, given A's factor; batch dims broadcast."""
    factor, other = matrices.broadcast_batches(factor, other)
    return _solve(ctx, factor, other, upper)


def _solve(ctx: LoweringContext, factor: ir.Value, other: ir.Value, upper: bool) -> ir.Value:
    for transpose in ("C", "N") if upper else ("N", "C"):
        other = factorizations.solve_triangular(
            ctx, factor, other, lower=not upper, transpose=transpose
        )
    return other


@lowering(aten.cholesky_inverse.default, padding=of_matrices(self="square"))
def cholesky_inverse(ctx: LoweringContext, factor: ir.Value, upper: bool = False) -> ir.Value:
    """The inverse of A, given A's factor: self-adjoint to the last bit."""
    spec = spec_of(factor)
    if 0 in spec.shape:
        return factor
    identity = matrices.identity(spec.shape, spec.dtype)
    inverse = factorizations.solve_triangular(ctx, factor, identity, lower=not upper)
    pair = (inverse, matrices.adjoint(inverse))
    left, right = pair if upper else reversed(pair)
    return matrices.mirrored(matrices.product(ctx, left, right), lower=True)
