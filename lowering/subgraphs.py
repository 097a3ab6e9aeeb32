"""What a higher-order operator holds: the graphs it runs and the op that it wraps, as FX sees them.

Control flow and its like take GraphModules as arguments; wrappers (effect tokens, saved random
states, functionalized mutation) take another op. Nothing here builds MLIR.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch._higher_order_ops
import torch._prims.rng_prims
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload

higher_order = torch.ops.higher_order

# A saved random state, in a compiled graph: a key of two 32-bit words.
RNG_STATE_BYTES = 8

# Ops that wrap another op, and the position of that op among their arguments.
WRAPPED_AT: dict[HigherOrderOperator, int] = {
    higher_order.with_effects: 1,
    higher_order.run_and_save_rng_state: 0,
    higher_order.run_with_rng_state: 1,
    higher_order.auto_functionalized: 0,
    higher_order.auto_functionalized_v2: 0,
}


@dataclass(frozen=True, eq=False)
class WrappedCall:
    """The call that a wrapper makes, with the attributes of an FX node that rules and checks read.

    A real node would add itself to the users of its arguments and so change the graph.
    """

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    meta: dict[str, Any]
    name: str
    graph: fx.Graph
    op: str = "call_function"
    users: dict[fx.Node, None] = field(default_factory=dict)

    @property
    def all_input_nodes(self) -> list[fx.Node]:
        """The nodes among the arguments, each once."""
        found: dict[fx.Node, None] = {}
        fx.node.map_arg((self.args, self.kwargs), found.setdefault)
        return list(found)


def wrapped_call(node: fx.Node) -> fx.Node | None:
    """Return the call that the wrapper `node` makes; None if it wraps no op.

    Of functionalized mutation only the op is known here: its arguments are regenerated from the
    tensors that it writes to when it is lowered.
    """
    if not isinstance(node.target, HigherOrderOperator) or node.target not in WRAPPED_AT:
        return None
    position = WRAPPED_AT[node.target]
    value: Any = node.meta.get("val")
    if node.target is higher_order.with_effects:
        value = value[1] if len(value) == 2 else tuple(value[1:])
    elif node.target is higher_order.run_and_save_rng_state:
        value = value[1]
    call = WrappedCall(
        node.args[position],
        tuple(node.args[position + 1 :]),
        dict(node.kwargs),
        {**node.meta, "val": value},
        node.name,
        node.graph,
    )
    return cast(fx.Node, call)


def subgraph(node: fx.Node) -> fx.GraphModule | None:
    """Return the graph that a `get_attr` node stands for; None if it is anything else."""
    owner = node.graph.owning_module
    if node.op != "get_attr" or owner is None:
        return None
    value = operator.attrgetter(str(node.target))(owner)
    return value if isinstance(value, fx.GraphModule) else None


def subgraphs(node: fx.Node) -> Iterator[fx.GraphModule]:
    """Give the graphs among the arguments of `node`."""
    if isinstance(node.target, HigherOrderOperator):
        for source in node.all_input_nodes:
            graph_module = subgraph(source)
            if graph_module is not None:
                yield graph_module


def op_name(node: fx.Node) -> str:
    """Return how to call the op of `node`: a wrapper of an op by the op that it wraps."""
    call = wrapped_call(node)
    return str(node.target if call is None else call.target)


def is_mutable(node: fx.Node) -> bool:
    """Whether the op of `node` writes to one of its arguments."""
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


@functools.lru_cache(maxsize=4096)
def _is_random(overload: OpOverload) -> bool:
    return torch.Tag.nondeterministic_seeded in overload.tags


def draws_random_numbers(node: fx.Node) -> bool:
    """Whether `node` reads the random state, be it deep within a graph that it runs."""
    target = node.target
    if isinstance(target, OpOverload):
        return _is_random(target)
    if target is higher_order.run_with_rng_state:
        return False
    call = wrapped_call(node)
    if call is not None:
        return draws_random_numbers(call)
    return any(
        draws_random_numbers(inner) for module in subgraphs(node) for inner in module.graph.nodes
    )
