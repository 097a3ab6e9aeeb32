"""Copies, casts and reinterpretation of bits: ops that change where or how a value is stored.

Casting a float that the integer type cannot hold is undefined in C and so in eager PyTorch: here
NaN gives 0 and values beyond 32 bits saturate first.
"""

from __future__ import annotations

import torch

from lowering import hlo
from lowering.bucketing.rules import flows_zero
from lowering.bucketing.views import reinterpreted
from lowering.context import LoweringContext
from lowering.dtypes import TensorSpec, real_dtype, spec_of, tensor_type
from lowering.mlir import ir, stablehlo
from lowering.ops.complex_numbers import complex_from_pairs, pairs_from_complex
from lowering.registry import Padding, lowering

aten = torch.ops.aten


@lowering(
    aten.clone.default,
    aten.alias.default,
    aten.lift.default,
    aten.lift_fresh.default,
    aten.lift_fresh_copy.default,
    padding=flows_zero,
)
def identity(ctx: LoweringContext, operand: ir.Value) -> ir.Value:
    """The operand: values have no storage, so a copy and an alias are the same."""
    return operand


@lowering(aten._to_copy.default, padding=flows_zero)
def to_copy(
    ctx: LoweringContext, operand: ir.Value | hlo.Scalar, *, dtype: torch.dtype | None = None
) -> ir.Value:
    """The operand cast to `dtype`; device and layout are the compiler's business.

    Vectorized functions (`torch.vmap`) call it on numbers too.
    """
    return ctx.as_value(operand, ctx.result.dtype)


@lowering(torch.ops.prims.convert_element_type.default, padding=flows_zero)
def convert_element_type(ctx: LoweringContext, operand: ir.Value, dtype: torch.dtype) -> ir.Value:
    """The operand cast to `dtype`; Dynamo writes it where a size or a float enters arithmetic."""
    return hlo.convert(operand, dtype)


@lowering(aten.copy.default, padding=Padding.FLOWS)
def copy(ctx: LoweringContext, operand: ir.Value, source: ir.Value) -> ir.Value:
    """`source` cast and broadcast to the dtype and shape of `operand`, whose data is ignored."""
    return ctx.broadcast_operands((source,), ctx.result.dtype)[0]


@lowering(aten.view.dtype, aten.view_copy.dtype, padding=reinterpreted)
def view_dtype(ctx: LoweringContext, operand: ir.Value, dtype: torch.dtype) -> ir.Value:
    """The bytes of the operand read as `dtype`; the last dim grows or shrinks with the width."""
    if spec_of(operand).dtype is dtype:
        return operand
    return _from_bits(_to_bits(operand), ctx.result)


def _to_bits(operand: ir.Value) -> ir.Value:
    """Return an operand without bools and complex numbers, its last dim in memory order."""
    spec = spec_of(operand)
    if spec.dtype is torch.bool:
        return hlo.convert(operand, torch.uint8)
    if spec.dtype.is_complex:
        pairs = pairs_from_complex(operand)
        return hlo.reshape(pairs, (*spec.shape[:-1], 2 * (spec.shape[-1] if spec.rank else 1)))
    return operand


def _from_bits(operand: ir.Value, result: TensorSpec) -> ir.Value:
    if result.dtype is torch.bool:
        return hlo.convert(_recast(operand, TensorSpec(result.shape, torch.uint8)), torch.bool)
    if result.dtype.is_complex:
        pairs = TensorSpec(
            (*result.shape[:-1], 2 * (result.shape[-1] if result.rank else 1)),
            real_dtype(result.dtype),
        )
        return complex_from_pairs(hlo.reshape(_recast(operand, pairs), (*result.shape, 2)))
    return _recast(operand, result)


def _recast(operand: ir.Value, result: TensorSpec) -> ir.Value:
    """Return the bits of `operand` under another dtype, the last dim split or joined."""
    spec = spec_of(operand)
    if spec.dtype is result.dtype:
        return hlo.reshape(operand, result.shape)
    old, new = spec.dtype.itemsize, result.dtype.itemsize
    if old == new:
        return hlo.reshape(hlo.bitcast(operand, result.dtype), result.shape)
    if old < new:
        parts = hlo.reshape(operand, (*result.shape, new // old))
        return stablehlo.bitcast_convert(tensor_type(result), parts)
    split = TensorSpec((*spec.shape, old // new), result.dtype)
    return hlo.reshape(stablehlo.bitcast_convert(tensor_type(split), operand), result.shape)
