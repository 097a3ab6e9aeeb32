"""Branches and loops whose bodies are graphs: cond, while_loop, scan, map, associative_scan.

Bodies become regions of StableHLO ops. What a body takes from outside comes as operands, in FX as
in the regions here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from lowering import hlo
from lowering.context import LoweringContext
from lowering.dtypes import TensorSpec, spec_of, tensor_type
from lowering.mlir import ir, stablehlo
from lowering.regions import Region
from lowering.registry import Padding, lowering
from lowering.run_time_numbers import as_number
from lowering.sizes import SYMBOLIC, number_dtype
from lowering.threefry import fresh_key
from lowering.tracing import lower_function

higher_order = torch.ops.higher_order


# --- branches ------------------------------------------------------------------------------------


@lowering(higher_order.cond, padding=Padding.EXACT)
def cond(
    ctx: LoweringContext,
    predicate: ir.Value | bool,
    on_true: Region,
    on_false: Region,
    operands: Sequence[Any] = (),
) -> tuple[Any, ...]:
    """What the taken branch gives; only that one runs.

    A predicate that is a number known at compile time leaves only its branch.
    """
    if not isinstance(predicate, ir.Value):
        taken = on_true if predicate else on_false
        return tuple(_values(taken(*operands), ctx.node.meta["val"]))
    predicate = hlo.reshape(hlo.convert(predicate, torch.bool), ())
    expected = ctx.node.meta["val"]
    op: Any = stablehlo.IfOp(_types(ctx, expected), predicate)
    for region, branch in zip(op.regions, (on_true, on_false), strict=True):
        hlo.fill_region(region, [], lambda branch=branch: _given(branch(*operands), expected))
    return _with_nones(op.results, expected)


def _types(ctx: LoweringContext, expected: Sequence[Any]) -> list[ir.Type]:
    """Return the MLIR types of what a branch gives, None left out."""
    return [_type(ctx, item) for item in expected if item is not None]


def _type(ctx: LoweringContext, item: Any) -> ir.Type:
    spec = ctx.spec(item)
    return tensor_type(TensorSpec((), number_dtype(item)) if spec is None else spec)


def _values(results: Sequence[Any], expected: Sequence[Any]) -> list[Any]:
    """Return results with plain numbers made values."""
    return [
        result
        if result is None or isinstance(result, ir.Value)
        else as_number(result, number_dtype(item))
        for result, item in zip(results, expected, strict=True)
    ]


def _given(results: Sequence[Any], expected: Sequence[Any]) -> list[ir.Value]:
    return [value for value in _values(results, expected) if value is not None]


def _with_nones(results: Sequence[ir.Value], expected: Sequence[Any]) -> tuple[Any, ...]:
    values = iter(results)
    return tuple(None if item is None else next(values) for item in expected)


# --- loops ---------------------------------------------------------------------------------------


class _Keys:
    """The keys of a loop's passes: none is drawn unless a body draws random numbers.

    A pass draws from a key of its own, made from a counter that the loop carries.
    """

    def __init__(self, ctx: LoweringContext, *bodies: Region) -> None:
        self._ctx = ctx
        self._base = fresh_key(ctx) if any(body.draws_random_numbers for body in bodies) else None

    def run(self, body: Region, step: ir.Value, *operands: Any) -> list[Any]:
        """Return what `body` gives in the pass number `step` (0-d integer)."""
        if self._base is None or not body.draws_random_numbers:
            return body(*operands)
        with self._ctx.with_rng_key(self._base):
            key = fresh_key(self._ctx, hlo.convert(step, torch.uint32))
        with self._ctx.with_rng_key(key):
            return body(*operands)


@lowering(higher_order.while_loop, padding=Padding.EXACT)
def while_loop(
    ctx: LoweringContext,
    condition: Region,
    body: Region,
    carried: Sequence[Any],
    additional: Sequence[Any] = (),
) -> tuple[Any, ...]:
    """The carried values after `body` ran while `condition` held.

    Carried numbers are 0-d values within the loop, and so are the numbers it gives.
    """
    if condition.draws_random_numbers:
        raise ctx.unsupported("its condition draws random numbers")
    fakes = ctx.argument(2)
    keys = _Keys(ctx, body)
    initial = [
        as_number(x, number_dtype(fake)) if _is_number(fake) else x
        for x, fake in zip(carried, fakes, strict=True)
    ]
    types = [value.type for value in initial]

    def test(step: ir.Value, *values: ir.Value) -> ir.Value:
        (holds,) = condition(*values, *additional)
        return hlo.reshape(as_number(holds, torch.bool), ())

    def advance(step: ir.Value, *values: ir.Value) -> list[ir.Value]:
        results = _values(keys.run(body, step, *values, *additional), fakes)
        for result, kind in zip(results, types, strict=True):
            if result.type != kind:
                raise ctx.unsupported(f"a carried {kind} comes out of its body as {result.type}")
        return [stablehlo.add(step, hlo.full_like(step, 1)), *results]

    return tuple(hlo.while_loop(test, advance, [hlo.scalar(0, torch.int32), *initial])[1:])


def _is_number(fake: Any) -> bool:
    return isinstance(fake, (*SYMBOLIC, int, float))


def _steps_unknown(node: fx.Node) -> str:
    return "how many passes it stacks, and so the shape of what it gives, only the run can tell"


@lowering(higher_order.while_loop_stack_output, padding=Padding.EXACT, check=_steps_unknown)
def while_loop_stack_output(ctx: LoweringContext, *args: Any) -> ir.Value:
    """Never lowered: the loop of a differentiated while_loop runs in eager PyTorch."""
    raise ctx.unsupported(_steps_unknown(ctx.node))


def _loop(
    ctx: LoweringContext,
    length: int,
    body: Callable[[ir.Value, list[ir.Value]], tuple[list[ir.Value], list[ir.Value]]],
    initial: Sequence[ir.Value],
    stacked: Sequence[TensorSpec],
) -> tuple[list[ir.Value], list[ir.Value]]:
    """Return the last carried values, and what the passes gave stacked along a new dim 0.

    `body` takes the number of the pass (0-d i32) and the carried values.
    """
    count = len(initial)
    buffers = [hlo.full(spec.shape, spec.dtype, 0) for spec in stacked]

    def advance(step: ir.Value, *values: ir.Value) -> list[ir.Value]:
        carried, given = body(step, list(values[:count]))
        written = [
            hlo.dynamic_update(buffer, hlo.convert(value, spec.dtype), step)
            for buffer, value, spec in zip(values[count:], given, stacked, strict=True)
        ]
        return [stablehlo.add(step, hlo.full_like(step, 1)), *carried, *written]

    results = hlo.while_loop(
        lambda step, *_: hlo.compare(step, hlo.full_like(step, length), "LT"),
        advance,
        [hlo.scalar(0, torch.int32), *initial, *buffers],
    )[1:]
    return results[:count], results[count:]


@lowering(higher_order.scan, padding=Padding.EXACT)
def scan(
    ctx: LoweringContext,
    combine: Region,
    initial: Sequence[ir.Value],
    rows: Sequence[ir.Value],
    additional: Sequence[Any] = (),
) -> tuple[ir.Value, ...]:
    """The last carry, and what `combine` gave for each row of dim 0, stacked."""
    count = len(initial)
    keys = _Keys(ctx, combine)
    stacked = [spec for spec in ctx.results[count:] if spec is not None]

    def body(step: ir.Value, carry: list[ir.Value]) -> tuple[list[ir.Value], list[ir.Value]]:
        row = [hlo.dynamic_index(operand, step) for operand in rows]
        results = keys.run(combine, step, *carry, *row, *additional)
        return results[:count], results[count:]

    length = spec_of(rows[0]).shape[0]
    carried, given = _loop(ctx, length, body, initial, stacked)
    return (*carried, *given)


@lowering(higher_order.map_impl, padding=Padding.EXACT)
def map_(
    ctx: LoweringContext,
    function: Region,
    rows: Sequence[ir.Value],
    additional: Sequence[Any] = (),
) -> tuple[Any, ...]:
    """What `function` gives for each row of dim 0, stacked."""
    keys = _Keys(ctx, function)
    stacked = [spec for spec in ctx.results if spec is not None]

    def body(step: ir.Value, carry: list[ir.Value]) -> tuple[list[ir.Value], list[ir.Value]]:
        row = [hlo.dynamic_index(operand, step) for operand in rows]
        results = keys.run(function, step, *row, *additional)
        return [], [result for result in results if result is not None]

    _, given = _loop(ctx, spec_of(rows[0]).shape[0], body, [], stacked)
    return _with_nones(given, ctx.results)


@lowering(higher_order.associative_scan, padding=Padding.EXACT)
def associative_scan(
    ctx: LoweringContext,
    combine: Region,
    rows: Sequence[ir.Value],
    additional: Sequence[Any] = (),
) -> tuple[ir.Value, ...]:
    """At each position of dim 0 the rows up to it, combined: in log2 steps on whole tensors.

    Step by step a position takes in the one that lies 1, 2, 4... before it (Hillis and Steele,
    "Data parallel algorithms", 1986). `combine` is traced on single rows, so torch vectorizes it.
    """
    length = spec_of(rows[0]).shape[0]
    values = list(rows)
    in_dims = (*[0] * (2 * len(values)), *[None] * len(additional))
    vectorized = torch.vmap(combine.graph_module, in_dims=in_dims)
    distance = 1
    while distance < length:
        earlier = [hlo.slice_in_dim(v, 0, length - distance, dim=0) for v in values]
        later = [hlo.slice_in_dim(v, distance, length, dim=0) for v in values]
        combined = lower_function(ctx, vectorized, *earlier, *later, *additional)
        values = [
            hlo.concatenate([hlo.slice_in_dim(v, 0, distance, dim=0), c], 0)
            for v, c in zip(values, combined, strict=True)
        ]
        distance *= 2
    return tuple(values)
