"""Softmax, layer norm, group norm and weight norm.

Everything is computed in float32 for 16-bit floats. A variance is the mean of squared distances
from the mean (two passes), never a difference of moments. Batch norm is in `batch_norm`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from lowering import hlo
from lowering.bucketing.moments import RealCount
from lowering.bucketing.normalizations import (
    group_normalized,
    layer_normalized,
    softmaxed,
    weight_norm_backward,
)
from lowering.context import LoweringContext
from lowering.dtypes import TensorSpec, spec_of
from lowering.mlir import ir, stablehlo
from lowering.ops.matmul import accumulation_dtype
from lowering.registry import lowering

aten = torch.ops.aten

NormResults = tuple[ir.Value, ir.Value, ir.Value]


# --- softmax ---------------------------------------------------------------------------------


@lowering(aten._softmax.default, padding=softmaxed)
def softmax(ctx: LoweringContext, operand: ir.Value, dim: int, half_to_float: bool) -> ir.Value:
    """Return exp(x - max) / sum of exp(x - max) along `dim`; rows of -inf alone give NaN."""
    shifted, dim = _shifted(ctx, operand, dim)
    weights = stablehlo.exponential(shifted)
    total = hlo.reduce_sum(weights, [dim])
    return _unshifted(ctx, stablehlo.divide(weights, _along(total, weights, dim)))


@lowering(aten._log_softmax.default, padding=softmaxed)
def log_softmax(ctx: LoweringContext, operand: ir.Value, dim: int, half_to_float: bool) -> ir.Value:
    """Return x - max - log(sum of exp(x - max)) along `dim`; rows of -inf alone give NaN."""
    shifted, dim = _shifted(ctx, operand, dim)
    total = hlo.reduce_sum(stablehlo.exponential(shifted), [dim])
    return _unshifted(ctx, stablehlo.subtract(shifted, _along(stablehlo.log(total), shifted, dim)))


def _shifted(ctx: LoweringContext, operand: ir.Value, dim: int) -> tuple[ir.Value, int]:
    """Return `operand` less its maximum along `dim`, in the accumulation dtype, and that dim.

    A 0-d operand comes back as 1-d.
    """
    spec = spec_of(operand)
    wide = hlo.convert(operand, accumulation_dtype(spec.dtype))
    wide = hlo.reshape(wide, spec.shape or (1,))
    dim = hlo.canonical_dim(dim, spec.rank)
    largest = hlo.reduce_max(wide, [dim])
    return stablehlo.subtract(wide, _along(largest, wide, dim)), dim


def _unshifted(ctx: LoweringContext, wide: ir.Value) -> ir.Value:
    return hlo.convert(hlo.reshape(wide, ctx.result.shape), ctx.result.dtype)


def _along(reduced: ir.Value, operand: ir.Value, dim: int) -> ir.Value:
    """Return `reduced`, which lacks `dim`, broadcast to the shape of `operand`."""
    shape = spec_of(operand).shape
    return hlo.broadcast_in_dim(reduced, shape, [i for i in range(len(shape)) if i != dim])


# --- layer and group norm -----------------------------------------------------------------------


class Statistics(NamedTuple):
    """Mean and biased variance over some dims, their size, and the operand less its mean.

    The size is how many elements each was taken of; all but the last lack these dims.
    """

    mean: ir.Value
    variance: ir.Value
    size: ir.Value
    centered: ir.Value


def statistics(operand: ir.Value, dims: Sequence[int], real: RealCount | None = None) -> Statistics:
    """Return the statistics of `operand` (of its `real` elements) over `dims`.

    Over nothing the mean is 0 and the variance NaN, as in eager.
    """
    shape = spec_of(operand).shape
    count = math.prod(shape[dim] for dim in dims)
    kept = [dim for dim in range(len(shape)) if dim not in dims]
    total = hlo.reduce_sum(operand if real is None else real.hidden(operand), dims)
    size = hlo.full_like(total, count) if real is None else real.number(total)
    mean = stablehlo.divide(total, stablehlo.maximum(size, hlo.full_like(size, 1)))
    centered = stablehlo.subtract(operand, hlo.broadcast_in_dim(mean, shape, kept))
    if real is not None:
        centered = real.hidden(centered)
    squares = hlo.reduce_sum(stablehlo.multiply(centered, centered), dims)
    return Statistics(mean, stablehlo.divide(squares, size), size, centered)


def reciprocal_deviation(variance: ir.Value, epsilon: float) -> ir.Value:
    """Return 1 / sqrt(variance + epsilon)."""
    return stablehlo.rsqrt(stablehlo.add(variance, hlo.full_like(variance, epsilon)))


def scale_and_shift(
    operand: ir.Value, weight: ir.Value | None, bias: ir.Value | None, dims: Sequence[int]
) -> ir.Value:
    """Return operand * weight + bias, both lying along `dims` of `operand` or missing."""
    spec = spec_of(operand)
    if weight is not None:
        weight = hlo.convert(weight, spec.dtype)
        operand = stablehlo.multiply(operand, hlo.broadcast_in_dim(weight, spec.shape, dims))
    if bias is not None:
        bias = hlo.convert(bias, spec.dtype)
        operand = stablehlo.add(operand, hlo.broadcast_in_dim(bias, spec.shape, dims))
    return operand


def result_spec(ctx: LoweringContext, index: int) -> TensorSpec:
    """Return shape and dtype of result `index` of the node, which is a tensor."""
    spec = ctx.results[index]
    if spec is None:
        raise TypeError(f"result {index} of {ctx.node.target} is no tensor")
    return spec


def as_result(ctx: LoweringContext, index: int, value: ir.Value) -> ir.Value:
    """Return `value` in the shape and dtype of result `index` of the node."""
    spec = result_spec(ctx, index)
    return hlo.convert(hlo.reshape(value, spec.shape), spec.dtype)


def empty_result(ctx: LoweringContext, index: int) -> ir.Value:
    """Return result `index` of the node as zeros: an empty tensor that only fills a slot."""
    spec = result_spec(ctx, index)
    return hlo.full(spec.shape, spec.dtype, 0)


@lowering(aten.native_layer_norm.default, padding=layer_normalized)
def native_layer_norm(
    ctx: LoweringContext,
    operand: ir.Value,
    normalized_shape: Sequence[int],
    weight: ir.Value | None,
    bias: ir.Value | None,
    epsilon: float,
    real: RealCount | None = None,
) -> NormResults:
    """Operand normalized over its last dims, scaled and shifted; mean; 1 / deviation.

    The latter two keep the reduced dims as size 1.
    """
    spec = spec_of(operand)
    lead = spec.rank - len(normalized_shape)
    dims = list(range(lead, spec.rank))
    found = statistics(hlo.convert(operand, accumulation_dtype(spec.dtype)), dims, real)
    rstd = reciprocal_deviation(found.variance, epsilon)
    normal = stablehlo.multiply(found.centered, hlo.broadcast_in_dim(rstd, spec.shape, range(lead)))
    scaled = scale_and_shift(normal, weight, bias, dims)
    return as_result(ctx, 0, scaled), as_result(ctx, 1, found.mean), as_result(ctx, 2, rstd)


@lowering(aten.native_group_norm.default, padding=group_normalized)
def native_group_norm(
    ctx: LoweringContext,
    operand: ir.Value,
    weight: ir.Value | None,
    bias: ir.Value | None,
    batch: int,
    channels: int,
    positions: int,
    groups: int,
    epsilon: float,
    real: RealCount | None = None,
) -> NormResults:
    """Operand normalized over each group of channels; mean and 1 / deviation `[batch, groups]`.

    Weight and bias lie along the channels, dim 1.
    """
    spec = spec_of(operand)
    shape = [batch, groups, channels // groups, positions]
    wide = hlo.convert(hlo.reshape(operand, shape), accumulation_dtype(spec.dtype))
    found = statistics(wide, [2, 3], real)
    rstd = reciprocal_deviation(found.variance, epsilon)
    normal = stablehlo.multiply(found.centered, hlo.broadcast_in_dim(rstd, shape, [0, 1]))
    scaled = scale_and_shift(hlo.reshape(normal, spec.shape), weight, bias, [1])
    return as_result(ctx, 0, scaled), as_result(ctx, 1, found.mean), as_result(ctx, 2, rstd)


# --- weight norm ---------------------------------------------------------------------------------


@lowering(aten._weight_norm_interface_backward.default, padding=weight_norm_backward)
def weight_norm_interface_backward(
    ctx: LoweringContext,
    grad: ir.Value,
    direction: ir.Value,
    magnitude: ir.Value,
    norms: ir.Value,
    dim: int,
) -> tuple[ir.Value, ir.Value]:
    """Gradients of weight = magnitude * direction / norm with respect to both.

    `norms` is the 2-norm of `direction` over every dim but `dim`; magnitude and norms have size
    1 there. With s the sum of grad * direction over those dims, the gradients are
    magnitude / norm * (grad - direction * s / norm ** 2) and s / norm.
    """
    shape = spec_of(direction).shape
    dtype = accumulation_dtype(spec_of(direction).dtype)
    grad, direction, magnitude, norms = (
        hlo.convert(value, dtype) for value in (grad, direction, magnitude, norms)
    )
    others = [other for other in range(len(shape)) if other != dim % len(shape)]
    total = hlo.reduce_sum(stablehlo.multiply(grad, direction), others)
    total = hlo.expand_dims(total, others)
    magnitude_grad = stablehlo.divide(total, norms)
    share = stablehlo.divide(magnitude_grad, norms)
    inner = stablehlo.subtract(grad, stablehlo.multiply(direction, hlo.broadcast_to(share, shape)))
    ratio = hlo.broadcast_to(stablehlo.divide(magnitude, norms), shape)
    return (
        as_result(ctx, 0, stablehlo.multiply(ratio, inner)),
        as_result(ctx, 1, magnitude_grad),
    )
