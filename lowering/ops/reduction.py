"""Sums, means, products, norms and truth over dims, and the moments (variance) built from them.

Maxima, minima and their positions are in `extremes`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from lowering import hlo
from lowering.bucketing.moments import RealCount, deviates, measures, measures_distance, unnoticed
from lowering.bucketing.rules import averages, reduces
from lowering.context import LoweringContext
from lowering.dtypes import missing_on, opmath_dtype, real_dtype, spec_of
from lowering.mlir import ir, stablehlo
from lowering.ops.complex_numbers import conjugate
from lowering.registry import lowering

aten = torch.ops.aten

Dims = Sequence[int] | int | None


def finish(ctx: LoweringContext, reduced: ir.Value, index: int = 0) -> ir.Value:
    """Return a reduced value in the shape (`keepdim`) and dtype of result `index`."""
    result = ctx.results[index]
    assert result is not None
    return hlo.convert(hlo.reshape(reduced, result.shape), result.dtype)


def element_count(operand: ir.Value, dims: Sequence[int]) -> int:
    """Return how many elements a reduction over `dims` takes together."""
    shape = spec_of(operand).shape
    return math.prod(shape[dim] for dim in dims)


# --- sums and products -------------------------------------------------------------------------


@lowering(aten.sum.dim_IntList, padding=reduces(0))
def sum_(
    ctx: LoweringContext,
    operand: ir.Value,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> ir.Value:
    """The sum over `dim` (all dims if None or empty); integers and bools are summed in int64."""
    operand = hlo.convert(operand, opmath_dtype(ctx.result.dtype))
    dims = hlo.canonical_dims(dim, spec_of(operand).rank)
    return finish(ctx, hlo.reduce_sum(operand, dims))


@lowering(aten.hash_tensor.default, padding=reduces(0))
def hash_tensor(
    ctx: LoweringContext,
    operand: ir.Value,
    dim: Dims = None,
    *,
    keepdim: bool = False,
    mode: int = 0,
) -> ir.Value:
    """The bits over `dim`, exclusive-ored: of floats as float64, of integers as int64."""
    spec = spec_of(operand)
    if spec.dtype.is_floating_point:
        if torch.float64 in missing_on(ctx.options.platform):
            raise ctx.unsupported("it reads the bits of float64, which the platform has not")
        bits = hlo.bitcast(hlo.convert(operand, torch.float64), torch.uint64)
    else:
        bits = hlo.convert(operand, torch.uint64)
    return finish(ctx, hlo.reduce(bits, hlo.canonical_dims(dim, spec.rank), 0, stablehlo.xor))


@lowering(aten.mean.default, padding=averages)
def mean(ctx: LoweringContext, operand: ir.Value, *, dtype: torch.dtype | None = None) -> ir.Value:
    """The mean of all elements; NaN if there are none."""
    return mean_dim(ctx, operand)


@lowering(aten.mean.dim, padding=averages)
def mean_dim(
    ctx: LoweringContext,
    operand: ir.Value,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> ir.Value:
    """The mean over `dim` (all dims if None or empty), float16 and bfloat16 summed in float32."""
    operand = hlo.convert(operand, opmath_dtype(ctx.result.dtype))
    dims = hlo.canonical_dims(dim, spec_of(operand).rank)
    return finish(ctx, mean_over(operand, dims))


def mean_over(operand: ir.Value, dims: Sequence[int]) -> ir.Value:
    """Return the mean over `dims`, in the operand's dtype; NaN where there is nothing."""
    total = hlo.reduce_sum(operand, dims)
    return stablehlo.divide(total, hlo.full_like(total, element_count(operand, dims)))


@lowering(aten.prod.default, padding=reduces(1))
def prod(ctx: LoweringContext, operand: ir.Value, *, dtype: torch.dtype | None = None) -> ir.Value:
    """The product of all elements; integers and bools are multiplied in int64."""
    operand = hlo.convert(operand, opmath_dtype(ctx.result.dtype))
    rank = spec_of(operand).rank
    return finish(ctx, hlo.reduce(operand, range(rank), 1, stablehlo.multiply))


@lowering(aten.prod.dim_int, padding=reduces(1))
def prod_dim(
    ctx: LoweringContext,
    operand: ir.Value,
    dim: int,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> ir.Value:
    """The product over one dim; integers and bools are multiplied in int64."""
    operand = hlo.convert(operand, opmath_dtype(ctx.result.dtype))
    dims = hlo.canonical_dims(dim, spec_of(operand).rank)
    return finish(ctx, hlo.reduce(operand, dims, 1, stablehlo.multiply))


# --- truth -------------------------------------------------------------------------------------


@lowering(aten.any.default, aten.any.dim, padding=reduces(0))
def any_(
    ctx: LoweringContext, operand: ir.Value, dim: Dims = None, keepdim: bool = False
) -> ir.Value:
    """Whether an element is nonzero (NaN is); bool, or uint8 for a uint8 operand."""
    truth = hlo.convert(operand, torch.bool)
    dims = hlo.canonical_dims(dim, spec_of(operand).rank)
    return finish(ctx, hlo.reduce(truth, dims, False, stablehlo.or_))


@lowering(aten.any.dims, padding=reduces(0))
def any_dims(
    ctx: LoweringContext, operand: ir.Value, dim: Dims = None, keepdim: bool = False
) -> ir.Value:
    """Whether an element is nonzero; an empty list of dims reduces none of them."""
    if isinstance(dim, Sequence) and not dim:
        return finish(ctx, hlo.convert(operand, torch.bool))
    return any_(ctx, operand, dim)


# --- moments -----------------------------------------------------------------------------------


def _moments(
    operand: ir.Value, dim: Dims, correction: hlo.Scalar | None, real: RealCount | None
) -> tuple[ir.Value, ir.Value]:
    """Return variance (real) and mean over `dim`, in two passes, in the operand's dtype.

    `correction` is taken off the count (of the `real` elements); without one it is 1. What remains
    of the count is never below 0, so too few elements give NaN or inf.
    """
    spec = spec_of(operand)
    dims = hlo.canonical_dims(dim, spec.rank)
    kept = [position for position in range(spec.rank) if position not in dims]
    if real is None:
        mean = mean_over(operand, dims)
    else:
        total = hlo.reduce_sum(real.hidden(operand), dims)
        mean = stablehlo.divide(total, real.number(total))
    deviation = stablehlo.subtract(operand, hlo.broadcast_in_dim(mean, spec.shape, kept))
    if real is not None:
        deviation = real.hidden(deviation)
    square = stablehlo.multiply(deviation, conjugate(deviation))
    total = hlo.reduce_sum(hlo.convert(square, real_dtype(spec.dtype)), dims)
    correction = 1 if correction is None else correction
    if real is None:
        count = hlo.full_like(total, max(element_count(operand, dims) - float(correction.real), 0))
    else:
        count = real.number(total)
        count = stablehlo.subtract(count, hlo.full_like(count, float(correction.real)))
        count = stablehlo.maximum(count, hlo.full_like(count, 0))
    return stablehlo.divide(total, count), mean


@lowering(aten.var.correction, padding=deviates)
def var(
    ctx: LoweringContext,
    operand: ir.Value,
    dim: Dims = None,
    *,
    correction: hlo.Scalar | None = None,
    keepdim: bool = False,
    real: RealCount | None = None,
) -> ir.Value:
    """The variance over `dim` (all dims if None or empty); real for complex operands too."""
    operand = hlo.convert(operand, opmath_dtype(spec_of(operand).dtype))
    return finish(ctx, _moments(operand, dim, correction, real)[0])


@lowering(aten.var_mean.correction, padding=deviates)
def var_mean(
    ctx: LoweringContext,
    operand: ir.Value,
    dim: Dims = None,
    *,
    correction: hlo.Scalar | None = None,
    keepdim: bool = False,
    real: RealCount | None = None,
) -> tuple[ir.Value, ir.Value]:
    """Variance and mean over `dim` (all dims if None or empty)."""
    operand = hlo.convert(operand, opmath_dtype(spec_of(operand).dtype))
    variance, mean = _moments(operand, dim, correction, real)
    return finish(ctx, variance, 0), finish(ctx, mean, 1)


@lowering(aten.linalg_vector_norm.default, padding=measures)
def linalg_vector_norm(
    ctx: LoweringContext,
    operand: ir.Value,
    order: hlo.Scalar = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> ir.Value:
    """(sum of |x|**order) ** (1/order) over `dim`; inf and -inf are extremes, 0 counts nonzeros.

    Narrow floats are computed in float32; `dtype` casts the operand first.
    """
    inner = spec_of(operand).dtype if dtype is None else dtype
    magnitude = stablehlo.abs(hlo.convert(operand, opmath_dtype(inner)))
    dims = hlo.canonical_dims(dim, spec_of(operand).rank)
    return finish(ctx, _norm(magnitude, float(order), dims))  # type: ignore[arg-type]


@lowering(aten.dist.default, padding=measures_distance)
def dist(
    ctx: LoweringContext,
    operand: ir.Value,
    other: ir.Value,
    order: hlo.Scalar = 2,
    real: RealCount | None = None,
) -> ir.Value:
    """The vector norm of the difference of two broadcast tensors."""
    dtype = opmath_dtype(ctx.promoted_dtype(0, 1))
    difference = stablehlo.subtract(
        *hlo.broadcast(hlo.convert(operand, dtype), hlo.convert(other, dtype))
    )
    magnitude = stablehlo.abs(difference)
    if real is not None:
        magnitude = real.hidden(magnitude, unnoticed(order))
    dims = range(spec_of(magnitude).rank)
    return finish(ctx, _norm(magnitude, float(order), dims))  # type: ignore[arg-type]


def _norm(magnitude: ir.Value, order: float, dims: Sequence[int]) -> ir.Value:
    dtype = spec_of(magnitude).dtype
    if order == math.inf:
        return hlo.reduce(magnitude, dims, 0, stablehlo.maximum)
    if order == -math.inf:
        return hlo.reduce(magnitude, dims, math.inf, stablehlo.minimum)
    if order == 0:
        return hlo.reduce_sum(hlo.convert(hlo.convert(magnitude, torch.bool), dtype), dims)
    if order == 1:
        return hlo.reduce_sum(magnitude, dims)
    if order == 2:
        return stablehlo.sqrt(hlo.reduce_sum(stablehlo.multiply(magnitude, magnitude), dims))
    power = stablehlo.power(magnitude, hlo.full_like(magnitude, order))
    total = hlo.reduce_sum(power, dims)
    return stablehlo.power(total, hlo.full_like(total, 1 / order))
