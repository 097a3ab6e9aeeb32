"""The ops of a functional graph as data: what `dump` and others list."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from lowering.source import source_line


@dataclass(frozen=True)
class GraphOp:
    """One node of a graph."""

    name: str
    op: str
    """The overload, such as `aten.mm.default`; `placeholder`, `output` for those."""
    arguments: str
    dtype: str
    shape: str
    where: str
    module: str

    def __str__(self) -> str:
        kind = f" : {self.dtype}{self.shape}" if self.dtype else ""
        place = "  # " + " ".join(filter(None, (self.module, f"({self.where})")))
        return f"%{self.name}{kind} = {self.op}({self.arguments}){place}"


def graph_ops(graph_module: fx.GraphModule) -> Iterator[GraphOp]:
    """Yield the calls of a graph, in order."""
    for node in graph_module.graph.nodes:
        if node.op != "call_function":
            continue
        line = source_line(node)
        value = node.meta.get("val")
        tensor = value if isinstance(value, torch.Tensor) else None
        yield GraphOp(
            node.name,
            str(node.target) if not callable(node.target) else _name(node.target),
            ", ".join(
                [
                    *(_text(argument) for argument in node.args),
                    *(f"{name}={_text(argument)}" for name, argument in node.kwargs.items()),
                ]
            ),
            str(tensor.dtype).removeprefix("torch.") if tensor is not None else "",
            f"[{', '.join(map(str, tensor.shape))}]" if tensor is not None else "",
            str(line),
            line.module_path,
        )


def matches(op: str, module: str, op_filter: str | None, module_filter: str | None) -> bool:
    """Whether an op passes both filters: part of its name, or a pattern with `*`."""
    return _passes(op, op_filter) and _passes(module, module_filter)


def _passes(text: str, wanted: str | None) -> bool:
    if wanted is None:
        return True
    return fnmatch.fnmatchcase(text, wanted) if "*" in wanted else wanted in text


def _name(target: Any) -> str:
    return str(target) if isinstance(target, torch._ops.OpOverload) else target.__name__


def _text(argument: Any) -> str:
    if isinstance(argument, fx.Node):
        return f"%{argument.name}"
    if isinstance(argument, (list, tuple)):
        return f"[{', '.join(map(_text, argument))}]"
    return str(argument)
