"""What the element-by-element families share: operand preparation and registration from tables.

The families are `unary`, `special`, `activation`, `arithmetic`, `power`, `comparison`, `bitwise`,
`selection`, `conversion` and `complex_numbers`. Nothing is registered here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch._ops import OpOverload

from lowering import hlo
from lowering.context import LoweringContext
from lowering.dtypes import opmath_dtype, spec_of
from lowering.mlir import ir, stablehlo
from lowering.registry import Padding, lowering

Unary = Callable[[ir.Value], ir.Value]
Binary = Callable[[ir.Value, ir.Value], ir.Value]
Operand = ir.Value | hlo.Scalar


def widened(build: Unary) -> Unary:
    """Return `build` computing in float32 where the operand is float16 or bfloat16."""

    def function(operand: ir.Value) -> ir.Value:
        dtype = spec_of(operand).dtype
        return hlo.convert(build(hlo.convert(operand, opmath_dtype(dtype))), dtype)

    return function


def widened_binary(build: Binary) -> Binary:
    """Return `build` computing in float32 where the operands are float16 or bfloat16."""

    def function(left: ir.Value, right: ir.Value) -> ir.Value:
        dtype = spec_of(left).dtype
        inner = opmath_dtype(dtype)
        return hlo.convert(build(hlo.convert(left, inner), hlo.convert(right, inner)), dtype)

    return function


def unary_rule(build: Unary) -> Callable[..., ir.Value]:
    """Return a rule that converts its operand to the result's dtype and applies `build`."""

    def rule(ctx: LoweringContext, operand: ir.Value) -> ir.Value:
        """The table's function of the operand in the result's dtype, element by element."""
        return build(hlo.convert(operand, ctx.result.dtype))

    return rule


def binary_rule(build: Binary) -> Callable[..., ir.Value]:
    """Return a rule that broadcasts two operands in the result's dtype and applies `build`."""

    def rule(ctx: LoweringContext, left: Operand, right: Operand) -> ir.Value:
        """The table's function of the operands, broadcast and promoted to the result's dtype."""
        return build(*ctx.broadcast_operands((left, right), ctx.result.dtype))

    return rule


def register_unary(table: Mapping[OpOverload, Unary]) -> None:
    """Register each overload of `table` as its function in the result's dtype."""
    for overload, build in table.items():
        lowering(overload, padding=Padding.FLOWS)(unary_rule(build))


def register_binary(table: Mapping[OpOverload, Binary]) -> None:
    """Register each overload of `table` as its function on broadcast, promoted operands."""
    for overload, build in table.items():
        lowering(overload, padding=Padding.FLOWS)(binary_rule(build))


def is_scalar(operand: Operand) -> bool:
    """Whether an operand is a number or a 0-d tensor."""
    return not isinstance(operand, ir.Value) or len(operand.type.shape) == 0


def scaled(operand: ir.Value, factor: hlo.Scalar) -> ir.Value:
    """Return `operand` times a number; the operand itself for one."""
    if factor == 1:
        return operand
    return stablehlo.multiply(operand, hlo.full_like(operand, factor))
