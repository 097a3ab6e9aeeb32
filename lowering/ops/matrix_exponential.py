"""The exponential of matrices: a Taylor polynomial of the scaled matrix, squared again.

Scaling and squaring as in Higham, "Functions of Matrices" (2008), section 10.3, with the polynomial
evaluated by Paterson and Stockmeyer's method in seven products.
"""

from __future__ import annotations

import math

import torch

from lowering import hlo
from lowering.bucketing.matrices import of_matrices
from lowering.context import LoweringContext
from lowering.dtypes import opmath_dtype, real_dtype, spec_of
from lowering.mlir import ir, stablehlo
from lowering.ops import matrices
from lowering.registry import lowering

aten = torch.ops.aten

_BLOCK = 4
_BLOCKS = 5
# The degree is 19. Up to these 1-norms the rest of the series is below the dtype's epsilon.
_LARGEST_NORM = {torch.float32: 3.0, torch.float64: 1.0}


@lowering(aten.linalg_matrix_exp.default, padding=of_matrices(self="matrix"))
def linalg_matrix_exp(ctx: LoweringContext, matrix: ir.Value) -> ir.Value:
    """e to the power of square matrices, each scaled by its own power of two."""
    spec = spec_of(matrix)
    if 0 in spec.shape:
        return matrix
    dtype = opmath_dtype(spec.dtype)
    matrix = hlo.convert(matrix, dtype)
    squarings = _squarings(matrix)
    down = hlo.convert(stablehlo.negate(squarings), real_dtype(dtype))
    factor = stablehlo.power(hlo.full_like(down, 2), down)
    scaled = stablehlo.multiply(matrix, _of_each(hlo.convert(factor, dtype), matrix))
    result = _squared(ctx, _taylor(ctx, scaled), squarings)
    return hlo.convert(result, spec.dtype)


def _of_each(number: ir.Value, matrix: ir.Value) -> ir.Value:
    """Return a number a matrix, spread over the matrix."""
    shape = spec_of(matrix).shape
    return hlo.broadcast_in_dim(number, shape, range(len(shape) - 2))


def _squarings(matrix: ir.Value) -> ir.Value:
    """Return how often each matrix is halved until the series is short (i32)."""
    size = stablehlo.abs(matrix)
    spec = spec_of(size)
    columns = hlo.reduce_sum(size, [spec.rank - 2])
    norm = hlo.reduce_max(columns, [spec.rank - 2])
    ratio = stablehlo.divide(norm, hlo.full_like(norm, _LARGEST_NORM[spec.dtype]))
    exponent: ir.Value = stablehlo.multiply(
        stablehlo.log(ratio), hlo.full_like(ratio, 1 / math.log(2))
    )
    exponent = stablehlo.ceil(exponent)
    # Neither infinity nor NaN is a number of squarings; the result is not finite without them.
    usable = stablehlo.is_finite(exponent)
    exponent = hlo.select(usable, exponent, hlo.full_like(exponent, 0))
    most = int(-math.log2(torch.finfo(spec.dtype).tiny))
    count = hlo.convert(exponent, torch.int32)
    return stablehlo.clamp(hlo.scalar(0, torch.int32), count, hlo.scalar(most, torch.int32))


def _taylor(ctx: LoweringContext, matrix: ir.Value) -> ir.Value:
    """Return the sum of matrix ** i / i! up to the degree."""
    spec = spec_of(matrix)
    powers = [matrices.identity(spec.shape, spec.dtype), matrix]
    while len(powers) <= _BLOCK:
        powers.append(matrices.product(ctx, powers[-1], matrix))
    total: ir.Value | None = None
    for block in reversed(range(_BLOCKS)):
        part: ir.Value | None = None
        for position in range(_BLOCK):
            power = powers[position]
            weight = 1 / math.factorial(block * _BLOCK + position)
            term = stablehlo.multiply(power, hlo.full_like(power, weight))
            part = term if part is None else stablehlo.add(part, term)
        assert part is not None
        if total is not None:
            part = stablehlo.add(matrices.product(ctx, total, powers[_BLOCK]), part)
        total = part
    assert total is not None
    return total


def _squared(ctx: LoweringContext, matrix: ir.Value, squarings: ir.Value) -> ir.Value:
    """Return each matrix squared as often as `squarings` says."""
    most = hlo.reduce(squarings, list(range(spec_of(squarings).rank)), 0, stablehlo.maximum)

    def unfinished(step: ir.Value, _: ir.Value) -> ir.Value:
        return hlo.compare(step, most, "LT")

    def square(step: ir.Value, current: ir.Value) -> list[ir.Value]:
        more = hlo.compare(hlo.broadcast_to(step, spec_of(squarings).shape), squarings, "LT")
        product = matrices.product(ctx, current, current)
        current = hlo.select(_of_each(more, current), product, current)
        return [stablehlo.add(step, hlo.scalar(1, torch.int32)), current]

    return hlo.while_loop(unfinished, square, [hlo.scalar(0, torch.int32), matrix])[1]
