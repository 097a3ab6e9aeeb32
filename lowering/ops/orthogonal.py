"""QR decompositions and products of Householder reflections."""

from __future__ import annotations

import torch

from lowering.bucketing.matrices import of_matrices
from lowering.context import LoweringContext
from lowering.dtypes import spec_of
from lowering.mlir import ir
from lowering.ops import factorizations, matrices
from lowering.ops.normalization import empty_result
from lowering.registry import lowering

aten = torch.ops.aten


@lowering(aten.linalg_qr.default, padding=of_matrices(A="matrix"))
def linalg_qr(
    ctx: LoweringContext, matrix: ir.Value, mode: str = "reduced"
) -> tuple[ir.Value, ir.Value]:
    """Q and R; Q is square for `mode="complete"` and empty for `mode="r"`."""
    *_, row_count, column_count = spec_of(matrix).shape
    rank = min(row_count, column_count)
    packed, taus = factorizations.qr(ctx, matrix)
    width = row_count if mode == "complete" else rank
    upper = matrices.triangle(matrices.rows(packed, width), lower=False)
    if mode == "r":
        return empty_result(ctx, 0), upper
    vectors = matrices.grown(matrices.columns(packed, rank), row_count, width)
    return factorizations.householder_product(ctx, vectors, taus), upper


@lowering(aten.geqrf.default, padding=of_matrices(self="matrix"))
def geqrf(ctx: LoweringContext, matrix: ir.Value) -> tuple[ir.Value, ir.Value]:
    """R above the Householder vectors, and their factors tau."""
    return factorizations.qr(ctx, matrix)


@lowering(
    aten.linalg_householder_product.default, padding=of_matrices(input="matrix", tau="vector")
)
def linalg_householder_product(ctx: LoweringContext, packed: ir.Value, taus: ir.Value) -> ir.Value:
    """The first columns of the product of the reflections, as many as `packed` has."""
    return factorizations.householder_product(ctx, packed, taus)


@lowering(aten.ormqr.default, padding=of_matrices(self="matrix", input2="vector", input3="matrix"))
def ormqr(
    ctx: LoweringContext,
    packed: ir.Value,
    taus: ir.Value,
    other: ir.Value,
    left: bool = True,
    transpose: bool = False,
) -> ir.Value:
    """Q @ other or other @ Q, Q the whole product of the reflections or its adjoint."""
    return factorizations.apply_householder(
        ctx, packed, taus, other, left=left, transpose=transpose
    )
