"""Batched matrices `[..., rows, columns]`: the builders that the linear algebra rules share.

No rule is here, and no factorization (`lowering.ops.factorizations`).
"""

from __future__ import annotations

import torch

from lowering import hlo, hlo_indexing
from lowering.context import LoweringContext
from lowering.dtypes import spec_of
from lowering.mlir import ir, stablehlo
from lowering.ops.complex_numbers import conjugate
from lowering.ops.matmul import contract


def transpose(matrix: ir.Value) -> ir.Value:
    """Return the matrix with rows and columns swapped."""
    rank = spec_of(matrix).rank
    return hlo.transpose(matrix, [*range(rank - 2), rank - 1, rank - 2])


def adjoint(matrix: ir.Value) -> ir.Value:
    """Return the conjugate transpose."""
    return conjugate(transpose(matrix))


def product(ctx: LoweringContext, left: ir.Value, right: ir.Value) -> ir.Value:
    """Return left @ right, both with the same batch dims and dtype."""
    rank = spec_of(left).rank
    batch = list(range(rank - 2))
    return contract(ctx, left, right, ([rank - 1], [rank - 2]), (batch, batch))


def broadcast_batches(*matrices: ir.Value) -> list[ir.Value]:
    """Return the matrices with their batch dims broadcast to each other."""
    shapes = [spec_of(matrix).shape for matrix in matrices]
    batch = torch.broadcast_shapes(*(shape[:-2] for shape in shapes))
    return [
        hlo.broadcast_to(matrix, (*batch, *shape[-2:]))
        for matrix, shape in zip(matrices, shapes, strict=True)
    ]


def band(matrix: ir.Value, direction: str, offset: int = 0) -> ir.Value:
    """Return where `column - row <direction> offset` holds, as booleans of the matrix's shape."""
    shape = spec_of(matrix).shape
    rows = hlo.iota(shape, len(shape) - 2)
    columns = hlo.iota(shape, len(shape) - 1)
    return hlo.compare(
        columns, stablehlo.add(rows, hlo.full_like(rows, offset)) if offset else rows, direction
    )


def triangle(matrix: ir.Value, *, lower: bool, strict: bool = False) -> ir.Value:
    """Return one triangle, zero elsewhere; a strict one is without the diagonal."""
    direction = ("LT" if lower else "GT") if strict else ("LE" if lower else "GE")
    return hlo.select(band(matrix, direction), matrix, hlo.full_like(matrix, 0))


def mirrored(matrix: ir.Value, *, lower: bool) -> ir.Value:
    """Return the self-adjoint matrix that one triangle stands for; a real diagonal."""
    strict = triangle(matrix, lower=lower, strict=True)
    middle = matrix
    if spec_of(matrix).dtype.is_complex:
        middle = hlo.convert(stablehlo.real(matrix), spec_of(matrix).dtype)
    on_diagonal = band(matrix, "EQ")
    both = stablehlo.add(strict, adjoint(strict))
    return hlo.select(on_diagonal, middle, both)


def with_unit_diagonal(matrix: ir.Value) -> ir.Value:
    """Return the matrix with ones on its diagonal."""
    return hlo.select(band(matrix, "EQ"), hlo.full_like(matrix, 1), matrix)


def identity(shape: tuple[int, ...], dtype: torch.dtype) -> ir.Value:
    """Return ones on the diagonal of matrices of `shape`."""
    return with_unit_diagonal(hlo.full(shape, dtype, 0))


def diagonal(matrix: ir.Value) -> ir.Value:
    """Return the main diagonal, `[..., min(rows, columns)]`.

    The square block that it runs through, laid flat, holds it at every (length + 1)-th element.
    """
    *batch, row_count, column_count = spec_of(matrix).shape
    length = min(row_count, column_count)
    if length == 0:
        return hlo.full((*batch, 0), spec_of(matrix).dtype, 0)
    flat = hlo.reshape(columns(rows(matrix, length), length), (*batch, length * length))
    return hlo.slice_in_dim(flat, 0, length * length, length + 1, dim=len(batch))


def columns(matrix: ir.Value, count: int) -> ir.Value:
    """Return the first columns."""
    return hlo.slice_in_dim(matrix, 0, count, dim=spec_of(matrix).rank - 1)


def rows(matrix: ir.Value, count: int) -> ir.Value:
    """Return the first rows."""
    return hlo.slice_in_dim(matrix, 0, count, dim=spec_of(matrix).rank - 2)


def grown(matrix: ir.Value, row_count: int, column_count: int) -> ir.Value:
    """Return the matrix with zeros below and at the right, up to the counts given."""
    shape = spec_of(matrix).shape
    none = [0] * (len(shape) - 2)
    high = [*none, row_count - shape[-2], column_count - shape[-1]]
    return hlo.pad(matrix, [0] * len(shape), high)


def scale_columns(matrix: ir.Value, factors: ir.Value) -> ir.Value:
    """Return each column times its factor, `[..., columns]`."""
    spec = spec_of(matrix)
    wide = hlo.expand_dims(hlo.convert(factors, spec.dtype), [spec.rank - 2])
    return stablehlo.multiply(matrix, hlo.broadcast_to(wide, spec.shape))


def divided(matrix: ir.Value, scale: ir.Value) -> ir.Value:
    """Return each matrix divided by its own real number, or as it is where that is zero."""
    spec = spec_of(matrix)
    zero = hlo.compare(scale, hlo.full_like(scale, 0), "EQ")
    scale = hlo.convert(hlo.select(zero, hlo.full_like(scale, 1), scale), spec.dtype)
    return stablehlo.divide(matrix, hlo.broadcast_in_dim(scale, spec.shape, range(spec.rank - 2)))


def normalized(matrix: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return each matrix divided by its largest absolute entry, and these, real `[...]`.

    Squares of very small or large entries would leave the dtype's range.
    """
    rank = spec_of(matrix).rank
    scale = hlo.reduce(stablehlo.abs(matrix), [rank - 2, rank - 1], 0, stablehlo.maximum)
    return divided(matrix, scale), scale


def permute_rows(matrix: ir.Value, order: ir.Value) -> ir.Value:
    """Return the rows in the order `[..., rows]`, which broadcasts over the batch."""
    spec = spec_of(matrix)
    wide = hlo.expand_dims(order, [spec_of(order).rank])
    return hlo_indexing.take_along(matrix, hlo.broadcast_to(wide, spec.shape), spec.rank - 2)


def as_column(vector: ir.Value) -> ir.Value:
    """Return vectors `[..., rows]` as matrices with one column."""
    return hlo.expand_dims(vector, [spec_of(vector).rank])


def spread(operand: ir.Value, size: int) -> ir.Value:
    """Return `operand` repeated along a new last dim."""
    shape = spec_of(operand).shape
    return hlo.broadcast_in_dim(operand, (*shape, size), range(len(shape)))


def first_marked(marks: ir.Value) -> ir.Value:
    """Return, counted from 1, the first position of the last dim that is marked; 0 without any."""
    shape = spec_of(marks).shape
    number = stablehlo.add(hlo.iota(shape, len(shape) - 1), hlo.full(shape, torch.int32, 1))
    beyond = shape[-1] + 1
    marked = hlo.select(marks, number, hlo.full_like(number, beyond))
    first = hlo.reduce(marked, [len(shape) - 1], beyond, stablehlo.minimum)
    none = hlo.compare(first, hlo.full_like(first, beyond), "EQ")
    return hlo.select(none, hlo.full_like(first, 0), first)


def unless_failed(value: ir.Value, info: ir.Value) -> ir.Value:
    """Return `value`, or NaN for the matrices whose LAPACK info is not 0 (eager raises)."""
    spec = spec_of(value)
    failed = hlo.compare(info, hlo.full_like(info, 0), "NE")
    batch = spec_of(info).rank
    failed = hlo.broadcast_in_dim(failed, spec.shape, range(batch))
    nan = complex("nan+nanj") if spec.dtype.is_complex else float("nan")
    return hlo.select(failed, hlo.full_like(value, nan), value)
