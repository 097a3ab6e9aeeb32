"""Tensors filled at random: uniform, normal and integer numbers, and what derives from them.

The numbers differ from eager's, which come from another generator; the distributions agree. A
`generator` argument is not supported: those overloads have no lowering.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from lowering import hlo
from lowering.bucketing.randomness import draws, draws_integers
from lowering.context import LoweringContext
from lowering.dtypes import real_dtype, spec_of
from lowering.mlir import ir, stablehlo
from lowering.registry import lowering
from lowering.threefry import (
    Source,
    below,
    below_run_time,
    mantissa_digits,
    normal_pair,
    open_interval,
    positive_exponential,
    scaled,
    unit_interval,
)

aten = torch.ops.aten

Bound = int | ir.Value
"""A bound of integers: a number, or a 0-d value where it is a dynamic size."""


def computed_in(dtype: torch.dtype) -> torch.dtype:
    """Return the float dtype in which logarithms and the like are taken for `dtype`."""
    return torch.float64 if dtype in (torch.float64, torch.complex128) else torch.float32


def _shifted(operand: ir.Value, factor: float, offset: float) -> ir.Value:
    if factor != 1.0:
        operand = scaled(operand, factor)
    return operand if offset == 0.0 else stablehlo.add(operand, hlo.full_like(operand, offset))


# --- uniform -------------------------------------------------------------------------------------


@lowering(aten.rand.default, aten.rand_like.default, padding=draws)
def rand(ctx: LoweringContext, *args: Any, dtype: torch.dtype | None = None) -> ir.Value:
    """Uniform in [0, 1), in steps of the dtype's precision; both parts of complex numbers."""
    return _uniform(ctx)


def _uniform(ctx: LoweringContext) -> ir.Value:
    shape, dtype = ctx.result
    source = Source(ctx)
    parts = real_dtype(dtype)
    number = unit_interval(source.words(shape), parts)
    if not dtype.is_complex:
        return number
    return stablehlo.complex(number, unit_interval(source.words(shape, stream=1), parts))


@lowering(aten.uniform.default, padding=draws)
def uniform(
    ctx: LoweringContext, operand: ir.Value, low: float = 0.0, high: float = 1.0
) -> ir.Value:
    """Uniform in [low, high) with the shape and dtype of `operand`."""
    number = hlo.convert(_uniform(ctx), computed_in(ctx.result.dtype))
    return hlo.convert(_shifted(number, high - low, low), ctx.result.dtype)


@lowering(aten.rrelu_with_noise_functional.default, padding=draws)
def rrelu_with_noise(
    ctx: LoweringContext,
    operand: ir.Value,
    noise: ir.Value,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
) -> tuple[ir.Value, ir.Value]:
    """Leaky relu with a random slope in [lower, upper) an element: (result, slopes).

    Slopes of positive elements are 1. Outside training the slope is the middle of the range and
    `noise` comes back as it was.
    """
    shape, dtype = ctx.result
    wide = computed_in(dtype)
    negative = hlo.compare(operand, hlo.full_like(operand, 0), "LE")
    if not training:
        leaky = scaled(hlo.convert(operand, wide), (lower + upper) / 2)
        return hlo.select(negative, hlo.convert(leaky, dtype), operand), noise
    slope = _shifted(unit_interval(Source(ctx).words(shape), wide), upper - lower, lower)
    slope = hlo.convert(hlo.select(negative, slope, hlo.full_like(slope, 1)), dtype)
    return stablehlo.multiply(operand, slope), slope


# --- normal --------------------------------------------------------------------------------------


def _normal(ctx: LoweringContext) -> ir.Value:
    """Return standard normals for the result, in `computed_in` of its dtype."""
    shape, dtype = ctx.result
    first, second = normal_pair(Source(ctx), shape, computed_in(dtype))
    if not dtype.is_complex:
        return first
    # Real and imaginary part have variance 1/2 each.
    return stablehlo.complex(*(scaled(part, math.sqrt(0.5)) for part in (first, second)))


@lowering(aten.randn.default, aten.randn_like.default, padding=draws)
def randn(ctx: LoweringContext, *args: Any, dtype: torch.dtype | None = None) -> ir.Value:
    """Standard normal numbers; complex ones have variance 1 in all."""
    return hlo.convert(_normal(ctx), ctx.result.dtype)


@lowering(aten.normal_functional.default, padding=draws)
def normal_functional(
    ctx: LoweringContext, operand: ir.Value, mean: float = 0.0, std: float = 1.0
) -> ir.Value:
    """Normal numbers with the shape and dtype of `operand`."""
    return hlo.convert(_shifted(_normal(ctx), std, mean), ctx.result.dtype)


@lowering(aten.normal.float_float, padding=draws)
def normal_filled(
    ctx: LoweringContext,
    mean: float,
    std: float,
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
) -> ir.Value:
    """Normal numbers of shape `size`."""
    return hlo.convert(_shifted(_normal(ctx), std, mean), ctx.result.dtype)


@lowering(
    aten.normal.Tensor_float,
    aten.normal.float_Tensor,
    aten.normal.Tensor_Tensor,
    padding=draws,
)
def normal(ctx: LoweringContext, mean: ir.Value | float, std: ir.Value | float = 1.0) -> ir.Value:
    """Normal numbers whose mean and standard deviation are given element by element."""
    number = _normal(ctx)
    dtype = spec_of(number).dtype
    mean, std = ctx.broadcast_operands((mean, std), dtype)
    return hlo.convert(stablehlo.add(stablehlo.multiply(number, std), mean), ctx.result.dtype)


@lowering(aten.log_normal.default, padding=draws)
def log_normal(
    ctx: LoweringContext, operand: ir.Value, mean: float = 1.0, std: float = 2.0
) -> ir.Value:
    """Numbers whose logarithm is normal, with the shape and dtype of `operand`."""
    return hlo.convert(stablehlo.exponential(_shifted(_normal(ctx), std, mean)), ctx.result.dtype)


# --- other continuous distributions --------------------------------------------------------------


@lowering(aten.exponential.default, padding=draws)
def exponential(ctx: LoweringContext, operand: ir.Value, lambd: float = 1.0) -> ir.Value:
    """Exponential numbers of rate `lambd`, with the shape and dtype of `operand`."""
    shape, dtype = ctx.result
    number = positive_exponential(Source(ctx).words(shape), computed_in(dtype))
    return hlo.convert(stablehlo.divide(number, hlo.full_like(number, lambd)), dtype)


@lowering(aten.cauchy.default, padding=draws)
def cauchy(
    ctx: LoweringContext, operand: ir.Value, median: float = 0.0, sigma: float = 1.0
) -> ir.Value:
    """Cauchy numbers, median + sigma * tan(pi * (u - 1/2)), shaped like `operand`."""
    shape, dtype = ctx.result
    number = unit_interval(Source(ctx).words(shape), computed_in(dtype))
    centred = stablehlo.subtract(number, hlo.full_like(number, 0.5))
    return hlo.convert(_shifted(stablehlo.tan(scaled(centred, math.pi)), sigma, median), dtype)


@lowering(aten.geometric.default, padding=draws)
def geometric(ctx: LoweringContext, operand: ir.Value, p: float) -> ir.Value:
    """The number of trials up to the first success, at least 1, shaped like `operand`."""
    shape, dtype = ctx.result
    number = stablehlo.log(open_interval(Source(ctx).words(shape), computed_in(dtype)))
    scale = math.log1p(-p) if p < 1 else -math.inf
    trials = stablehlo.ceil(stablehlo.divide(number, hlo.full_like(number, scale)))
    return hlo.convert(stablehlo.maximum(trials, hlo.full_like(trials, 1)), dtype)


# --- integers ------------------------------------------------------------------------------------


def _integers(ctx: LoweringContext, low: Bound, high: Bound) -> ir.Value:
    """Return integers in [low, high) in the result's shape and dtype."""
    if isinstance(low, ir.Value) or isinstance(high, ir.Value):
        return _integers_at_run_time(ctx, low, high)
    shape, dtype = ctx.result
    count = high - low
    number = below(Source(ctx).words(shape), count)
    fits = low >= -(2**31) and low + count <= 2**31
    if fits and spec_of(number).dtype is torch.uint32:
        number = hlo.convert(number, torch.int32)
    else:
        # Beyond the range of int64 the sum wraps into place.
        number = hlo.convert(number, torch.int64)
    if low != 0:
        number = stablehlo.add(number, hlo.full_like(number, low))
    return hlo.convert(number, dtype)


def _integers_at_run_time(ctx: LoweringContext, low: Bound, high: Bound) -> ir.Value:
    """Return `_integers` for bounds that are 0-d values, less than 2**32 apart."""
    shape, dtype = ctx.result
    low, high = (
        hlo.convert(bound, torch.int64)
        if isinstance(bound, ir.Value)
        else hlo.scalar(bound, torch.int64)
        for bound in (low, high)
    )
    count = hlo.convert(stablehlo.subtract(high, low), torch.uint64)
    number = hlo.convert(below_run_time(Source(ctx).words(shape), count), torch.int64)
    return hlo.convert(stablehlo.add(number, hlo.broadcast_to(low, shape)), dtype)


@lowering(aten.randint.default, padding=draws_integers)
def randint(
    ctx: LoweringContext, high: Bound, size: Sequence[int], *, dtype: torch.dtype | None = None
) -> ir.Value:
    """Integers in [0, high) of shape `size`."""
    return _integers(ctx, 0, high)


@lowering(aten.randint.low, padding=draws_integers)
def randint_low(
    ctx: LoweringContext,
    low: Bound,
    high: Bound,
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
) -> ir.Value:
    """Integers in [low, high) of shape `size`."""
    return _integers(ctx, low, high)


@lowering(aten.randint_like.default, padding=draws_integers)
def randint_like(
    ctx: LoweringContext, operand: ir.Value, high: Bound, *, dtype: torch.dtype | None = None
) -> ir.Value:
    """Integers in [0, high), shaped like `operand`."""
    return _integers(ctx, 0, high)


@lowering(aten.randint_like.low_dtype, padding=draws_integers)
def randint_like_low(
    ctx: LoweringContext,
    operand: ir.Value,
    low: Bound,
    high: Bound,
    *,
    dtype: torch.dtype | None = None,
) -> ir.Value:
    """Integers in [low, high), shaped like `operand`."""
    return _integers(ctx, low, high)


@lowering(aten.randint_like.Tensor, padding=draws)
def randint_like_tensor(
    ctx: LoweringContext, operand: ir.Value, high: ir.Value, *, dtype: torch.dtype | None = None
) -> ir.Value:
    """Integers in [0, high) for a `high` of one element, shaped like `operand`.

    floor(random * high / 2**32), so at most 2**32 of them; eager raises for a `high` below 1, here
    the result is 0.
    """
    shape, result = ctx.result
    word = hlo.convert(Source(ctx).words(shape)[0], torch.uint64)
    count: ir.Value = stablehlo.maximum(hlo.convert(high, torch.int64), hlo.full_like(high, 0))
    count = hlo.broadcast_in_dim(hlo.reshape(hlo.convert(count, torch.uint64), ()), shape, [])
    number = stablehlo.multiply(word, count)
    number = stablehlo.shift_right_logical(number, hlo.full_like(number, 32))
    return hlo.convert(hlo.convert(number, torch.int64), result)


def _end(dtype: torch.dtype) -> int:
    """Return one more than the largest integer that `random_` draws for `dtype`."""
    if dtype is torch.bool:
        return 2
    if dtype.is_floating_point:
        return (1 << mantissa_digits(dtype)) + 1
    return torch.iinfo(dtype).max + 1


@lowering(aten.random.default, padding=draws)
def random(ctx: LoweringContext, operand: ir.Value) -> ir.Value:
    """Integers from 0 to the largest up to which the dtype holds all of them, like `operand`."""
    return _integers(ctx, 0, _end(ctx.result.dtype))


@lowering(aten.random.to, padding=draws_integers)
def random_to(ctx: LoweringContext, operand: ir.Value, to: Bound) -> ir.Value:
    """Integers in [0, to), shaped like `operand`."""
    return _integers(ctx, 0, to)
