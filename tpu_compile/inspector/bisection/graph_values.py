"""The nodes of a functional graph on real tensors: what they give, and which are not ours."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from lowering.subgraphs import draws_random_numbers, subgraph
from tpu_compile.inspector.bisection.tolerances import widened
from tpu_compile.partition import EagerOp, Plan, SizedOp, is_ordered_check

aten = torch.ops.aten

# Their results are whatever the memory held.
_UNINITIALIZED = frozenset(
    {
        aten.empty.memory_format,
        aten.empty_strided.default,
        aten.empty_permuted.default,
        aten.new_empty.default,
        aten.new_empty_strided.default,
        aten.empty_like.default,
    }
)

_RANDOM_STATES = frozenset(
    {
        torch.ops.higher_order.run_and_save_rng_state,
        torch.ops.higher_order.run_with_rng_state,
    }
)


def run_outside(graph_plan: Plan) -> dict[fx.Node, str]:
    """Return the nodes that are not compared, and why."""
    found: dict[fx.Node, str] = {}
    reasons = {fallback.node: fallback.why for fallback in graph_plan.fallbacks}
    by_name = {node.name: node for node in graph_plan.graph_module.graph.nodes}
    for step in graph_plan.steps:
        if isinstance(step, SizedOp):
            found[by_name[step.node.name]] = "the size of its result depends on data"
        elif isinstance(step, EagerOp):
            node = by_name[step.node.name]
            if node.target is not operator.getitem:
                found[node] = f"it falls back: {reasons.get(node.name, 'it runs on the host')}"
    for node in graph_plan.graph_module.graph.nodes:
        if node.op != "call_function":
            continue
        if draws_random_numbers(node) or node.target in _RANDOM_STATES:
            found[node] = "it draws random numbers, and ours are other ones than eager's"
        elif node.target in _UNINITIALIZED:
            found[node] = "its result is not initialized"
        elif is_ordered_check(node):
            found[node] = "it only checks"
    return found


def without_data(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same sizes and strides that takes no memory."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def stored(item: fx.Node) -> Any:
    """Return the node whose value an output is: of a store, what is stored."""
    return item.args[1] if item.target is aten.copy_.default else item


def read_results(node: fx.Node) -> list[fx.Node]:
    """Return the nodes that stand for the results of an op that something reads."""
    if isinstance(node.meta.get("val"), torch.Tensor):
        return [node]
    by_position = {user.args[1]: user for user in node.users if user.target is operator.getitem}
    return list(by_position.values())


def attribute(graph_module: fx.GraphModule, node: fx.Node) -> Any:
    """Return what a `get_attr` node stands for: a tensor or a graph."""
    found = subgraph(node)
    return operator.attrgetter(str(node.target))(graph_module) if found is None else found


def evaluated(node: fx.Node, values: Mapping[fx.Node, Any], *, wide: bool = False) -> Any:
    """Return what eager PyTorch gives for a node; `wide` in float64."""
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
    if wide:
        args, kwargs = widened(args), widened(kwargs)
    return node.target(*args, **kwargs)  # type: ignore[operator]
