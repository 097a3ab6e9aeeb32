"""`ops`: the ATen ops of a model, how each is lowered, and which fall back to eager PyTorch."""

from __future__ import annotations

import argparse
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from lowering.registry import REGISTRY
from lowering.sized import SIZED
from lowering.sizes import is_number
from lowering.subgraphs import op_name, subgraphs
from tpu_compile.ahead.lowered import Lowered
from tpu_compile.inspector.exits import ExitCode
from tpu_compile.inspector.models import add_model_arguments, lower_subject, subject_of
from tpu_compile.inspector.output import line_of, print_json, styled, table
from tpu_compile.partition import EagerOp, Fallback, Plan, SizedOp

NAME = "ops"
HELP = "list the ops of a model and how each is lowered"
EXAMPLES = (
    "tpu-compile-inspect ops model.py:Model --input f32[8,128]",
    "tpu-compile-inspect ops model.py:Model --input f32[8,128] --train --fallbacks --strict",
)

HEADER = ("op", "count", "how", "family", "padding", "dtypes")
NATIVE, SIZED_OP, HOST, STORE, FALLBACK = "native", "sized", "host", "store", "fallback"
LEGEND = {
    NATIVE: "a rule of its own",
    SIZED_OP: "a program whose output sizes depend on data",
    HOST: "a check, a read of a number or a view on the host: nothing to compute",
    STORE: "the new value of an input, stored after the program",
    FALLBACK: "eager PyTorch, between compiled parts",
}


@dataclass
class OpUse:
    """One overload of one call of a model, lowered in one way."""

    op: str
    how: str
    """A key of `LEGEND`."""
    family: str | None = None
    """The module of its rule."""
    padding: str | None = None
    """Its padding rule; `exact` where it has none."""
    count: int = 0
    dtypes: set[str] = field(default_factory=set)
    """Of the tensors that it takes and gives."""
    fallbacks: dict[Fallback, int] = field(default_factory=dict)
    """Each node that falls back, and how often it runs."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_model_arguments(parser)
    parser.add_argument("--fallbacks", action="store_true", help="show only ops that fall back")
    parser.add_argument(
        "--strict", action="store_true", help="exit with 1 if an op falls back to eager PyTorch"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the ops of one call, the most frequent first."""
    lowered = lower_subject(subject_of(arguments))
    uses = op_uses(lowered)
    fallen = [use for use in uses if use.how == FALLBACK]
    shown = fallen if arguments.fallbacks else uses
    total, fallback_total = _total(uses), _total(fallen)
    if arguments.json:
        print_json(
            {
                "ops": [_as_json(use) for use in shown],
                "nodes": total,
                "fallback_nodes": fallback_total,
                "graph_breaks": list(lowered.graph_breaks),
            }
        )
    else:
        _print(shown, lowered.graph_breaks)
        share = fallback_total / total if total else 0.0
        print(
            f"{len({use.op for use in uses})} ops, {total} nodes, {fallback_total} fall back "
            f"({share:.1%}), {len(lowered.graph_breaks)} graph breaks"
        )
    return ExitCode.FOUND if arguments.strict and fallen else ExitCode.OK


def _total(uses: Sequence[OpUse]) -> int:
    return sum(use.count for use in uses)


# --- gathering -----------------------------------------------------------------------------------


def op_uses(lowered: Lowered) -> list[OpUse]:
    """Return the ops of one call of a model, with those within graphs that ops hold."""
    found: dict[tuple[str, str], OpUse] = {}
    for graph in lowered.graphs:
        hows = _ways(graph.plan)
        fallbacks = {fallback.node: fallback for fallback in graph.plan.fallbacks}
        for node, outer in _nodes(graph.plan.graph_module):
            how = STORE if _is_store(node) else hows.get(outer.name, NATIVE)
            name = op_name(node)
            use = found.setdefault((name, how), _described(node, name, how))
            use.count += 1
            use.dtypes |= _dtypes(node)
            if how == FALLBACK and node is outer:
                fallback = fallbacks[node.name]
                use.fallbacks[fallback] = use.fallbacks.get(fallback, 0) + 1
    return sorted(found.values(), key=lambda use: (-use.count, use.op, use.how))


def _ways(graph_plan: Plan) -> dict[str, str]:
    """Return how each node runs that is not compiled with others, by name."""
    ways = {}
    for step in graph_plan.steps:
        if isinstance(step, SizedOp):
            ways[step.node.name] = SIZED_OP
        elif isinstance(step, EagerOp):
            ways[step.node.name] = FALLBACK if step.counted else HOST
    return ways


def _nodes(
    graph_module: fx.GraphModule, outer: fx.Node | None = None
) -> Iterator[tuple[fx.Node, fx.Node]]:
    """Give each node that is an op, and the node of the whole graph that it runs in (or is)."""
    for node in graph_module.graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem or is_number(node):
            continue
        yield node, outer or node
        for inner in subgraphs(node):
            yield from _nodes(inner, outer or node)


def _is_store(node: fx.Node) -> bool:
    return node.target is torch.ops.aten.copy_.default


def _described(node: fx.Node, name: str, how: str) -> OpUse:
    if how == SIZED_OP and node.target in SIZED:
        # Like its programs for exact shapes: nothing of it runs padded.
        return OpUse(name, how, "data_dependent", "exact")
    rule = REGISTRY.get(node.target)
    if how != NATIVE or rule is None:
        return OpUse(name, how)
    return OpUse(name, how, rule.family, rule.padding_name)


def _dtypes(node: fx.Node) -> set[str]:
    return {
        str(leaf.dtype).removeprefix("torch.")
        for each in (node, *node.all_input_nodes)
        for leaf in pytree.tree_leaves(each.meta.get("val"))
        if isinstance(leaf, torch.Tensor)
    }


# --- results -------------------------------------------------------------------------------------


def ways_out(fallback: Fallback) -> list[str]:
    """Return what a user can do about an op that falls back."""
    if fallback.why == "it has no lowering":
        first = f"tpu_compile.register_lowering(torch.ops.{fallback.op}), to lower it yourself"
    elif "dtype" in fallback.why or "arithmetic" in fallback.why:
        first = "another dtype for this part of the model"
    else:
        first = "rewrite the line so that the reason no longer holds"
    return [
        first,
        "write it with other ops",
        'options={"fallback": "error"}, to make it an error where it must not happen',
    ]


def _print(uses: Sequence[OpUse], graph_breaks: Sequence[str]) -> None:
    if uses:
        rows = [
            (
                use.op,
                use.count,
                use.how,
                use.family or "",
                use.padding or "",
                " ".join(sorted(use.dtypes)),
            )
            for use in uses
        ]
        print(table(HEADER, rows))
        for how in LEGEND:
            if how != NATIVE and any(use.how == how for use in uses):
                print(f"{how}: {LEGEND[how]}")
        print()
    for use in uses:
        for fallback, count in use.fallbacks.items():
            times = f", {count} times" if count > 1 else ""
            print(f"{styled('fallback:', 'yellow')} {use.op} at {line_of(fallback.where)}{times}")
            print(f"  because {fallback.why}")
            print(f"  ways out: {'; '.join(ways_out(fallback))}")
    for reason in graph_breaks:
        print(f"{styled('graph break:', 'yellow')} {' '.join(reason.split())}")


def _as_json(use: OpUse) -> dict[str, Any]:
    return {
        "op": use.op,
        "count": use.count,
        "how": use.how,
        "family": use.family,
        "padding": use.padding,
        "dtypes": sorted(use.dtypes),
        "fallbacks": [
            {
                "node": fallback.node,
                "where": fallback.where,
                "module": fallback.source.module_path,
                "why": fallback.why,
                "count": count,
                "ways_out": ways_out(fallback),
            }
            for fallback, count in use.fallbacks.items()
        ],
    }
