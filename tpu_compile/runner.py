"""Runs a partitioned graph: compiled parts and eager ops in turn, then the mutations."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from lowering.sizes import SYMBOLIC, Sizes, bind, placeholder_symbols
from lowering.subgraphs import op_name
from tpu_compile.errors import FallbackWarning
from tpu_compile.executable import GraphExecutable
from tpu_compile.partition import EagerOp, Fallback, Part, Plan, SizedOp, resolve_arguments
from tpu_compile.saved_tensors import Family
from tpu_compile.statistics import RECORDER

aten = torch.ops.aten

_warned: set[str] = set()


def warn_once(fallbacks: Sequence[Fallback]) -> None:
    """Say of each op, once in the process, that it runs in eager PyTorch."""
    for fallback in fallbacks:
        if fallback.op not in _warned:
            _warned.add(fallback.op)
            warnings.warn_explicit(
                f"{fallback.op} runs in eager PyTorch between compiled parts ({fallback.where}): "
                f"{fallback.why}. Ways out: tpu_compile.register_lowering to lower it yourself, or "
                f'fallback="error" to make this an error.',
                FallbackWarning,
                filename=fallback.source.file or __file__,
                lineno=fallback.source.line,
            )


def forget_warnings() -> None:
    """Let every fallback be said again."""
    _warned.clear()


class PartitionedGraph:
    """A graph in several steps, called like a `GraphExecutable`.

    Takes the compiled steps: a `GraphExecutable` each, or a `SizedExecutable`.
    """

    def __init__(
        self,
        plan: Plan,
        executables: Mapping[Part | SizedOp, Callable[..., Any]],
        family: Family | None = None,
    ) -> None:
        """Take the steps; of a backward, the `family` that says what its forward left padded."""
        graph = plan.graph_module.graph
        self._plan = plan
        self._executables = executables
        self._placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        self._family = Family() if family is None else family
        self._symbols = placeholder_symbols(self._placeholders, skip=self._family.layouts.keys())
        self._constants = {
            node: _attribute(plan.graph_module, str(node.target))
            for node in graph.nodes
            if node.op == "get_attr"
        }
        self._mutations = [node for node in graph.nodes if node.target is aten.copy_.default]
        (output,) = [node for node in graph.nodes if node.op == "output"]
        self._outputs = output.args[0]
        self._last_use = _last_uses(plan, self._mutations, output)

    @property
    def graph_executables(self) -> tuple[GraphExecutable, ...]:
        """The compiled parts of the graph."""
        parts = self._executables.values()
        return tuple([part for part in parts if isinstance(part, GraphExecutable)])

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        """Run every step; inputs are written to only after the last one."""
        bindings = bind(self._symbols, args)
        args = self._family.without_padding(args, bindings)
        values: dict[fx.Node, Any] = dict(zip(self._placeholders, args, strict=True))
        values.update(self._constants)

        def value_of(node: fx.Node) -> Any:
            if node in values:
                return values[node]
            if node.target is aten.copy_.default:
                return value_of(node.args[1])  # type: ignore[arg-type]
            return Sizes(bindings).resolve(node.meta["val"])

        with torch.no_grad():
            for number, step in enumerate(self._plan.steps):
                if isinstance(step, Part):
                    inputs = [value_of(node) for node in step.inputs]
                    results = self._executables[step](inputs)
                    for node, result in zip(step.outputs, results, strict=True):
                        values[node] = result
                        if isinstance(node.meta.get("val"), SYMBOLIC):
                            _bind_result(node.meta["val"], result, bindings)
                else:
                    self._run_on_host(step, values, value_of, bindings)
                for node in self._last_use.get(number, ()):
                    values.pop(node, None)
            outputs = [
                value_of(item) if isinstance(item, fx.Node) else item for item in self._outputs
            ]
            new_values = [value_of(node.args[1]) for node in self._mutations]
            for node, new_value in zip(self._mutations, new_values, strict=True):
                values[node.args[0]].copy_(new_value)
        return outputs

    def _run_on_host(
        self,
        step: SizedOp | EagerOp,
        values: dict[fx.Node, Any],
        value_of: Any,
        bindings: dict[Any, Any],
    ) -> None:
        node = step.node
        call_args, call_kwargs = resolve_arguments(node, value_of)
        if isinstance(step, SizedOp):
            result = self._executables[step](call_args, call_kwargs)
            _bind_result(node.meta["val"], result, bindings)
            result = _in_memory_order(node.meta["val"], result, Sizes(bindings))
        else:
            result = node.target(*call_args, **call_kwargs)  # type: ignore[operator]
            _bind_result(node.meta.get("val"), result, bindings)
        values[node] = result
        if isinstance(step, EagerOp) and step.counted:
            RECORDER.count_fallback(op_name(node))


def _bind_result(fake: Any, result: Any, bindings: dict[Any, Any]) -> None:
    """Bind the symbols that an op gave birth to (sizes or numbers that depend on data)."""
    if isinstance(fake, SYMBOLIC):
        bindings.setdefault(fake.node.expr, result)
    elif isinstance(fake, torch.Tensor) and isinstance(result, torch.Tensor):
        if fake.ndim != result.ndim:
            # unique_consecutive of a negative dim: torch 2.13 promises another shape.
            return
        for size, actual in zip(fake.shape, result.shape, strict=True):
            if isinstance(size, torch.SymInt):
                bindings.setdefault(size.node.expr, actual)
        offset = fake.storage_offset()
        if isinstance(offset, torch.SymInt):
            bindings.setdefault(offset.node.expr, result.storage_offset())
    elif isinstance(fake, (list, tuple)):
        for item, value in zip(fake, result, strict=True):
            _bind_result(item, value, bindings)


def _in_memory_order(fake: Any, result: Any, sizes: Sizes) -> Any:
    """Return the result with the strides that torch was told: later views count on them."""
    if isinstance(fake, (list, tuple)):
        return tuple(
            _in_memory_order(item, value, sizes) for item, value in zip(fake, result, strict=True)
        )
    strides = sizes.shape(fake.stride()) if fake.ndim == result.ndim else result.stride()
    if result.stride() == strides:
        return result
    return torch.empty_strided(result.shape, strides, dtype=result.dtype).copy_(result)


def _attribute(graph_module: fx.GraphModule, target: str) -> Any:
    value: Any = graph_module
    for name in target.split("."):
        value = getattr(value, name)
    return value


def _last_uses(
    plan: Plan, mutations: Sequence[fx.Node], output: fx.Node
) -> dict[int, list[fx.Node]]:
    """Return, for each step, the values that nothing after it reads (so memory is let go)."""
    last: dict[fx.Node, int] = {}
    for number, step in enumerate(plan.steps):
        read = step.inputs if isinstance(step, Part) else step.node.all_input_nodes
        for node in read:
            last[node] = number
    for node in (*mutations, output):
        for source in node.all_input_nodes:
            last.pop(source, None)
            if source.target is aten.copy_.default:
                last.pop(source.args[1], None)  # type: ignore[arg-type]
    uses: dict[int, list[fx.Node]] = {}
    for node, number in last.items():
        if node.op != "get_attr":
            uses.setdefault(number, []).append(node)
    return uses
