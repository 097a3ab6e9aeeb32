"""Eager PyTorch and our programs side by side, node by node, on the tensors of one real call.

Every node is given what eager computed, so that an error shows where it arises and nowhere else.
Then the whole graph is run as one program, for what only fusion brings about. Eager runs the same
functional graph: what decompositions made of the model's own ops is not compared.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from lowering import LoweringError, LoweringOptions, UnsupportedOpError
from lowering.sizes import bind, is_number, placeholder_symbols
from lowering.source import source_line
from lowering.subgraphs import op_name
from tpu_compile.errors import CompilationError
from tpu_compile.history import GraphName
from tpu_compile.inspector.bisection.findings import Comparison, Findings, Skipped
from tpu_compile.inspector.bisection.graph_values import (
    attribute,
    evaluated,
    read_results,
    run_outside,
    stored,
    without_data,
)
from tpu_compile.inspector.bisection.interpreter import Interpreter, NoAnswerError
from tpu_compile.inspector.bisection.node_programs import (
    NodeProgram,
    compile_nodes,
    concrete_graph,
    signature_of,
)
from tpu_compile.inspector.bisection.ties import are_ties
from tpu_compile.inspector.bisection.tolerances import (
    WIDER,
    Difference,
    compare,
    excuse_of,
    widened,
)
from tpu_compile.options import CompileOptions
from tpu_compile.partition import HOST_CHECKS, Plan
from tpu_compile.runtime import pjrt

aten = torch.ops.aten


class Bisection:
    """Compiles plans, for `backend.compiling_by`: their calls run eager and compare.

    What a call gives back and writes is eager's, so later graphs see right values.
    """

    platform = "cpu"

    def __init__(
        self,
        client: pjrt.Client,
        interpreter: Interpreter,
        progress: Callable[[int], object] = lambda nodes: None,
    ) -> None:
        """Compare on `client`; `progress` is told how many nodes were done since the last time."""
        self.findings = Findings()
        self._client = client
        self._interpreter = interpreter
        self._progress = progress
        self._options = CompileOptions()
        self._programs: dict[Any, NodeProgram] = {}

    def with_options(self, options: CompileOptions, _: fx.GraphModule) -> Bisection:
        """Return itself, for graphs that are compiled with `options`."""
        self._options = options
        return self

    def compile(self, graph_plan: Plan, name: GraphName) -> Callable[[Sequence[Any]], list[Any]]:
        """Return a callable that runs the graph in eager PyTorch and compares."""
        lowering_options = LoweringOptions(self.platform, self._options.resolved_precision())
        return functools.partial(self._call, graph_plan, str(name), lowering_options)

    def _call(
        self, graph_plan: Plan, name: str, options: LoweringOptions, args: Sequence[Any]
    ) -> list[Any]:
        graph = graph_plan.graph_module.graph
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        bindings = bind(placeholder_symbols(placeholders), args)
        inputs = dict(zip(placeholders, args, strict=True))
        run = _GraphRun(graph_plan, name, options, bindings, inputs, self)
        with torch.no_grad():
            return run.run()

    # --- what a run of a graph asks for --------------------------------------------------------

    def program_of(
        self,
        node: fx.Node,
        values: Mapping[fx.Node, Any],
        outputs: Sequence[fx.Node],
        options: LoweringOptions,
        bindings: Mapping[Any, Any],
    ) -> tuple[NodeProgram, list[fx.Node]]:
        """Return the program of one node, from an earlier node like it if there was one."""
        key = signature_of(node, values)
        nodes = [node, *(output for output in outputs if output is not node)]
        graph_module, inputs, _ = concrete_graph(nodes, values, outputs)
        if key is not None:
            # Which arguments are one and the same tensor is part of the program, too.
            same = tuple([inputs.index(n) for n in _tensor_uses(node, values)])
            key = (key, same, options)
            if key in self._programs:
                return self._programs[key], inputs
        program = compile_nodes(graph_module, self._client, options, bindings)
        if key is not None:
            self._programs[key] = program
        return program, inputs

    @property
    def client(self) -> pjrt.Client:
        """Where programs run."""
        return self._client

    def step(self) -> None:
        """Tell the progress of one more node."""
        self._progress(1)

    def interpreted(
        self, program: NodeProgram, inputs: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Return what the interpreter makes of a program; see `Interpreter.run`."""
        return program.logical(self._interpreter.run(program.lowered, program.arguments(inputs)))


def _tensor_uses(node: fx.Node, values: Mapping[fx.Node, Any]) -> list[fx.Node]:
    found: list[fx.Node] = []
    fx.node.map_arg((node.args, node.kwargs), found.append)
    return [source for source in found if isinstance(values[source], torch.Tensor)]


class _GraphRun:
    """One call of one graph."""

    def __init__(
        self,
        graph_plan: Plan,
        name: str,
        options: LoweringOptions,
        bindings: Mapping[Any, Any],
        inputs: Mapping[fx.Node, Any],
        owner: Bisection,
    ) -> None:
        self.graph_module = graph_plan.graph_module
        self.nodes = list(self.graph_module.graph.nodes)
        (self.output,) = [node for node in self.nodes if node.op == "output"]
        self.name, self.options, self.bindings, self.owner = name, options, bindings, owner
        self.inputs = dict(inputs)
        self.values: dict[fx.Node, Any] = dict(inputs)
        self.outside = run_outside(graph_plan)
        """Nodes that no program of ours computes, and why."""
        self.last_use = {source: n for n in self.nodes for source in n.all_input_nodes}

    def run(self) -> list[Any]:
        """Compare every node, then the whole; return the outputs and write the mutations."""
        kept = self._kept()
        for node in self.nodes:
            if node.op == "get_attr":
                self.values[node] = attribute(self.graph_module, node)
            elif node.op == "call_function" and node.target is not aten.copy_.default:
                self.values[node] = evaluated(node, self.values)
                self._compare(node)
            self.owner.step()
            for source in node.all_input_nodes:
                is_last = self.last_use[source] is node and source not in kept
                if is_last and not self._is_given(source):
                    # The whole program asks for its shape once more.
                    self.values[source] = pytree.tree_map_only(
                        torch.Tensor, without_data, self.values[source]
                    )
        self._compare_whole()
        stores = [node for node in self.nodes if node.target is aten.copy_.default]
        outputs = [self._given(item) for item in self.output.args[0]]
        new_values = [self.values[node.args[1]] for node in stores]
        for node, value in zip(stores, new_values, strict=True):
            self.values[node.args[0]].copy_(value)
        return outputs

    def _given(self, item: Any) -> Any:
        return self.values[stored(item)] if isinstance(item, fx.Node) else item

    def _kept(self) -> set[fx.Node]:
        """Return the nodes whose values are needed after the last node that reads them."""
        kept = {node for node in self.nodes if node.op in ("placeholder", "get_attr")}
        kept |= set(self._results())
        # Numbers take no memory, and the whole program has them as constants.
        return kept | {node for node in self.nodes if is_number(node)}

    def _results(self) -> list[fx.Node]:
        """Return the nodes whose values the graph gives back or stores."""
        items = [*self.output.args[0]]
        items += [node for node in self.nodes if node.target is aten.copy_.default]
        found = [stored(item) for item in items if isinstance(item, fx.Node)]
        return [n for n in dict.fromkeys(found) if n.op == "call_function"]

    # --- one node ------------------------------------------------------------------------------

    def _compare(self, node: fx.Node) -> None:
        if node.target is operator.getitem or is_number(node) or node.target in HOST_CHECKS:
            return
        outputs = read_results(node)
        if node in self.outside:
            self._skip(node, self.outside[node])
            return
        if not outputs:
            return
        values = dict(self.values)
        for output in outputs:
            if output is not node:
                values[output] = values[node][output.args[1]]
        outputs = [each for each in outputs if isinstance(values[each], torch.Tensor)]
        try:
            program, inputs = self.owner.program_of(
                node, values, outputs, self.options, self.bindings
            )
        except UnsupportedOpError as error:
            self.outside[node] = f"it falls back: {error.why}"
            self._skip(node, self.outside[node])
            return
        except (LoweringError, CompilationError) as error:
            # The whole program takes its value from eager then, to say something of the others.
            self.outside[node] = "it has no program"
            found = Difference(math.nan, 0.0, math.inf, "no program")
            self._note(node, found, True, " ".join(str(error).split()))
            return
        tensors = [values[source] for source in inputs]
        ours = program.run(tensors)
        expected = [values[output] for output in outputs]
        differences = [compare(*pair) for pair in zip(ours, expected, strict=True)]
        worst = max(range(len(ours)), key=lambda index: differences[index].ratio)
        difference = differences[worst]
        if not difference.is_beyond:
            self._note(node, difference, False, "")
            return
        is_fault, verdict = self._judge(node, worst, outputs, ours, expected, (program, tensors))
        self._note(node, difference, is_fault, verdict)

    def _judge(
        self,
        node: fx.Node,
        worst: int,
        outputs: Sequence[fx.Node],
        ours: Sequence[torch.Tensor],
        expected: Sequence[torch.Tensor],
        asked: tuple[NodeProgram, Sequence[torch.Tensor]],
    ) -> tuple[bool, str]:
        """Return whether a node beyond its tolerance is wrong, and what the witnesses say."""
        references = self._references(node, outputs)
        excuses = []
        for mine, eager, reference in zip(ours, expected, references, strict=True):
            if compare(mine, eager).is_beyond:
                excuses.append(excuse_of(mine, eager, reference))
        if are_ties(node, self.values, ours, expected):
            return False, "no fault: another one of equal elements was chosen"
        if all(excuses):
            return False, f"no fault: {excuses[0]}"
        try:
            third = self.owner.interpreted(*asked)
        except NoAnswerError as error:
            return True, f"wrong, whether by the lowering or by XLA is not known: {error}"
        if not compare(third[worst], expected[worst]).is_beyond:
            return True, "XLA is wrong: the interpreter gives what eager does"
        if not compare(third[worst], ours[worst]).is_beyond:
            return True, "the lowering is wrong: the interpreter gives what XLA does"
        return True, "the lowering is wrong: the interpreter gives neither what eager nor XLA does"

    def _references(self, node: fx.Node, outputs: Sequence[fx.Node]) -> list[torch.Tensor | None]:
        """Return the results of a node in float64; None where eager cannot tell."""
        try:
            result = evaluated(node, self.values, wide=True)
        except (RuntimeError, TypeError, NotImplementedError):
            # A dtype is fixed in the op, or there is no kernel for float64.
            return [None] * len(outputs)
        return [result if each is node else result[each.args[1]] for each in outputs]

    # --- the whole graph -----------------------------------------------------------------------

    def _compare_whole(self) -> None:
        values = self.values
        results = [
            node
            for node in self._results()
            if isinstance(values[node], torch.Tensor) and not self._is_given(node)
        ]
        nodes = self._ancestors(results)
        if len(nodes) < 2:
            return
        try:
            graph_module, inputs, outputs = concrete_graph(nodes, values, results)
            program = compile_nodes(graph_module, self.owner.client, self.options, self.bindings)
        except (UnsupportedOpError, LoweringError, CompilationError) as error:
            found = Difference(math.nan, 0.0, math.inf, "no program")
            self._note(results[0], found, True, " ".join(str(error).split()), whole=True)
            return
        ours = program.run([values[source] for source in inputs])
        pairs = list(zip(outputs, ours, [values[output] for output in outputs], strict=True))
        ranked = sorted(pairs, key=lambda pair: -compare(pair[1], pair[2]).ratio)
        beyond = [pair for pair in ranked if compare(pair[1], pair[2]).is_beyond]
        wide = self._wide_results(nodes, [node for node, _, _ in beyond]) if beyond else {}
        judged = [(node, *_judged(mine, eager, wide.get(node))) for node, mine, eager in beyond]
        wrong = [each for each in judged if each[1]]
        shown = (wrong or judged or [(ranked[0][0], False, "")])[0]
        (pair,) = [pair for pair in pairs if pair[0] is shown[0]]
        self._note(shown[0], compare(pair[1], pair[2]), shown[1], shown[2], whole=True)

    def _is_given(self, node: fx.Node) -> bool:
        """Whether a program of ours takes the value of `node` from eager."""
        while node.target is operator.getitem and node not in self.outside:
            node = node.args[0]  # type: ignore[assignment]
        return node.op != "call_function" or node in self.outside

    def _ancestors(self, results: Sequence[fx.Node]) -> list[fx.Node]:
        """Return the nodes that `results` need and ours computes, in order."""
        needed: set[fx.Node] = set()
        stack = list(results)
        while stack:
            node = stack.pop()
            if node not in needed and not self._is_given(node) and not is_number(node):
                needed.add(node)
                stack.extend(node.all_input_nodes)
        return [node for node in self.nodes if node in needed]

    def _wide_results(
        self, nodes: Sequence[fx.Node], results: Sequence[fx.Node]
    ) -> dict[fx.Node, torch.Tensor]:
        """Return results of the whole graph in float64; empty where eager cannot tell."""
        values = {node: widened(value) for node, value in self.values.items()}
        try:
            for node in nodes:
                values[node] = evaluated(node, values, wide=True)
        except (RuntimeError, TypeError, NotImplementedError):
            return {}
        return {node: values[node] for node in results}

    # --- notes ---------------------------------------------------------------------------------

    def _note(
        self,
        node: fx.Node,
        difference: Difference,
        is_fault: bool,
        verdict: str,
        *,
        whole: bool = False,
    ) -> None:
        op = node
        while op.target is operator.getitem:
            op = op.args[0]  # type: ignore[assignment]
        line = str(source_line(node))
        found = Comparison(self.name, node.name, op_name(op), line, difference, is_fault, verdict)
        (self.owner.findings.graphs if whole else self.owner.findings.nodes).append(found)

    def _skip(self, node: fx.Node, why: str) -> None:
        self.owner.findings.skipped.append(
            Skipped(self.name, node.name, op_name(node), str(source_line(node)), why)
        )


def _judged(
    ours: torch.Tensor, expected: torch.Tensor, reference: torch.Tensor | None
) -> tuple[bool, str]:
    """Return whether a result of a whole graph is wrong, and what float64 says."""
    if expected.dtype not in WIDER:
        # One rounding among the numbers that it came from can tip it.
        return False, "not confirmed: float64 cannot tell of this dtype"
    excuse = excuse_of(ours, expected, reference)
    if excuse is not None:
        return False, f"no fault: {excuse}"
    if reference is None:
        return False, "not confirmed: the graph does not run in float64"
    return True, "wrong as one program: farther from float64 than eager is"
