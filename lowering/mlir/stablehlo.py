"""StableHLO's op builders: jaxlib's, and quicker ones for the ops that models are made of.

jaxlib generates a class an op whose constructor takes any form of every argument and lets MLIR
infer the result's type. The functions here take what rules give them and name the type
themselves, in a third of the time; the module's verifier checks the types in the end. A name
that is not defined here is jaxlib's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lowering.mlir.bindings import ir
from lowering.mlir.bindings import stablehlo as dialect
from lowering.mlir.context import memo

_create = ir.Operation.create


def __getattr__(name: str) -> Any:
    return getattr(dialect, name)


def op(
    name: str,
    results: Sequence[ir.Type],
    operands: Sequence[ir.Value],
    attributes: dict[str, ir.Attribute] | None = None,
    *,
    regions: int = 0,
) -> ir.Operation:
    """Return the op `stablehlo.<name>`, added at the insertion point; regions are still empty."""
    return _create(f"stablehlo.{name}", results, operands, attributes, regions=regions)


def _unary(name: str) -> Callable[[ir.Value], ir.Value]:
    name = f"stablehlo.{name}"

    def build(operand: ir.Value) -> ir.Value:
        return _create(name, [operand.type], [operand]).result

    return build


def _binary(name: str) -> Callable[[ir.Value, ir.Value], ir.Value]:
    name = f"stablehlo.{name}"

    def build(lhs: ir.Value, rhs: ir.Value) -> ir.Value:
        return _create(name, [lhs.type], [lhs, rhs]).result

    return build


cbrt = _unary("cbrt")
ceil = _unary("ceil")
cosine = _unary("cosine")
exponential = _unary("exponential")
exponential_minus_one = _unary("exponential_minus_one")
floor = _unary("floor")
log = _unary("log")
log_plus_one = _unary("log_plus_one")
logistic = _unary("logistic")
negate = _unary("negate")
not_ = _unary("not")
rsqrt = _unary("rsqrt")
sign = _unary("sign")
sine = _unary("sine")
sqrt = _unary("sqrt")
tanh = _unary("tanh")

add = _binary("add")
and_ = _binary("and")
atan2 = _binary("atan2")
divide = _binary("divide")
maximum = _binary("maximum")
minimum = _binary("minimum")
multiply = _binary("multiply")
or_ = _binary("or")
power = _binary("power")
remainder = _binary("remainder")
shift_left = _binary("shift_left")
shift_right_arithmetic = _binary("shift_right_arithmetic")
shift_right_logical = _binary("shift_right_logical")
subtract = _binary("subtract")
xor = _binary("xor")


def constant(value: ir.Attribute) -> ir.Value:
    """Return the elements of a dense attribute."""
    return _create("stablehlo.constant", [value.type], attributes={"value": value}).result


def convert(result: ir.Type, operand: ir.Value) -> ir.Value:
    """Return `operand` element by element in the element type of `result`."""
    return _create("stablehlo.convert", [result], [operand]).result


def reshape(result: ir.Type, operand: ir.Value) -> ir.Value:
    """Return `operand` in row-major order in the shape of `result`."""
    return _create("stablehlo.reshape", [result], [operand]).result


def select(pred: ir.Value, on_true: ir.Value, on_false: ir.Value) -> ir.Value:
    """Return `on_true` where `pred` holds, else `on_false`."""
    return _create("stablehlo.select", [on_true.type], [pred, on_true, on_false]).result


def broadcast_in_dim(result: ir.Type, operand: ir.Value, dimensions: Sequence[int]) -> ir.Value:
    """Return `operand` with its dim `i` along dim `dimensions[i]` of `result`."""
    attributes = {"broadcast_dimensions": integers(dimensions)}
    return _create("stablehlo.broadcast_in_dim", [result], [operand], attributes).result


# --- attributes, remembered by the context ------------------------------------------------------


def integers(values: Sequence[int]) -> ir.Attribute:
    """Return a list of 64-bit integers as an attribute."""
    key = tuple(values)
    known = memo()
    found = known.get(key)
    if found is None:
        found = known[key] = ir.DenseI64ArrayAttr.get(list(values))
    return found


def precision_attribute(precision: str) -> ir.Attribute:
    """Return the two-operand precision attribute; `precision` is DEFAULT, HIGH or HIGHEST."""
    key = ("precision", precision)
    known = memo()
    found = known.get(key)
    if found is None:
        found = known[key] = ir.ArrayAttr.get([enumerator("Precision", precision)] * 2)
    return found


def enumerator(kind: str, name: str) -> ir.Attribute:
    """Return `name` of the enumeration `kind`, such as `ComparisonDirection`."""
    key = (kind, name)
    known = memo()
    found = known.get(key)
    if found is None:
        found = known[key] = getattr(dialect, f"{kind}Attr").get(name)
    return found


def dot_dimensions(
    batch: tuple[Sequence[int], Sequence[int]], contracting: tuple[Sequence[int], Sequence[int]]
) -> ir.Attribute:
    """Return the dims that `dot_general` batches and contracts, of its left and right operand."""
    key = ("dot", *[tuple(dims) for dims in (*batch, *contracting)])
    known = memo()
    found = known.get(key)
    if found is None:
        found = known[key] = dialect.DotDimensionNumbers.get(
            lhs_batching_dimensions=list(batch[0]),
            rhs_batching_dimensions=list(batch[1]),
            lhs_contracting_dimensions=list(contracting[0]),
            rhs_contracting_dimensions=list(contracting[1]),
        )
    return found
