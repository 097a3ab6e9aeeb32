"""Arithmetic on two tensors or a tensor and a number, remainders and extremes among it.

Integer division by zero raises in eager PyTorch. A compiled program cannot raise: the quotient is
then -1 (all ones) and the remainder the dividend, as XLA defines them.
"""

from __future__ import annotations

import math

import torch

from lowering import hlo
from lowering.bucketing.rules import flows_zero
from lowering.context import LoweringContext
from lowering.dtypes import is_unsigned, opmath_dtype, spec_of
from lowering.mlir import chlo, ir, stablehlo
from lowering.ops.pointwise import Binary, Operand, is_scalar, register_binary, widened_binary
from lowering.ops.unary import FLOAT_LAYOUT, truncated, with_sign
from lowering.registry import Padding, lowering

aten = torch.ops.aten


# --- sums and products -----------------------------------------------------------------------


def _terms(
    ctx: LoweringContext, operand: Operand, other: Operand, alpha: hlo.Scalar
) -> list[ir.Value]:
    """Return operand and alpha * other as values to add, unrounded between the two operations."""
    left, right = ctx.broadcast_operands((operand, other), ctx.result.dtype)
    if alpha == 1:
        return [left, right]
    inner = opmath_dtype(ctx.result.dtype)
    factor = hlo.convert(hlo.full_like(right, alpha), inner)
    product = stablehlo.multiply(hlo.convert(right, inner), factor)
    return [hlo.convert(left, inner), product]


@lowering(aten.add.Tensor, aten.add.Scalar, padding=Padding.FLOWS)
def add(ctx: LoweringContext, operand: Operand, other: Operand, alpha: hlo.Scalar = 1) -> ir.Value:
    """Operand + alpha * other in the promoted dtype; integers wrap, bools are or-ed."""
    return hlo.convert(stablehlo.add(*_terms(ctx, operand, other, alpha)), ctx.result.dtype)


@lowering(aten.sub.Tensor, aten.sub.Scalar, padding=Padding.FLOWS)
def sub(ctx: LoweringContext, operand: Operand, other: Operand, alpha: hlo.Scalar = 1) -> ir.Value:
    """Operand - alpha * other in the promoted dtype; integers wrap."""
    return hlo.convert(stablehlo.subtract(*_terms(ctx, operand, other, alpha)), ctx.result.dtype)


def _factors(ctx: LoweringContext, operand: Operand, other: Operand) -> list[ir.Value]:
    """Return the operands of a product or quotient, in the dtype to compute in.

    That is the result's dtype; but torch's CPU kernels do not round a number or 0-d tensor on the
    right to float16 or bfloat16, they compute in float32.
    """
    dtype = ctx.result.dtype
    return ctx.broadcast_operands(
        (operand, other), opmath_dtype(dtype) if is_scalar(other) else dtype
    )


@lowering(aten.mul.Tensor, aten.mul.Scalar, padding=flows_zero)
def mul(ctx: LoweringContext, operand: Operand, other: Operand) -> ir.Value:
    """Operand * other in the promoted dtype; integers wrap, bools are and-ed."""
    return hlo.convert(stablehlo.multiply(*_factors(ctx, operand, other)), ctx.result.dtype)


# --- quotients and remainders ------------------------------------------------------------------


# `true_divide` is what torch calls a division by a dynamic size.
@lowering(
    aten.div.Tensor,
    aten.div.Scalar,
    aten.true_divide.Tensor,
    aten.true_divide.Scalar,
    padding=Padding.FLOWS,
)
def div(ctx: LoweringContext, operand: Operand, other: Operand) -> ir.Value:
    """Operand / other; integers and bools are divided as floats."""
    return hlo.convert(stablehlo.divide(*_factors(ctx, operand, other)), ctx.result.dtype)


@lowering(aten.div.Tensor_mode, aten.div.Scalar_mode, padding=Padding.FLOWS)
def div_mode(
    ctx: LoweringContext, operand: Operand, other: Operand, *, rounding_mode: str | None
) -> ir.Value:
    """Operand / other, the quotient rounded towards zero ("trunc"), down ("floor"), or not."""
    dtype = ctx.result.dtype
    if rounding_mode is None:
        return div(ctx, operand, other)
    if rounding_mode not in ("trunc", "floor"):
        raise ctx.unsupported(f"the rounding mode {rounding_mode!r} is not known")
    left, right = _factors(ctx, operand, other)
    if not dtype.is_floating_point:
        quotient = floored_quotient if rounding_mode == "floor" else stablehlo.divide
        return quotient(left, right)
    if rounding_mode == "floor":
        return hlo.convert(widened_binary(floating_floored_quotient)(left, right), dtype)
    return hlo.convert(truncated(_rounded_quotient(left, right)), dtype)


def _rounded_quotient(left: ir.Value, right: ir.Value) -> ir.Value:
    """Return left / right rounded to the operands' dtype, which XLA would otherwise defer.

    In bfloat16 eager's 1 / 0.1 is 10, and truncates to 10, though 1 / bfloat16(0.1) is 9.99.
    """
    dtype = spec_of(left).dtype
    if opmath_dtype(dtype) is dtype:
        return stablehlo.divide(left, right)
    mantissa_bits = FLOAT_LAYOUT[dtype][0]
    wide = opmath_dtype(dtype)
    quotient = stablehlo.divide(hlo.convert(left, wide), hlo.convert(right, wide))
    exponent_bits = 8 * dtype.itemsize - 1 - mantissa_bits
    return stablehlo.reduce_precision(quotient, exponent_bits, mantissa_bits)


def _differ_in_sign(left: ir.Value, right: ir.Value) -> ir.Value:
    zero = hlo.full_like(left, 0)
    return stablehlo.xor(hlo.compare(left, zero, "LT"), hlo.compare(right, zero, "LT"))


def floored_quotient(left: ir.Value, right: ir.Value) -> ir.Value:
    """Return the quotient of integers rounded down."""
    quotient = stablehlo.divide(left, right)
    if is_unsigned(spec_of(left).dtype):
        return quotient
    remainder = stablehlo.remainder(left, right)
    inexact = hlo.compare(remainder, hlo.full_like(remainder, 0), "NE")
    below = stablehlo.and_(inexact, _differ_in_sign(remainder, right))
    return stablehlo.subtract(quotient, hlo.convert(below, spec_of(left).dtype))


def floating_floored_quotient(left: ir.Value, right: ir.Value) -> ir.Value:
    """Return the floored quotient of floats as `c10::div_floor_floating` defines it.

    It comes from the exact remainder, so that it agrees with `remainder` where the rounded
    quotient would not: 1 // 0.1 is 9.
    """
    quotient = stablehlo.divide(left, right)
    zero, one = hlo.full_like(left, 0), hlo.full_like(left, 1)
    modulus = stablehlo.remainder(left, right)
    exact: ir.Value = stablehlo.divide(stablehlo.subtract(left, modulus), right)
    inexact = hlo.compare(modulus, zero, "NE")
    below = stablehlo.and_(inexact, _differ_in_sign(modulus, right))
    exact = hlo.select(below, stablehlo.subtract(exact, one), exact)
    down: ir.Value = stablehlo.floor(exact)
    missed = hlo.compare(stablehlo.subtract(exact, down), hlo.full_like(left, 0.5), "GT")
    down = hlo.select(missed, stablehlo.add(down, one), down)
    signed_zero = with_sign(zero, quotient)
    down = hlo.select(hlo.compare(exact, zero, "EQ"), signed_zero, down)
    return hlo.select(hlo.compare(right, zero, "EQ"), quotient, down)


def python_remainder(left: ir.Value, right: ir.Value) -> ir.Value:
    """Return the remainder with the sign of the divisor, for integers and floats."""
    remainder = stablehlo.remainder(left, right)
    if is_unsigned(spec_of(left).dtype):
        return remainder
    inexact = hlo.compare(remainder, hlo.full_like(remainder, 0), "NE")
    wrong = stablehlo.and_(inexact, _differ_in_sign(remainder, right))
    return hlo.select(wrong, stablehlo.add(remainder, right), remainder)


register_binary(
    {
        aten.remainder.Tensor: widened_binary(python_remainder),
        aten.remainder.Scalar: widened_binary(python_remainder),
        aten.remainder.Scalar_Tensor: widened_binary(python_remainder),
        aten.fmod.Tensor: widened_binary(stablehlo.remainder),
        aten.fmod.Scalar: widened_binary(stablehlo.remainder),
    }
)


# --- extremes ---------------------------------------------------------------------------------


def _ignoring_nan(build: Binary) -> Binary:
    def function(left: ir.Value, right: ir.Value) -> ir.Value:
        best = build(left, right)
        if not spec_of(left).dtype.is_floating_point:
            return best
        return hlo.select(hlo.is_nan(left), right, hlo.select(hlo.is_nan(right), left, best))

    return function


register_binary(
    {
        aten.maximum.default: stablehlo.maximum,
        aten.minimum.default: stablehlo.minimum,
        aten.fmax.default: _ignoring_nan(stablehlo.maximum),
        aten.fmin.default: _ignoring_nan(stablehlo.minimum),
    }
)


# --- geometry and representation ------------------------------------------------------------------


def hypotenuse(left: ir.Value, right: ir.Value) -> ir.Value:
    """Return sqrt(left^2 + right^2) without overflow; inf beside anything, even NaN, is inf."""
    left, right = stablehlo.abs(left), stablehlo.abs(right)
    large, small = stablehlo.maximum(left, right), stablehlo.minimum(left, right)
    zero, infinity = hlo.full_like(left, 0), hlo.full_like(left, math.inf)
    ratio = stablehlo.divide(small, large)
    root = stablehlo.sqrt(stablehlo.add(hlo.full_like(left, 1), stablehlo.multiply(ratio, ratio)))
    length = hlo.select(hlo.compare(large, zero, "EQ"), zero, stablehlo.multiply(large, root))
    infinite = stablehlo.or_(hlo.compare(left, infinity, "EQ"), hlo.compare(right, infinity, "EQ"))
    return hlo.select(infinite, infinity, length)


register_binary(
    {
        aten.atan2.default: widened_binary(stablehlo.atan2),
        aten.hypot.default: widened_binary(hypotenuse),
        aten.copysign.Tensor: with_sign,
        aten.copysign.Scalar: with_sign,
        aten.nextafter.default: chlo.next_after,
    }
)


@lowering("prims.fma.default", padding=Padding.FLOWS)
def fma(ctx: LoweringContext, left: Operand, right: Operand, addend: Operand) -> ir.Value:
    """left * right + addend; XLA decides whether the product is rounded before the sum."""
    operands = ctx.broadcast_operands((left, right, addend), ctx.result.dtype)
    return stablehlo.add(stablehlo.multiply(operands[0], operands[1]), operands[2])


@lowering(aten.ldexp.Tensor, padding=Padding.FLOWS)
def ldexp(ctx: LoweringContext, operand: Operand, other: Operand) -> ir.Value:
    """Operand * 2**other, the power in float32 for integer exponents, as eager computes it."""
    left, right = ctx.broadcast_operands((operand, other), opmath_dtype(ctx.result.dtype))
    power = stablehlo.power(hlo.full_like(right, 2), right)
    return hlo.convert(stablehlo.multiply(left, power), ctx.result.dtype)


# --- integers -----------------------------------------------------------------------------------


def greatest_common_divisor(left: ir.Value, right: ir.Value) -> ir.Value:
    """Return the non-negative greatest common divisor by Euclid's algorithm; gcd(0, 0) is 0."""
    if not is_unsigned(spec_of(left).dtype):
        left, right = stablehlo.abs(left), stablehlo.abs(right)
    rank = spec_of(left).rank

    def unfinished(_: ir.Value, right: ir.Value) -> ir.Value:
        nonzero = hlo.compare(right, hlo.full_like(right, 0), "NE")
        return hlo.reduce(nonzero, range(rank), False, stablehlo.or_)

    def step(left: ir.Value, right: ir.Value) -> tuple[ir.Value, ir.Value]:
        done = hlo.compare(right, hlo.full_like(right, 0), "EQ")
        return (
            hlo.select(done, left, right),
            hlo.select(done, right, stablehlo.remainder(left, right)),
        )

    return hlo.while_loop(unfinished, step, (left, right))[0]


def least_common_multiple(left: ir.Value, right: ir.Value) -> ir.Value:
    """Return the least common multiple without its sign; 0 if either is 0.

    Narrow integers are multiplied in 32 bits, and wrap only when the sign is off, as in C.
    """
    dtype = spec_of(left).dtype
    if dtype.itemsize < torch.int32.itemsize:
        left, right = hlo.convert(left, torch.int32), hlo.convert(right, torch.int32)
    divisor = greatest_common_divisor(left, right)
    zero = hlo.full_like(divisor, 0)
    none = hlo.compare(divisor, zero, "EQ")
    safe = hlo.select(none, hlo.full_like(divisor, 1), divisor)
    product = stablehlo.multiply(stablehlo.divide(left, safe), right)
    if not is_unsigned(spec_of(left).dtype):
        product = stablehlo.abs(product)
    return hlo.convert(hlo.select(none, zero, product), dtype)


register_binary(
    {
        aten.gcd.default: greatest_common_divisor,
        aten.lcm.default: least_common_multiple,
    }
)
