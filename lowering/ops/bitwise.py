"""Bit operations on integers and bools, and shifts."""

from __future__ import annotations

import torch

from lowering.dtypes import is_unsigned, spec_of
from lowering.mlir import ir, stablehlo
from lowering.ops.pointwise import register_binary, register_unary

aten = torch.ops.aten


def _right_shift(left: ir.Value, right: ir.Value) -> ir.Value:
    """Return left >> right; a shift by the width or more, or by a negative amount, leaves the sign.

    StableHLO reads the amount as unsigned and saturates, which is what ATen's kernels do.
    """
    if is_unsigned(spec_of(left).dtype):
        return stablehlo.shift_right_logical(left, right)
    return stablehlo.shift_right_arithmetic(left, right)


register_unary({aten.bitwise_not.default: stablehlo.not_})

register_binary(
    {
        aten.bitwise_and.Tensor: stablehlo.and_,
        aten.bitwise_and.Scalar: stablehlo.and_,
        aten.bitwise_and.Scalar_Tensor: stablehlo.and_,
        aten.bitwise_or.Tensor: stablehlo.or_,
        aten.bitwise_or.Scalar: stablehlo.or_,
        aten.bitwise_or.Scalar_Tensor: stablehlo.or_,
        aten.bitwise_xor.Tensor: stablehlo.xor,
        aten.bitwise_xor.Scalar: stablehlo.xor,
        aten.bitwise_xor.Scalar_Tensor: stablehlo.xor,
        aten.bitwise_left_shift.Tensor: stablehlo.shift_left,
        aten.bitwise_left_shift.Tensor_Scalar: stablehlo.shift_left,
        aten.bitwise_left_shift.Scalar_Tensor: stablehlo.shift_left,
        aten.__lshift__.Tensor: stablehlo.shift_left,
        aten.__lshift__.Scalar: stablehlo.shift_left,
        aten.__rshift__.Tensor: _right_shift,
        aten.__rshift__.Scalar: _right_shift,
        aten.bitwise_right_shift.Tensor: _right_shift,
        aten.bitwise_right_shift.Tensor_Scalar: _right_shift,
        aten.bitwise_right_shift.Scalar_Tensor: _right_shift,
    }
)
