"""Elementary functions of one tensor: sign and rounding, roots, exponentials, trigonometry.

Gamma, error and Bessel functions are in `special`, activations of networks in `activation`,
powers in `power`.
"""

from __future__ import annotations

import math

import torch

from lowering import hlo
from lowering.bucketing.rules import flows_zero
from lowering.context import LoweringContext
from lowering.dtypes import is_integer, is_unsigned, opmath_dtype, spec_of
from lowering.mlir import chlo, ir, stablehlo
from lowering.ops.pointwise import Unary, register_unary, widened
from lowering.registry import Padding, lowering

aten = torch.ops.aten

# IEEE 754 layout by dtype: (width of the stored mantissa, exponent bias, dtype of the bits).
FLOAT_LAYOUT = {
    torch.float64: (52, 1023, torch.int64),
    torch.float32: (23, 127, torch.int32),
    torch.float16: (10, 15, torch.int16),
    torch.bfloat16: (7, 127, torch.int16),
}


# --- sign and rounding -----------------------------------------------------------------------


@lowering(aten.abs.default, padding=Padding.FLOWS)
def abs_(ctx: LoweringContext, operand: ir.Value) -> ir.Value:
    """|operand|; the real modulus of complex operands; the smallest integer stays as it is."""
    return operand if is_unsigned(ctx.result.dtype) else stablehlo.abs(operand)


@lowering(aten.sign.default, padding=Padding.FLOWS)
def sign(ctx: LoweringContext, operand: ir.Value) -> ir.Value:
    """-1, 0 or 1; 0 for NaN; a bool is its own sign."""
    dtype = ctx.result.dtype
    if dtype is torch.bool:
        return operand
    zero = hlo.full_like(operand, 0)
    positive = hlo.convert(hlo.compare(operand, zero, "GT"), dtype)
    if is_unsigned(dtype):
        return positive
    return stablehlo.subtract(positive, hlo.convert(hlo.compare(operand, zero, "LT"), dtype))


@lowering(aten.signbit.default, padding=Padding.FLOWS)
def signbit(ctx: LoweringContext, operand: ir.Value) -> ir.Value:
    """Whether the sign bit is set, so true for -0.0."""
    dtype = spec_of(operand).dtype
    if dtype.is_floating_point:
        return sign_bit(operand)
    if dtype is torch.bool or is_unsigned(dtype):
        return hlo.full(ctx.result.shape, torch.bool, False)
    return hlo.compare(operand, hlo.full_like(operand, 0), "LT")


def sign_bit(operand: ir.Value) -> ir.Value:
    """Return where the sign bit of a floating operand is set."""
    bits = hlo.bitcast(operand, FLOAT_LAYOUT[spec_of(operand).dtype][2])
    return hlo.compare(bits, hlo.full_like(bits, 0), "LT")


def with_sign(magnitude: ir.Value, sign: ir.Value) -> ir.Value:
    """Return the magnitude of a float under the sign bit of another, NaN and 0 included."""
    absolute = stablehlo.abs(magnitude)
    return hlo.select(sign_bit(sign), stablehlo.negate(absolute), absolute)


def _rounded(build: Unary) -> Unary:
    def function(operand: ir.Value) -> ir.Value:
        return build(operand) if spec_of(operand).dtype.is_floating_point else operand

    return function


def truncated(operand: ir.Value) -> ir.Value:
    """Return a floating operand rounded towards zero; -0.5 gives -0.0."""
    negative = sign_bit(operand)
    return hlo.select(negative, stablehlo.ceil(operand), stablehlo.floor(operand))


# Integers are already round.
register_unary(
    {
        aten.floor.default: _rounded(stablehlo.floor),
        aten.ceil.default: _rounded(stablehlo.ceil),
        aten.trunc.default: _rounded(truncated),
        aten.round.default: _rounded(stablehlo.round_nearest_even),
    }
)


@lowering(aten.round.decimals, padding=Padding.FLOWS)
def round_decimals(ctx: LoweringContext, operand: ir.Value, *, decimals: int) -> ir.Value:
    """Round half to even of operand * 10**decimals, scaled back (as ATen's kernel does)."""
    dtype = ctx.result.dtype
    if is_integer(dtype):
        return operand
    operand = hlo.convert(operand, opmath_dtype(dtype))
    power = hlo.full_like(operand, 10.0 ** abs(decimals))
    if decimals >= 0:
        scaled = stablehlo.round_nearest_even(stablehlo.multiply(operand, power))
        return hlo.convert(stablehlo.divide(scaled, power), dtype)
    scaled = stablehlo.round_nearest_even(stablehlo.divide(operand, power))
    return hlo.convert(stablehlo.multiply(scaled, power), dtype)


@lowering(aten.frexp.Tensor, padding=Padding.FLOWS)
def frexp(ctx: LoweringContext, operand: ir.Value) -> tuple[ir.Value, ir.Value]:
    """(mantissa in [0.5, 1), int32 exponent) with operand = mantissa * 2**exponent.

    Zero, infinities and NaN are their own mantissa with exponent 0; so are denormal numbers,
    which XLA treats as zeros.
    """
    return split_float(operand)


def split_float(operand: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return mantissa and int32 exponent of a floating operand (see `frexp`)."""
    mantissa_bits, bias, bits_dtype = FLOAT_LAYOUT[spec_of(operand).dtype]
    bits = hlo.bitcast(operand, bits_dtype)
    shift = hlo.full_like(bits, mantissa_bits)
    exponent_mask = hlo.full_like(bits, 2 * bias + 1)
    biased = stablehlo.and_(stablehlo.shift_right_logical(bits, shift), exponent_mask)
    field = hlo.full_like(bits, (2 * bias + 1) << mantissa_bits)
    half = hlo.full_like(bits, (bias - 1) << mantissa_bits)
    fraction = stablehlo.or_(stablehlo.and_(bits, stablehlo.not_(field)), half)
    special = stablehlo.or_(
        hlo.compare(biased, hlo.full_like(biased, 0), "EQ"),
        hlo.compare(biased, exponent_mask, "EQ"),
    )
    exponent = hlo.convert(stablehlo.subtract(biased, hlo.full_like(biased, bias - 1)), torch.int32)
    return (
        hlo.select(special, operand, hlo.bitcast(fraction, spec_of(operand).dtype)),
        hlo.select(special, hlo.full_like(exponent, 0), exponent),
    )


@lowering(aten.neg.default, padding=flows_zero)
def neg(ctx: LoweringContext, operand: ir.Value) -> ir.Value:
    """-operand; integers wrap, unsigned ones too."""
    if is_unsigned(ctx.result.dtype):
        return stablehlo.subtract(hlo.full_like(operand, 0), operand)
    return stablehlo.negate(operand)


# --- roots, exponentials, logarithms, trigonometry ----------------------------------------------


def reciprocal(operand: ir.Value) -> ir.Value:
    """Return 1 / operand."""
    return stablehlo.divide(hlo.full_like(operand, 1), operand)


def _scaled(operand: ir.Value, factor: float) -> ir.Value:
    """Return a complex operand times a number: of two complex ones an infinity would give NaN."""
    real, imaginary = stablehlo.real(operand), stablehlo.imag(operand)
    factors = hlo.full_like(real, factor)
    return stablehlo.complex(
        stablehlo.multiply(real, factors), stablehlo.multiply(imaginary, factors)
    )


def _signed(build: Unary, *, real: bool = False, negated: bool = False) -> Unary:
    """Return `build` with the sides of its branch cuts told by the signs of zeros.

    XLA takes -2 - 0i for a point above the cut. For these functions the imaginary part has the
    sign of the operand's, or the other one if `negated`; where they are odd the `real` part has
    the sign of the operand's too (C99, annex G.6).
    """

    def function(operand: ir.Value) -> ir.Value:
        result = build(operand)
        if not spec_of(operand).dtype.is_complex:
            return result
        side = stablehlo.imag(operand)
        imaginary = with_sign(stablehlo.imag(result), stablehlo.negate(side) if negated else side)
        length: ir.Value = stablehlo.real(result)
        if real:
            length = with_sign(length, stablehlo.real(operand))
        return stablehlo.complex(length, imaginary)

    return function


sqrt = _signed(stablehlo.sqrt)


def exp2(operand: ir.Value) -> ir.Value:
    """Return 2**operand; `exp(x * ln 2)` would lose digits for large real x."""
    if spec_of(operand).dtype.is_complex:
        return stablehlo.exponential(_scaled(operand, math.log(2)))
    return stablehlo.power(hlo.full_like(operand, 2), operand)


def log2(operand: ir.Value) -> ir.Value:
    """Return the logarithm to base 2, whole for whole powers of 2, as libm's is.

    log(x) / log(2) misses them by a rounding error that `floor` then makes a whole one. So the
    exponent is taken off first, and the logarithm of a mantissa around 1 added to it.
    """
    if spec_of(operand).dtype.is_complex:
        return _scaled(stablehlo.log(operand), 1 / math.log(2))
    mantissa, exponent = split_float(operand)
    exponent = hlo.convert(exponent, spec_of(operand).dtype)
    low = hlo.compare(mantissa, hlo.full_like(mantissa, math.sqrt(0.5)), "LT")
    low = stablehlo.and_(low, hlo.compare(mantissa, hlo.full_like(mantissa, 0.5), "GE"))
    double = hlo.select(low, hlo.full_like(mantissa, 2), hlo.full_like(mantissa, 1))
    mantissa = stablehlo.multiply(mantissa, double)
    whole = stablehlo.subtract(exponent, hlo.convert(low, spec_of(operand).dtype))
    fraction = stablehlo.divide(stablehlo.log(mantissa), hlo.full_like(mantissa, math.log(2)))
    return stablehlo.add(whole, fraction)


def log10(operand: ir.Value) -> ir.Value:
    """Return the logarithm to base 10."""
    if spec_of(operand).dtype.is_complex:
        return _scaled(stablehlo.log(operand), 1 / math.log(10))
    return stablehlo.divide(stablehlo.log(operand), hlo.full_like(operand, math.log(10)))


register_unary(
    {
        aten.exp.default: stablehlo.exponential,
        aten.exp2.default: widened(exp2),
        aten.expm1.default: stablehlo.exponential_minus_one,
        aten.log.default: stablehlo.log,
        aten.log1p.default: stablehlo.log_plus_one,
        aten.log2.default: widened(log2),
        aten.log10.default: widened(log10),
        aten.sqrt.default: sqrt,
        aten.rsqrt.default: stablehlo.rsqrt,
        aten.reciprocal.default: reciprocal,
        aten.sin.default: stablehlo.sine,
        aten.cos.default: stablehlo.cosine,
        aten.tan.default: widened(stablehlo.tan),
        aten.tanh.default: stablehlo.tanh,
        aten.sinh.default: widened(chlo.sinh),
        aten.cosh.default: widened(chlo.cosh),
        aten.asin.default: _signed(widened(chlo.asin), real=True),
        aten.acos.default: _signed(widened(chlo.acos), negated=True),
        aten.atan.default: _signed(widened(chlo.atan), real=True),
        aten.asinh.default: _signed(widened(chlo.asinh), real=True),
        aten.acosh.default: _signed(widened(chlo.acosh)),
        aten.atanh.default: _signed(widened(chlo.atanh), real=True),
    }
)
