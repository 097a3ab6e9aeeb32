"""`explain(fn, *args)`: what the backend makes of a function, as data and as text."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.eval_frame import innermost_fn

from tpu_compile import backend
from tpu_compile.backend import GraphReport
from tpu_compile.partition import Fallback
from tpu_compile.statistics import CompileRecord, stats


@dataclass(frozen=True)
class Explanation:
    """Graphs, graph breaks, fallbacks and compiles of one call of a function."""

    graphs: tuple[GraphReport, ...]
    compiles: tuple[CompileRecord, ...]

    @property
    def graph_breaks(self) -> tuple[str, ...]:
        """Why Dynamo broke the function into several graphs, one reason a break."""
        return tuple(
            graph.break_reason
            for graph in self.graphs
            if graph.break_reason and graph.name.kind != "backward"
        )

    @property
    def fallbacks(self) -> tuple[Fallback, ...]:
        """Every op that runs in eager PyTorch, with its line and the reason."""
        return tuple(fallback for graph in self.graphs for fallback in graph.fallbacks)

    def would_recompile(self) -> tuple[str, ...]:
        """Return what makes each graph compile again."""
        reasons = []
        for graph in self.graphs:
            symbolic = [text for text in graph.inputs if any(c.isalpha() for c in _sizes(text))]
            if symbolic:
                reasons.append(f"{graph.name}: every new size of {', '.join(symbolic)}")
            else:
                reasons.append(f"{graph.name}: any change of an input's shape or dtype")
        return tuple(reasons)

    def to_json(self) -> str:
        """Return everything as a JSON object."""
        return json.dumps(
            {
                "graphs": [
                    {
                        **dataclasses.asdict(graph),
                        "name": str(graph.name),
                        "fallbacks": [
                            {"node": item.node, "op": item.op, "where": item.where, "why": item.why}
                            for item in graph.fallbacks
                        ],
                    }
                    for graph in self.graphs
                ],
                "graph_breaks": self.graph_breaks,
                "compiles": [dataclasses.asdict(record) for record in self.compiles],
                "would_recompile": self.would_recompile(),
                "buckets": "exact",
            },
            indent=2,
        )

    def __str__(self) -> str:
        lines = [
            f"{len(self.graphs)} graphs, {len(self.graph_breaks)} graph breaks, "
            f"{len(self.fallbacks)} fallbacks, {len(self.compiles)} XLA compiles"
        ]
        for graph in self.graphs:
            lines.append(
                f"  {graph.name} ({graph.name.where}): {graph.ops} ops in {graph.parts} parts"
            )
            lines += [
                f"    fallback {item.op} at {item.where}: {item.why}" for item in graph.fallbacks
            ]
        lines += [f"  graph break: {reason}" for reason in self.graph_breaks]
        lines += [f"  compiled {record}" for record in self.compiles]
        lines += [f"  would recompile: {reason}" for reason in self.would_recompile()]
        lines.append("  buckets: none, every program is exact-shape")
        return "\n".join(lines)


def _sizes(text: str) -> str:
    return text[text.index("[") :]


def explain(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Explanation:
    """Run `function` once through the backend and return what became of it.

    The call has the effects of any call (it updates BatchNorm statistics, for example). Backward
    graphs are compiled only when a gradient is asked for, so they are listed if the function
    itself runs its backward.

    >>> import torch
    >>> explain(lambda x: x + 1, torch.ones(3)).graphs[0].parts
    1
    """

    def fresh_backend(*captured: Any, **settings: Any) -> Callable[..., Any]:
        # Dynamo reuses a graph only for the same backend object: a new one shows every graph.
        return backend.tpu(*captured, **settings)

    before = len(stats().records)
    original = getattr(function, "_orig_mod", None) or innermost_fn(function)
    unlimited = torch._dynamo.config.patch(
        recompile_limit=sys.maxsize, accumulated_recompile_limit=sys.maxsize
    )
    with unlimited, backend.observe() as observer:
        torch.compile(original, backend=fresh_backend)(*args, **kwargs)
    return Explanation(tuple(observer.graphs), stats().records[before:])
