"""Operators that run one graph, or one other op, with something around it.

Regions that repeat, effect tokens, saved random states, and mutation made functional.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch._higher_order_ops
from torch import fx
from torch._higher_order_ops.auto_functionalize import (
    AsStridedViewInfo,
    SliceViewInfo,
    get_mutable_args,
    read_view_information_from_args,
)

from lowering import hlo
from lowering.context import LoweringContext
from lowering.dtypes import spec_of
from lowering.mlir import ir, stablehlo
from lowering.regions import Region, apply_rule
from lowering.registry import REGISTRY, Padding, lowering
from lowering.subgraphs import RNG_STATE_BYTES, wrapped_call
from lowering.threefry import fresh_key

higher_order = torch.ops.higher_order


# --- graphs --------------------------------------------------------------------------------------


@lowering(higher_order.invoke_subgraph, padding=Padding.EXACT)
def invoke_subgraph(
    ctx: LoweringContext, region: Region, identifier: str, *operands: Any
) -> tuple[Any, ...]:
    """What the region gives: a call of a function that all calls of the region share.

    So a layer that repeats is lowered once, and the module stays small; XLA inlines the calls.
    """
    return tuple(region.call(*operands))


@lowering(higher_order.wrap, higher_order.tag_activation_checkpoint, padding=Padding.EXACT)
def wrap(ctx: LoweringContext, region: Region, *operands: Any, **_: Any) -> tuple[Any, ...]:
    """What the graph gives, lowered in place."""
    return tuple(region(*operands))


@lowering(higher_order.strict_mode, higher_order.run_const_graph, padding=Padding.EXACT)
def strict_mode(ctx: LoweringContext, region: Region, operands: Sequence[Any]) -> tuple[Any, ...]:
    """What the graph gives, lowered in place."""
    return tuple(region(*operands))


@lowering(higher_order.hints_wrapper, padding=Padding.EXACT)
def hints_wrapper(
    ctx: LoweringContext, region: Region, operands: Sequence[Any], *_: Any, **__: Any
) -> tuple[Any, ...]:
    """What the graph gives, lowered in place; the hints are for another compiler."""
    return tuple(region(*operands))


@lowering(higher_order.wrap_with_set_grad_enabled, padding=Padding.EXACT)
def wrap_with_set_grad_enabled(
    ctx: LoweringContext, enabled: bool, region: Region, *operands: Any
) -> tuple[Any, ...]:
    """What the graph gives, lowered in place: the gradients have their graphs already."""
    return tuple(region(*operands))


# --- effects and random states -------------------------------------------------------------------


def _call(ctx: LoweringContext, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return the results of the op that the node wraps."""
    call = wrapped_call(ctx.node)
    if call is None:
        raise TypeError(f"{ctx.node.target} wraps no op")
    result = apply_rule(ctx, call, args, kwargs)
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


@lowering(higher_order.with_effects, padding=Padding.EXACT)
def with_effects(
    ctx: LoweringContext, token: Any, op: Any, *args: Any, **kwargs: Any
) -> tuple[Any, ...]:
    """A token (an empty tensor) and the results of the op: a lowered op has no effect to order.

    The token that goes in is no value: torch passes None for it when the program runs.
    """
    return (hlo.full(ctx.result.shape, ctx.result.dtype, 0), *_call(ctx, args, kwargs))


@lowering(higher_order.run_and_save_rng_state, padding=Padding.EXACT)
def run_and_save_rng_state(
    ctx: LoweringContext, op: Any, *args: Any, **kwargs: Any
) -> tuple[ir.Value, Any]:
    """A key that is fresh, as bytes, and what the op draws from it."""
    key = fresh_key(ctx)
    with ctx.with_rng_key(key):
        results = _call(ctx, args, kwargs)
    state = hlo.reshape(stablehlo.bitcast_convert(_bytes_type(), key), (RNG_STATE_BYTES,))
    wrapped = ctx.node.meta["val"][1]
    return state, results if isinstance(wrapped, (tuple, list)) else results[0]


def _bytes_type() -> ir.Type:
    return ir.RankedTensorType.get((2, 4), ir.IntegerType.get_unsigned(8))


@lowering(higher_order.run_with_rng_state, padding=Padding.EXACT)
def run_with_rng_state(
    ctx: LoweringContext, state: ir.Value, op: Any, *args: Any, **kwargs: Any
) -> Any:
    """What the op draws from the key that a compiled `run_and_save_rng_state` gave."""
    if spec_of(state).shape != (RNG_STATE_BYTES,):
        raise ctx.unsupported("the random state was saved by eager PyTorch")
    words = ir.RankedTensorType.get((2,), ir.IntegerType.get_unsigned(32))
    key = stablehlo.bitcast_convert(words, hlo.reshape(state, (2, 4)))
    with ctx.with_rng_key(key):
        results = _call(ctx, args, kwargs)
    return results if isinstance(ctx.node.meta["val"], (tuple, list)) else results[0]


# --- mutation ------------------------------------------------------------------------------------


def _mutable_reason(node: fx.Node) -> str | None:
    op: Any = node.args[0]
    if not isinstance(op, torch._ops.OpOverload):
        return "it writes to tensors within a graph"
    return None if REGISTRY.get(op) else "it has no lowering"


@lowering(higher_order.auto_functionalized, padding=Padding.EXACT, check=_mutable_reason)
def auto_functionalized(ctx: LoweringContext, op: Any, **kwargs: Any) -> tuple[Any, ...]:
    """The op's results, then the new values of the arguments that it writes to."""
    return _results_and_new_values(ctx, op, kwargs)


def _results_and_new_values(
    ctx: LoweringContext, op: Any, kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """Return what the rule of a mutating op gives: its results and then the new values.

    Torch counts no result as one: None. None stands for the new value of an argument not given.
    """
    rule = REGISTRY.get(op)
    if rule is None:
        raise ctx.unsupported("it has no lowering")
    given = rule.function(ctx, **kwargs)
    results = list(given) if isinstance(given, (tuple, list)) else [given]
    names, _ = get_mutable_args(op)
    written = [name for name in names if kwargs.get(name) is not None]
    count = len(op._schema.returns)
    if len(results) != count + len(written):
        raise TypeError(
            f"the lowering of {op}, which writes to {', '.join(written)}, is to give {count} "
            f"results and then their new values, but gave {len(results)} values"
        )
    new_values = iter(results[count:])
    outputs: list[Any] = results[:count] or [None]
    return (*outputs, *(next(new_values) if name in written else None for name in names))


@lowering(higher_order.auto_functionalized_v2, padding=Padding.EXACT, check=_mutable_reason)
def auto_functionalized_v2(ctx: LoweringContext, op: Any, **kwargs: Any) -> tuple[Any, ...]:
    """The op's results, then the new values of the tensors that its arguments are views of."""
    bases = list(kwargs.pop("_all_bases"))
    names, kinds = get_mutable_args(op)
    kwargs = dict(kwargs)
    views = read_view_information_from_args(names, kinds, kwargs, bases)
    for name in names:
        if isinstance(views[name], (list, AsStridedViewInfo)):
            raise ctx.unsupported(f"the argument {name!r} is a list, or a view with strides")
        kwargs[name] = None if views[name] is None else _part(bases, views[name])
    results = _results_and_new_values(ctx, op, kwargs)
    for name, value in zip(names, results[len(results) - len(names) :], strict=True):
        if value is not None:
            base = bases[views[name].base_index]
            bases[views[name].base_index] = _with_part(base, views[name], value)
    return (*results[: len(results) - len(names)], *bases)


def _bounds(base: ir.Value, view: Any) -> tuple[int, int, int]:
    size = spec_of(base).shape[view.dim]
    start, end = (min(max(b + size if b < 0 else b, 0), size) for b in (view.start, view.end))
    return view.dim, start, max(start, end)


def _part(bases: Sequence[ir.Value], view: Any) -> ir.Value:
    """Return the argument that is `view` of its base."""
    base = bases[view.base_index]
    if not isinstance(view, SliceViewInfo):
        return base
    dim, start, end = _bounds(base, view)
    return hlo.slice_in_dim(base, start, end, dim=dim)


def _with_part(base: ir.Value, view: Any, value: ir.Value) -> ir.Value:
    """Return the base with the part that is `view` replaced."""
    if not isinstance(view, SliceViewInfo):
        return value
    dim, start, end = _bounds(base, view)
    size = spec_of(base).shape[dim]
    pieces = [
        hlo.slice_in_dim(base, 0, start, dim=dim),
        value,
        hlo.slice_in_dim(base, end, size, dim=dim),
    ]
    return hlo.concatenate([piece for piece in pieces if spec_of(piece).shape[dim]], dim)
