"""Comparisons, classification of floats (NaN, infinity) and logic on truth values."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch._ops import OpOverload

from lowering import hlo
from lowering.context import LoweringContext
from lowering.dtypes import spec_of
from lowering.mlir import ir, stablehlo
from lowering.ops.pointwise import Binary, Operand
from lowering.registry import Padding, lowering

aten = torch.ops.aten


def _comparison(direction: str) -> Callable[..., ir.Value]:
    """Return the rule that compares both operands in the dtype that torch promotes them to."""

    def rule(ctx: LoweringContext, left: ir.Value, right: Operand) -> ir.Value:
        """Where the comparison holds, in the dtype that torch promotes both operands to."""
        operands = ctx.broadcast_operands((left, right), ctx.promoted_dtype(0, 1))
        return hlo.compare(operands[0], operands[1], direction)

    return rule


_COMPARISONS: dict[OpOverload, str] = {
    aten.eq.Tensor: "EQ",
    aten.eq.Scalar: "EQ",
    aten.ne.Tensor: "NE",
    aten.ne.Scalar: "NE",
    aten.lt.Tensor: "LT",
    aten.lt.Scalar: "LT",
    aten.le.Tensor: "LE",
    aten.le.Scalar: "LE",
    aten.gt.Tensor: "GT",
    aten.gt.Scalar: "GT",
    aten.ge.Tensor: "GE",
    aten.ge.Scalar: "GE",
}

for _overload, _direction in _COMPARISONS.items():
    lowering(_overload, padding=Padding.FLOWS)(_comparison(_direction))


@lowering(aten.isnan.default, padding=Padding.FLOWS)
def isnan(ctx: LoweringContext, operand: ir.Value) -> ir.Value:
    """Where the operand is NaN; in either part of a complex one; never for integers."""
    dtype = spec_of(operand).dtype
    if dtype.is_floating_point or dtype.is_complex:
        return hlo.is_nan(operand)
    return hlo.full(ctx.result.shape, torch.bool, False)


@lowering(aten.isinf.default, padding=Padding.FLOWS)
def isinf(ctx: LoweringContext, operand: ir.Value) -> ir.Value:
    """Where the operand is infinite; in either part of a complex one; never for integers."""
    dtype = spec_of(operand).dtype
    if dtype.is_complex:
        return stablehlo.or_(
            _is_infinite(stablehlo.real(operand)), _is_infinite(stablehlo.imag(operand))
        )
    if dtype.is_floating_point:
        return _is_infinite(operand)
    return hlo.full(ctx.result.shape, torch.bool, False)


def _is_infinite(operand: ir.Value) -> ir.Value:
    absolute = stablehlo.abs(operand)
    return hlo.compare(absolute, hlo.full_like(absolute, math.inf), "EQ")


def _logic(build: Binary) -> Callable[..., ir.Value]:
    """Return the rule that applies `build` to the truth values of both operands (NaN is true)."""

    def rule(ctx: LoweringContext, left: ir.Value, right: ir.Value) -> ir.Value:
        """The logical function of which elements are nonzero; NaN counts as true."""
        return build(*ctx.broadcast_operands((left, right), torch.bool))

    return rule


_LOGIC: dict[OpOverload, Binary] = {
    aten.logical_and.default: stablehlo.and_,
    aten.logical_or.default: stablehlo.or_,
    aten.logical_xor.default: stablehlo.xor,
}

for _overload, _build in _LOGIC.items():
    lowering(_overload, padding=Padding.FLOWS)(_logic(_build))


@lowering(aten.logical_not.default, padding=Padding.FLOWS)
def logical_not(ctx: LoweringContext, operand: ir.Value) -> ir.Value:
    """Where the operand is zero or False."""
    return stablehlo.not_(hlo.convert(operand, torch.bool))
