"""Arithmetic on numbers that only a run can tell: a counter of a loop, an element read by `item`.

Within a region such a number is a 0-d value (i64, f64 or i1), while FX sees a SymInt and computes
with Python operators on it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from lowering import hlo
from lowering.context import LoweringContext, unsupported_op
from lowering.dtypes import is_integer, spec_of
from lowering.mlir import ir, stablehlo
from lowering.sizes import number_dtype

aten = torch.ops.aten

# Overloads whose rules take a 0-d value wherever torch takes a number.
ACCEPT_RUN_TIME_NUMBERS = frozenset(
    {
        *(
            getattr(packet, overload)
            for packet in (aten.add, aten.sub, aten.mul, aten.div)
            for overload in ("Tensor", "Scalar")
        ),
        *(
            getattr(packet, overload)
            for packet in (aten.eq, aten.ne, aten.lt, aten.le, aten.gt, aten.ge)
            for overload in ("Tensor", "Scalar")
        ),
        *(
            getattr(packet, overload)
            for packet in (aten.remainder, aten.fmod, aten.bitwise_and, aten.bitwise_or)
            for overload in ("Tensor", "Scalar")
        ),
        aten.div.Tensor_mode,
        aten.div.Scalar_mode,
        aten.true_divide.Tensor,
        aten.true_divide.Scalar,
        aten.select.int,
        aten.full.default,
        aten.full_like.default,
        aten.scalar_tensor.default,
        aten.clamp.default,
    }
)


def _negated(operand: ir.Value) -> ir.Value:
    return stablehlo.negate(operand)


def _compared(direction: str) -> Callable[[ir.Value, ir.Value], ir.Value]:
    return lambda left, right: hlo.compare(left, right, direction)


def floored_quotient(left: ir.Value, right: ir.Value) -> ir.Value:
    """Return the quotient rounded down, as Python's `//` does."""
    quotient = stablehlo.divide(left, right)
    if not is_integer(spec_of(left).dtype):
        return stablehlo.floor(quotient)
    remainder = stablehlo.remainder(left, right)
    zero = hlo.full_like(remainder, 0)
    inexact = hlo.compare(remainder, zero, "NE")
    differ = stablehlo.xor(hlo.compare(remainder, zero, "LT"), hlo.compare(right, zero, "LT"))
    below = hlo.convert(stablehlo.and_(inexact, differ), spec_of(left).dtype)
    return stablehlo.subtract(quotient, below)


def remainder(left: ir.Value, right: ir.Value) -> ir.Value:
    """Return the remainder with the sign of `right`, as Python's `%` does."""
    return stablehlo.subtract(left, stablehlo.multiply(floored_quotient(left, right), right))


_ARITHMETIC: dict[Any, Callable[..., ir.Value]] = {
    operator.add: stablehlo.add,
    operator.sub: stablehlo.subtract,
    operator.mul: stablehlo.multiply,
    operator.neg: _negated,
    operator.floordiv: floored_quotient,
    operator.mod: remainder,
    torch.sym_max: stablehlo.maximum,
    torch.sym_min: stablehlo.minimum,
    operator.and_: stablehlo.and_,
    operator.or_: stablehlo.or_,
    torch.sym_not: stablehlo.not_,
}

_COMPARISONS: dict[Any, Callable[..., ir.Value]] = {
    operator.eq: _compared("EQ"),
    operator.ne: _compared("NE"),
    operator.lt: _compared("LT"),
    operator.le: _compared("LE"),
    operator.gt: _compared("GT"),
    operator.ge: _compared("GE"),
}


def lower_number(node: fx.Node, args: list[Any]) -> ir.Value:
    """Return the number that `node` computes, from 0-d values and plain numbers.

    Raises:
        UnsupportedOpError: no rule for the node's function, or a float on a TPU.
    """
    target: Any = node.target
    if target is aten._local_scalar_dense.default:
        return hlo.reshape(hlo.convert(args[0], number_dtype(node.meta["val"])), ())
    build = _ARITHMETIC.get(target) or _COMPARISONS.get(target)
    if build is None:
        raise unsupported_op(node, "it computes with a number that only the run can tell")
    if target in _COMPARISONS:
        dtypes = [
            spec_of(arg).dtype if isinstance(arg, ir.Value) else number_dtype(arg) for arg in args
        ]
        dtype = torch.float64 if torch.float64 in dtypes else torch.int64
    else:
        dtype = number_dtype(node.meta["val"])
    return build(*(as_number(arg, dtype) for arg in args))


def as_number(operand: Any, dtype: torch.dtype) -> ir.Value:
    """Return a 0-d value or a plain number as a 0-d value of `dtype`."""
    if isinstance(operand, ir.Value):
        return hlo.convert(operand, dtype)
    return hlo.scalar(operand, dtype)


def accepts_run_time_numbers(ctx: LoweringContext, node: fx.Node) -> bool:
    """Whether the rule of `node` takes 0-d values for numbers."""
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return True
    floats = any(
        isinstance(source.meta.get("val"), (float, torch.SymFloat))
        for source in node.all_input_nodes
    )
    return node.target in ACCEPT_RUN_TIME_NUMBERS and not (floats and ctx.options.platform == "tpu")
