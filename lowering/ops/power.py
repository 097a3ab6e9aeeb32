"""Powers: tensor to a number, number to a tensor, tensor to a tensor."""

from __future__ import annotations

import torch

from lowering import hlo
from lowering.context import LoweringContext
from lowering.dtypes import opmath_dtype
from lowering.mlir import ir, stablehlo
from lowering.ops.pointwise import register_binary, widened_binary
from lowering.ops.unary import exp2, reciprocal, sqrt
from lowering.registry import Padding, lowering

aten = torch.ops.aten

# Up to here repeated multiplication is as accurate as a general power, and much cheaper.
_LARGEST_MULTIPLIED_EXPONENT = 4


def repeated_product(operand: ir.Value, exponent: int) -> ir.Value:
    """Return `operand` to a non-negative whole power by squaring; integers wrap."""
    result = None
    while exponent:
        if exponent & 1:
            result = operand if result is None else stablehlo.multiply(result, operand)
        exponent >>= 1
        if exponent:
            operand = stablehlo.multiply(operand, operand)
    return hlo.full_like(operand, 1) if result is None else result


def scalar_power(operand: ir.Value, exponent: hlo.Scalar) -> ir.Value:
    """Return a floating or complex operand to the power of a number.

    Halves are roots, as in ATen's kernel: (-inf) ** 0.5 is NaN, not inf.
    """
    if exponent == 0.5:
        return sqrt(operand)
    if exponent == -0.5:
        return stablehlo.rsqrt(operand)
    if (
        not isinstance(exponent, complex)
        and float(exponent).is_integer()
        and abs(exponent) <= _LARGEST_MULTIPLIED_EXPONENT
    ):
        power = repeated_product(operand, abs(int(exponent)))
        return reciprocal(power) if exponent < 0 else power
    return stablehlo.power(operand, hlo.full_like(operand, exponent))


@lowering(aten.pow.Tensor_Scalar, padding=Padding.FLOWS)
def pow_tensor_scalar(ctx: LoweringContext, operand: ir.Value, exponent: hlo.Scalar) -> ir.Value:
    """Operand ** number in the promoted dtype; integers wrap."""
    dtype = ctx.result.dtype
    if dtype.is_floating_point or dtype.is_complex:
        power = scalar_power(hlo.convert(operand, opmath_dtype(dtype)), exponent)
        return hlo.convert(power, dtype)
    if exponent < 0:  # type: ignore[operator]
        raise ctx.unsupported("Integers to negative integer powers are not defined.")
    return repeated_product(hlo.convert(operand, dtype), int(exponent))  # type: ignore[arg-type]


@lowering(aten.pow.Scalar, padding=Padding.FLOWS)
def pow_scalar(ctx: LoweringContext, operand: hlo.Scalar, exponent: ir.Value) -> ir.Value:
    """Number ** exponent in the promoted dtype; 1 to any power, NaN too, is 1."""
    dtype = ctx.result.dtype
    if operand == 1:
        return hlo.full(ctx.result.shape, dtype, 1)
    exponent = hlo.convert(exponent, opmath_dtype(dtype))
    if operand == 2 and dtype.is_floating_point:
        return hlo.convert(exp2(exponent), dtype)
    return hlo.convert(stablehlo.power(hlo.full_like(exponent, operand), exponent), dtype)


# Integers wrap; a negative exponent leaves the whole part: 0 unless the base is 1 or -1.
register_binary({aten.pow.Tensor_Tensor: widened_binary(stablehlo.power)})
