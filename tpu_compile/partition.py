"""What of a graph runs compiled and what falls back to eager PyTorch, decided before compiling.

The partitioner only reads the graph. A graph without unsupported ops is one part: itself. Otherwise
it is cut into levels: a node's level counts the unsupported ops on the longest path to it, so every
part depends on earlier levels only and no cycle can arise.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator

from lowering.registry import unsupported_reason
from lowering.sized import SIZED, is_sized
from lowering.sizes import is_number
from lowering.source import SourceLine, source_line
from lowering.subgraphs import op_name

aten = torch.ops.aten

# Checks of sizes that torch traced: they run on the host with the call's numbers, compile to
# nothing and are no fallback.
HOST_CHECKS = frozenset(
    {
        aten._assert_scalar.default,
        aten.sym_constrain_range.default,
        aten.sym_constrain_range_for_size.default,
    }
)

# What costs nothing on the host: a number read from a tensor, a view that such a number cuts.
HOST_READS = frozenset({aten._local_scalar_dense.default, aten.slice.Tensor})

# Checks that raise for the user, which a program cannot. Dynamo keeps their order by wrapping each
# in `with_effects`, which takes and gives a token.
ORDERED_CHECKS = frozenset({aten._linalg_check_errors.default})


def is_ordered_check(node: fx.Node) -> bool:
    """Whether `node` only checks results for errors, and takes and gives a token."""
    return node.target is torch.ops.higher_order.with_effects and node.args[1] in ORDERED_CHECKS


@dataclass(frozen=True)
class Fallback:
    """Why one node runs in eager PyTorch."""

    node: str
    op: str
    source: SourceLine
    why: str

    @property
    def where(self) -> str:
        """The user's `file:line`."""
        return str(self.source)


@dataclass(frozen=True)
class Part:
    """A piece of the graph that is compiled: takes and gives the values of the named nodes."""

    graph_module: fx.GraphModule
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]


@dataclass(frozen=True)
class SizedOp:
    """One node whose output sizes depend on data: a program of its own (see `lowering.sized`)."""

    node: fx.Node


@dataclass(frozen=True)
class EagerOp:
    """One node that runs in eager PyTorch."""

    node: fx.Node
    counted: bool
    """Whether it counts as a fallback (a getitem of one, or a host check, does not)."""


Step = Part | SizedOp | EagerOp


@dataclass(frozen=True)
class Plan:
    """The steps of a graph in order, and why each fallback is one."""

    graph_module: fx.GraphModule
    steps: tuple[Step, ...]
    fallbacks: tuple[Fallback, ...]

    @property
    def is_whole(self) -> bool:
        """Whether the graph is compiled as one piece, itself."""
        return len(self.steps) == 1 and isinstance(self.steps[0], Part) and not self.fallbacks


def plan(
    graph_module: fx.GraphModule, platform: str, declined: Mapping[str, str] | None = None
) -> Plan:
    """Return how to run a functional ATen graph on `platform` (a PJRT name).

    `declined` has the nodes whose rules refused their arguments when they were lowered, and why.
    """
    eager, fallbacks = _unsupported(graph_module, platform, declined or {})
    checks = {node for node in graph_module.graph.nodes if node.target in HOST_CHECKS}
    if not eager and not checks:
        whole = Part(graph_module, _placeholders(graph_module), ())
        return Plan(graph_module, (whole,), ())
    return Plan(graph_module, _steps(graph_module, eager, checks), fallbacks)


def _placeholders(graph_module: fx.GraphModule) -> tuple[fx.Node, ...]:
    return tuple(node for node in graph_module.graph.nodes if node.op == "placeholder")


def _unsupported(
    graph_module: fx.GraphModule, platform: str, declined: Mapping[str, str]
) -> tuple[dict[fx.Node, bool], tuple[Fallback, ...]]:
    """Return the nodes that run in eager PyTorch (value: whether counted) and the reasons."""
    eager: dict[fx.Node, bool] = {}
    fallbacks = []
    for node in graph_module.graph.nodes:
        if node.op != "call_function" or node.target in (aten.copy_.default, *HOST_CHECKS):
            continue
        if node.target is operator.getitem:
            if node.args[0] in eager:
                eager[node] = False
            continue
        if is_ordered_check(node):
            eager[node] = False
            continue
        scalar_of_tensor = any(
            isinstance(source.meta.get("val"), torch.Tensor) for source in node.all_input_nodes
        ) and not str(node.target).startswith(("aten.sym_", "sym_"))
        if is_number(node) and not scalar_of_tensor:
            continue
        why = declined.get(node.name) or unsupported_reason(node, platform)
        if why is None:
            continue
        if node.target in HOST_READS or is_sized(node, platform):
            # Not a fallback: nothing that a device could compute is left to the host.
            eager[node] = False
        else:
            eager[node] = True
            fallbacks.append(Fallback(node.name, op_name(node), source_line(node), why))
    return eager, tuple(fallbacks)


def _steps(
    graph_module: fx.GraphModule, eager: dict[fx.Node, bool], checks: set[fx.Node]
) -> tuple[Step, ...]:
    level: dict[fx.Node, int] = {}
    compiled: dict[int, list[fx.Node]] = {}
    host: dict[int, list[fx.Node]] = {}
    told: set[fx.Node] = set()
    for node in graph_module.graph.nodes:
        inputs = [
            level[source] + (1 if source in eager and node not in eager else 0)
            for source in node.all_input_nodes
        ]
        level[node] = max(inputs, default=0)
        if node.op != "call_function" or node.target is aten.copy_.default:
            continue
        if node in eager or node in checks:
            host.setdefault(level[node], []).append(node)
        elif not is_number(node) or _is_told_by_a_run(node, told):
            if is_number(node) or isinstance(node.target, HigherOrderOperator):
                told.add(node)
            compiled.setdefault(level[node], []).append(node)
    steps: list[Step] = []
    for number in sorted(compiled.keys() | host.keys()):
        if number in compiled:
            part = _extract(graph_module, compiled[number])
            if part is not None:
                steps.append(part)
        steps.extend(_host_step(node, eager) for node in host.get(number, ()))
    return tuple(steps)


def _host_step(node: fx.Node, eager: dict[fx.Node, bool]) -> SizedOp | EagerOp:
    counted = eager.get(node, False)
    return SizedOp(node) if node.target in SIZED and not counted else EagerOp(node, counted)


def _is_told_by_a_run(number: fx.Node, told: set[fx.Node]) -> bool:
    """Whether a number comes from a compiled op in `told`, as the counter of a loop does."""
    return any(source in told for source in number.all_input_nodes)


def _extract(graph_module: fx.GraphModule, nodes: list[fx.Node]) -> Part | None:
    """Return the part made of `nodes`; None if nothing outside uses any of them."""
    inside = set(nodes)
    inputs: dict[fx.Node, None] = {}
    for node in nodes:
        for source in node.all_input_nodes:
            if source not in inside and source.op != "get_attr":
                inputs.setdefault(source)
    outputs = [node for node in nodes if any(user not in inside for user in node.users)]
    if not outputs:
        return None
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for source in inputs:
        copies[source] = graph.placeholder(source.name)
        copies[source].meta = source.meta.copy()

    def copy_of(source: fx.Node) -> fx.Node:
        if source not in copies:
            copies[source] = graph.node_copy(source, copy_of)
        return copies[source]

    for node in nodes:
        copy_of(node)
    graph.output(tuple(copies[node] for node in outputs))
    return Part(fx.GraphModule(graph_module, graph), tuple(inputs), tuple(outputs))


def resolve_arguments(node: fx.Node, values: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a node's arguments with every node in them replaced by `values(node)`."""
    args = fx.node.map_arg(node.args, values)
    kwargs = fx.node.map_arg(node.kwargs, values)
    return args, kwargs
