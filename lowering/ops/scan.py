"""Running sums, products, extremes and log-sums along one dim."""

from __future__ import annotations

from collections.abc import Callable

import torch

from lowering import hlo
from lowering.bucketing.ordered import runs, runs_in_front
from lowering.context import LoweringContext
from lowering.dtypes import spec_of
from lowering.hlo import Combiner
from lowering.hlo_scan import (
    accumulation_dtype,
    cumulative,
    cumulative_max,
    cumulative_min,
    last_true,
)
from lowering.mlir import ir, stablehlo
from lowering.registry import lowering

aten = torch.ops.aten


@lowering(aten.cumsum.default, padding=runs(0))
def cumsum(
    ctx: LoweringContext, operand: ir.Value, dim: int, *, dtype: torch.dtype | None = None
) -> ir.Value:
    """Running sums along `dim`, int64 for bools and integers unless `dtype` says otherwise.

    The half types are summed in float32. XLA adds in a tree, eager from left to right.
    """
    return _running(ctx, operand, dim, 0, stablehlo.add)


@lowering(aten.cumprod.default, padding=runs(1))
def cumprod(
    ctx: LoweringContext, operand: ir.Value, dim: int, *, dtype: torch.dtype | None = None
) -> ir.Value:
    """Running products along `dim`; dtypes as in `cumsum`."""
    return _running(ctx, operand, dim, 1, stablehlo.multiply)


def _running(
    ctx: LoweringContext, operand: ir.Value, dim: int, identity: int, combine: Combiner
) -> ir.Value:
    result = ctx.result
    if not result.shape:
        return hlo.convert(operand, result.dtype)
    # The input is rounded to the requested dtype before anything is added.
    operand = hlo.convert(operand, result.dtype)
    operand = hlo.convert(operand, accumulation_dtype(result.dtype))
    running = cumulative(operand, dim % len(result.shape), identity, combine)
    return hlo.convert(running, result.dtype)


@lowering(aten.cummax.default, padding=runs_in_front)
def cummax(ctx: LoweringContext, operand: ir.Value, dim: int) -> tuple[ir.Value, ir.Value]:
    """Running maxima along `dim` and where they stand (int64): the last of equals or NaNs."""
    return _extremes(operand, dim, cumulative_max)


@lowering(aten.cummin.default, padding=runs_in_front)
def cummin(ctx: LoweringContext, operand: ir.Value, dim: int) -> tuple[ir.Value, ir.Value]:
    """Running minima along `dim` and where they stand; ties and NaN as in `cummax`."""
    return _extremes(operand, dim, cumulative_min)


def _extremes(
    operand: ir.Value, dim: int, scan: Callable[[ir.Value, int], ir.Value]
) -> tuple[ir.Value, ir.Value]:
    spec = spec_of(operand)
    if spec.rank == 0:
        return operand, hlo.scalar(0, torch.int64)
    dim %= spec.rank
    running = scan(operand, dim)
    hit = hlo.compare(operand, running, "EQ")
    if spec.dtype.is_floating_point:
        hit = stablehlo.or_(hit, hlo.is_nan(operand))
    return running, hlo.convert(last_true(hit, dim), torch.int64)


@lowering(aten.logcumsumexp.default, padding=runs_in_front)
def logcumsumexp(ctx: LoweringContext, operand: ir.Value, dim: int) -> ir.Value:
    """log(cumsum(exp(operand))) along `dim` without overflow.

    Pairs combine as max + log1p(exp(min - max)), which is exact for equal infinities too.
    """
    spec = spec_of(operand)
    if spec.rank == 0:
        return operand
    wide = hlo.convert(operand, accumulation_dtype(spec.dtype))
    combine = _log_add_complex if spec.dtype.is_complex else _log_add
    running = cumulative(wide, dim % spec.rank, -torch.inf, combine)
    return hlo.convert(running, spec.dtype)


def _log_add(left: ir.Value, right: ir.Value) -> ir.Value:
    high, low = stablehlo.maximum(left, right), stablehlo.minimum(left, right)
    grown = stablehlo.log_plus_one(stablehlo.exponential(stablehlo.subtract(low, high)))
    # Equal infinities give NaN in the difference; a NaN operand makes high NaN.
    infinite = hlo.compare(stablehlo.abs(high), hlo.full_like(high, torch.inf), "EQ")
    return hlo.select(infinite, high, stablehlo.add(high, grown))


def _log_add_complex(left: ir.Value, right: ir.Value) -> ir.Value:
    """Return log(exp(left) + exp(right)), the larger real part in front.

    The imaginary part, an angle, may differ from eager's by 2 pi where real parts are equal. A NaN
    in either part makes both parts NaN. Of two zeros (real parts -inf) the angle is lost.
    """
    real, other = stablehlo.real(left), stablehlo.real(right)
    is_less = hlo.compare(real, other, "LT")
    low, high = hlo.select(is_less, left, right), hlo.select(is_less, right, left)
    grown = stablehlo.log_plus_one(stablehlo.exponential(stablehlo.subtract(low, high)))
    value: ir.Value = stablehlo.add(high, grown)
    # Where the difference is not defined: both zero, or both infinite.
    both = hlo.compare(real, other, "EQ")
    zero = stablehlo.and_(both, hlo.compare(real, hlo.full_like(real, -torch.inf), "EQ"))
    infinite = stablehlo.and_(both, hlo.compare(real, hlo.full_like(real, torch.inf), "EQ"))
    plain = stablehlo.add(stablehlo.exponential(left), stablehlo.exponential(right))
    value = hlo.select(infinite, stablehlo.log(plain), hlo.select(zero, low, value))
    nan = hlo.full_like(real, torch.nan)
    undefined = stablehlo.or_(hlo.is_nan(left), hlo.is_nan(right))
    return hlo.select(undefined, stablehlo.complex(nan, nan), value)
