"""Triangular systems."""

from __future__ import annotations

import torch

from lowering.bucketing.matrices import of_matrices, side
from lowering.context import LoweringContext
from lowering.mlir import ir
from lowering.ops import factorizations, matrices
from lowering.registry import lowering

aten = torch.ops.aten


@lowering(aten.linalg_solve_triangular.default, padding=of_matrices(self="square", B=side))
def linalg_solve_triangular(
    ctx: LoweringContext,
    matrix: ir.Value,
    other: ir.Value,
    *,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
) -> ir.Value:
    """The x of matrix @ x = other (or x @ matrix = other); batch dims broadcast.

    The other triangle, and the diagonal of a unitriangular matrix, are not read. A zero on the
    diagonal gives infinities and NaN, as in eager.
    """
    matrix, other = matrices.broadcast_batches(matrix, other)
    return factorizations.solve_triangular(
        ctx, matrix, other, lower=not upper, left=left, unit=unitriangular
    )


@lowering(aten.triangular_solve.default, padding=of_matrices(A="square", self="rows"))
def triangular_solve(
    ctx: LoweringContext,
    other: ir.Value,
    matrix: ir.Value,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> tuple[ir.Value, ir.Value]:
    """The x of op(matrix) @ x = other, and a copy of `matrix`, both with broadcast batch dims."""
    matrix, other = matrices.broadcast_batches(matrix, other)
    solution = factorizations.solve_triangular(
        ctx,
        matrix,
        other,
        lower=not upper,
        transpose="T" if transpose else "N",
        unit=unitriangular,
    )
    return solution, matrix
