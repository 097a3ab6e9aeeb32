"""Batch norm in its many overloads: with and without statistics, training and inference.

Channels are dim 1. Statistics are taken over every other dim, in float32 for 16-bit floats; a
running statistic becomes (1 - momentum) * old + momentum * new, the new variance unbiased.
"""

from __future__ import annotations

import torch
from torch import fx

from lowering import hlo
from lowering.bucketing.moments import RealCount
from lowering.bucketing.normalizations import batch_normalized
from lowering.context import LoweringContext
from lowering.dtypes import spec_of
from lowering.mlir import ir, stablehlo
from lowering.ops.matmul import accumulation_dtype
from lowering.ops.normalization import (
    NormResults,
    Statistics,
    as_result,
    empty_result,
    reciprocal_deviation,
    scale_and_shift,
    statistics,
)
from lowering.registry import lowering

aten = torch.ops.aten


def _by_batch(
    ctx: LoweringContext,
    operand: ir.Value,
    weight: ir.Value | None,
    bias: ir.Value | None,
    epsilon: float,
    real: RealCount | None,
) -> tuple[NormResults, Statistics]:
    """Return (normalized, mean, 1 / deviation) by the batch's own statistics, and those."""
    spec = spec_of(operand)
    wide = hlo.convert(operand, accumulation_dtype(spec.dtype))
    found = statistics(wide, [0, *range(2, spec.rank)], real)
    rstd = reciprocal_deviation(found.variance, epsilon)
    normal = scale_and_shift(found.centered, _scale(rstd, weight), bias, [1])
    results = (
        as_result(ctx, 0, normal),
        as_result(ctx, 1, found.mean),
        as_result(ctx, 2, rstd),
    )
    return results, found


def _scale(rstd: ir.Value, weight: ir.Value | None) -> ir.Value:
    """Return the factor of each channel: one product a channel instead of one an element."""
    return scale_and_shift(rstd, weight, None, [0])


def _by_running(
    ctx: LoweringContext,
    operand: ir.Value,
    weight: ir.Value | None,
    bias: ir.Value | None,
    running_mean: ir.Value,
    running_var: ir.Value,
    epsilon: float,
) -> NormResults:
    """Return `operand` normalized by the running statistics, and two empty tensors."""
    spec = spec_of(operand)
    dtype = accumulation_dtype(spec.dtype)
    wide = hlo.convert(operand, dtype)
    rstd = reciprocal_deviation(hlo.convert(running_var, dtype), epsilon)
    mean = hlo.broadcast_in_dim(hlo.convert(running_mean, dtype), spec.shape, [1])
    normal = scale_and_shift(stablehlo.subtract(wide, mean), _scale(rstd, weight), bias, [1])
    return as_result(ctx, 0, normal), empty_result(ctx, 1), empty_result(ctx, 2)


def _updated(
    ctx: LoweringContext,
    index: int,
    running_mean: ir.Value,
    running_var: ir.Value,
    found: Statistics,
    momentum: float,
) -> tuple[ir.Value, ir.Value]:
    """Return the new running statistics, results `index` and `index + 1` of the node."""
    freedom = stablehlo.subtract(found.size, hlo.full_like(found.size, 1))
    unbiased = stablehlo.divide(stablehlo.multiply(found.variance, found.size), freedom)
    new = []
    for slot, old, value in ((0, running_mean, found.mean), (1, running_var, unbiased)):
        dtype = spec_of(value).dtype
        kept = stablehlo.multiply(hlo.convert(old, dtype), hlo.full_like(value, 1 - momentum))
        added = stablehlo.multiply(value, hlo.full_like(value, momentum))
        new.append(as_result(ctx, index + slot, stablehlo.add(kept, added)))
    return new[0], new[1]


@lowering(aten._native_batch_norm_legit_functional.default, padding=batch_normalized)
def native_batch_norm_legit_functional(
    ctx: LoweringContext,
    operand: ir.Value,
    weight: ir.Value | None,
    bias: ir.Value | None,
    running_mean: ir.Value,
    running_var: ir.Value,
    training: bool,
    momentum: float,
    epsilon: float,
    real: RealCount | None = None,
) -> tuple[ir.Value, ...]:
    """Operand normalized by its own statistics, those (mean, 1 / deviation), new running ones.

    Not in training: normalized by the running statistics, which come back as they are.
    """
    if training:
        results, found = _by_batch(ctx, operand, weight, bias, epsilon, real)
        return *results, *_updated(ctx, 3, running_mean, running_var, found, momentum)
    results = _by_running(ctx, operand, weight, bias, running_mean, running_var, epsilon)
    return *results, as_result(ctx, 3, running_mean), as_result(ctx, 4, running_var)


@lowering(aten._native_batch_norm_legit_no_training.default, padding=batch_normalized)
def native_batch_norm_legit_no_training(
    ctx: LoweringContext,
    operand: ir.Value,
    weight: ir.Value | None,
    bias: ir.Value | None,
    running_mean: ir.Value,
    running_var: ir.Value,
    momentum: float,
    epsilon: float,
) -> NormResults:
    """Operand normalized by the running statistics, and two empty tensors."""
    return _by_running(ctx, operand, weight, bias, running_mean, running_var, epsilon)


@lowering(aten._native_batch_norm_legit.no_stats, padding=batch_normalized)
def native_batch_norm_legit_no_stats(
    ctx: LoweringContext,
    operand: ir.Value,
    weight: ir.Value | None,
    bias: ir.Value | None,
    training: bool,
    momentum: float,
    epsilon: float,
    real: RealCount | None = None,
) -> NormResults:
    """Operand normalized by its own statistics; mean; 1 / deviation."""
    if not training:
        raise ctx.unsupported("it normalizes by running statistics, which are missing")
    return _by_batch(ctx, operand, weight, bias, epsilon, real)[0]


@lowering(aten._batch_norm_with_update_functional.default, padding=batch_normalized)
def batch_norm_with_update_functional(
    ctx: LoweringContext,
    operand: ir.Value,
    weight: ir.Value | None,
    bias: ir.Value | None,
    running_mean: ir.Value,
    running_var: ir.Value,
    momentum: float,
    epsilon: float,
    real: RealCount | None = None,
) -> tuple[ir.Value, ...]:
    """Operand normalized by its own statistics, those, an empty reserve, new running ones."""
    results, found = _by_batch(ctx, operand, weight, bias, epsilon, real)
    new = _updated(ctx, 4, running_mean, running_var, found, momentum)
    return *results, empty_result(ctx, 3), *new


@lowering(aten._batch_norm_no_update.default, padding=batch_normalized)
def batch_norm_no_update(
    ctx: LoweringContext,
    operand: ir.Value,
    weight: ir.Value | None,
    bias: ir.Value | None,
    running_mean: ir.Value | None,
    running_var: ir.Value | None,
    momentum: float,
    epsilon: float,
) -> tuple[ir.Value, ...]:
    """Operand normalized by the running statistics, two empty tensors and an empty reserve."""
    if running_mean is None or running_var is None:
        raise ctx.unsupported("it normalizes by running statistics, which are missing")
    results = _by_running(ctx, operand, weight, bias, running_mean, running_var, epsilon)
    return *results, empty_result(ctx, 3)


def _mutates(node: fx.Node) -> str | None:
    running_mean, running_var, training = node.args[3:6]
    if training and (running_mean is not None or running_var is not None):
        return "it updates its running statistics in place, which its schema does not declare"
    if not training and (running_mean is None or running_var is None):
        return "it normalizes by running statistics, which are missing"
    return None


@lowering(aten.native_batch_norm.default, padding=batch_normalized, check=_mutates)
def native_batch_norm(
    ctx: LoweringContext,
    operand: ir.Value,
    weight: ir.Value | None,
    bias: ir.Value | None,
    running_mean: ir.Value | None,
    running_var: ir.Value | None,
    training: bool,
    momentum: float,
    epsilon: float,
    real: RealCount | None = None,
) -> NormResults:
    """Operand normalized by its own statistics in training, else by the running ones."""
    if running_mean is None or running_var is None:
        return _by_batch(ctx, operand, weight, bias, epsilon, real)[0]
    return _by_running(ctx, operand, weight, bias, running_mean, running_var, epsilon)
