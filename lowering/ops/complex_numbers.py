"""Complex tensors: building them from real ones, their parts, conjugates and angles."""

from __future__ import annotations

import math

import torch

from lowering import hlo
from lowering.bucketing.views import paired, unpaired
from lowering.context import LoweringContext
from lowering.dtypes import spec_of
from lowering.mlir import ir, stablehlo
from lowering.registry import Padding, lowering

aten = torch.ops.aten


def complex_from_pairs(pairs: ir.Value) -> ir.Value:
    """Return `[..., 2]` real values as `[...]` complex ones."""
    shape = spec_of(pairs).shape[:-1]
    last = len(shape)
    real = hlo.slice_in_dim(pairs, 0, 1, dim=last)
    imaginary = hlo.slice_in_dim(pairs, 1, 2, dim=last)
    return stablehlo.complex(hlo.reshape(real, shape), hlo.reshape(imaginary, shape))


def pairs_from_complex(operand: ir.Value) -> ir.Value:
    """Return `[...]` complex values as `[..., 2]` real ones."""
    rank = spec_of(operand).rank
    real = hlo.expand_dims(stablehlo.real(operand), [rank])
    imaginary = hlo.expand_dims(stablehlo.imag(operand), [rank])
    return hlo.concatenate((real, imaginary), rank)


def conjugate(operand: ir.Value) -> ir.Value:
    """Return the complex conjugate; a real operand as it is."""
    if not spec_of(operand).dtype.is_complex:
        return operand
    imaginary = stablehlo.negate(stablehlo.imag(operand))
    return stablehlo.complex(stablehlo.real(operand), imaginary)


@lowering(aten.view_as_complex.default, aten.view_as_complex_copy.default, padding=paired)
def view_as_complex(ctx: LoweringContext, operand: ir.Value) -> ir.Value:
    """The last dim, of size 2, read as real and imaginary part."""
    return complex_from_pairs(operand)


@lowering(aten.view_as_real.default, aten.view_as_real_copy.default, padding=unpaired)
def view_as_real(ctx: LoweringContext, operand: ir.Value) -> ir.Value:
    """Real and imaginary part along a new last dim."""
    return pairs_from_complex(operand)


@lowering(aten._conj.default, aten._conj_physical.default, padding=Padding.FLOWS)
def conj(ctx: LoweringContext, operand: ir.Value | hlo.Scalar) -> ir.Value:
    """The complex conjugate; of a number too, which autograd writes for x * 2j."""
    return conjugate(ctx.as_value(operand, ctx.result.dtype))


@lowering(aten._neg_view.default, padding=Padding.FLOWS)
def neg_view(ctx: LoweringContext, operand: ir.Value) -> ir.Value:
    """-operand (the imaginary part of a lazily conjugated tensor)."""
    return stablehlo.negate(operand)


@lowering(aten.complex.default, padding=Padding.FLOWS)
def complex_(ctx: LoweringContext, real: ir.Value, imaginary: ir.Value) -> ir.Value:
    """Real + i * imaginary, broadcast."""
    parts = ctx.broadcast_operands((real, imaginary), spec_of(real).dtype)
    return stablehlo.complex(parts[0], parts[1])


@lowering(aten.polar.default, padding=Padding.FLOWS)
def polar(ctx: LoweringContext, absolute: ir.Value, angle: ir.Value) -> ir.Value:
    """Absolute * (cos(angle) + i * sin(angle)), broadcast."""
    absolute, angle = ctx.broadcast_operands((absolute, angle), spec_of(absolute).dtype)
    return stablehlo.complex(
        stablehlo.multiply(absolute, stablehlo.cosine(angle)),
        stablehlo.multiply(absolute, stablehlo.sine(angle)),
    )


@lowering(aten.angle.default, padding=Padding.FLOWS)
def angle(ctx: LoweringContext, operand: ir.Value) -> ir.Value:
    """The argument of a complex number; for real ones pi below zero, NaN for NaN, else 0."""
    if spec_of(operand).dtype.is_complex:
        return stablehlo.atan2(stablehlo.imag(operand), stablehlo.real(operand))
    operand = hlo.convert(operand, ctx.result.dtype)
    zero = hlo.full_like(operand, 0)
    below = hlo.compare(operand, zero, "LT")
    flat = hlo.select(below, hlo.full_like(operand, math.pi), zero)
    return hlo.select(hlo.is_nan(operand), operand, flat)
