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
    padded_elements: int = 0
    """Elements of inputs that were padding, in this call."""
    useful_elements: int = 0
    """Elements of padded inputs that were data."""

    @property
    def waste(self) -> float:
        """The share of the elements of padded inputs that were padding, from 0 to 1."""
        total = self.padded_elements + self.useful_elements
        return self.padded_elements / total if total else 0.0

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
        return tuple(f"{graph.name}: {_cause(graph)}" for graph in self.graphs)

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
                "waste": self.waste,
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
            donated = [one.input for one in graph.donations if one.refused is None]
            if donated:
                lines.append(f"    donated: {', '.join(donated)}")
            lines += [
                f"    not donated: {one.input}: {one.refused}"
                for one in graph.donations
                if one.refused is not None
            ]
        lines += [f"  graph break: {reason}" for reason in self.graph_breaks]
        lines += [f"  compiled {record}" for record in self.compiles]
        lines += [f"  would recompile: {reason}" for reason in self.would_recompile()]
        for graph in self.graphs:
            if graph.exact_reason is not None:
                lines.append(f"  not padded: {graph.name}, for {graph.exact_reason}")
            elif graph.buckets:
                names = ", ".join(size.name or "a size" for size in graph.dynamic_sizes)
                sizes = "; ".join(", ".join(map(str, bucket)) for bucket in graph.buckets)
                lines.append(f"  padded: {graph.name}, ({names}) to {sizes}")
        if self.padded_elements:
            lines.append(f"  waste: {self.waste:.0%} of the elements of padded inputs")
        return "\n".join(lines)


def _cause(graph: GraphReport) -> str:
    if graph.exact_reason is None and graph.dynamic_sizes:
        names = ", ".join(size.name or "a size" for size in graph.dynamic_sizes)
        return f"sizes of {names} beyond the buckets compiled so far"
    symbolic = [text for text in graph.inputs if any(c.isalpha() for c in _sizes(text))]
    if symbolic:
        return f"every new size of {', '.join(symbolic)}"
    return "any change of an input's shape or dtype"


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

    before = stats()
    original = getattr(function, "_orig_mod", None) or innermost_fn(function)
    unlimited = torch._dynamo.config.patch(
        recompile_limit=sys.maxsize, accumulated_recompile_limit=sys.maxsize
    )
    with unlimited, backend.observe() as observer:
        torch.compile(original, backend=fresh_backend)(*args, **kwargs)
    after = stats()
    return Explanation(
        observer.reports(),
        after.records[len(before.records) :],
        after.padded_elements - before.padded_elements,
        after.useful_elements - before.useful_elements,
    )
