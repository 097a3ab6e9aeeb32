"""Programs of some nodes of a graph, at the sizes of a run, for the CPU client."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from lowering import LoweredGraph, LoweringOptions, lower_graph
from lowering.mlir import module_bytecode
from tpu_compile.ahead.fake import fake_tensors
from tpu_compile.runtime import pjrt

Values = Mapping[fx.Node, Any]


@dataclass(frozen=True)
class NodeProgram:
    """A compiled program: takes tensors, gives the values of the output nodes."""

    lowered: LoweredGraph
    executable: Any
    client: pjrt.Client

    def arguments(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the tensors that the module takes, in its memory order."""
        taken = []
        for argument in self.lowered.signature.arguments:
            # Constants of the graph are inputs as well: see `concrete_graph`.
            assert argument.placeholder is not None
            tensor = inputs[argument.placeholder].detach().resolve_conj().resolve_neg()
            taken.append(tensor.permute(argument.order).contiguous())
        return taken

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the values of the output nodes."""
        client, signature = self.client, self.lowered.signature
        if not signature.results:
            return []
        arrays = [
            client.put(tensor, client.put_plan(tensor.shape, tensor.dtype))
            for tensor in self.arguments(inputs)
        ]
        handlers = [client.read_plan(*result.physical) for result in signature.results]
        given = pjrt.execute(self.executable, arrays, handlers)
        return self.logical(
            [
                client.read(array, result.spec.dtype)
                for array, result in zip(given, signature.results, strict=True)
            ]
        )

    def logical(self, results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return results of the module as torch sees them."""
        return [
            tensor.permute([result.order.index(dim) for dim in range(len(result.order))])
            for tensor, result in zip(results, self.lowered.signature.results, strict=True)
        ]


def concrete_graph(
    nodes: Sequence[fx.Node], values: Values, outputs: Sequence[fx.Node]
) -> tuple[fx.GraphModule, list[fx.Node], list[fx.Node]]:
    """Return the graph of `nodes` at the sizes of `values`, its input and its output nodes.

    What `nodes` read and do not compute is an input if it is a tensor, else a constant. No two
    tensors of the graph share memory, so that a view is a result like any other.

    Args:
        nodes: in the order of their graph.
        values: what eager PyTorch gave, of `nodes` and of what they read.
        outputs: which of `nodes` to give back, all of them tensors.
    """
    graph = fx.Graph()
    copies: dict[fx.Node, Any] = {}
    inputs: list[fx.Node] = []
    inside = set(nodes)
    with fake_tensors():
        for node in nodes:
            for source in node.all_input_nodes:
                if source in copies or source in inside:
                    continue
                value = values[source]
                if isinstance(value, torch.Tensor):
                    copies[source] = graph.placeholder(source.name)
                    copies[source].meta["val"] = _fake(value)
                    inputs.append(source)
                elif isinstance(value, torch.nn.Module):
                    copies[source] = graph.node_copy(source)
                else:
                    copies[source] = value
            if not any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(values[node])):
                copies[node] = values[node]
                continue
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), copies.__getitem__)
            copy = graph.call_function(node.target, args, kwargs)  # type: ignore[arg-type]
            copy.meta = {
                **node.meta,
                "val": pytree.tree_map_only(torch.Tensor, _fake, values[node]),
            }
            copies[node] = copy
    unique = list(dict.fromkeys(outputs))
    graph.output(tuple([copies[node] for node in unique]))
    root = nodes[0].graph.owning_module
    return fx.GraphModule(root if root is not None else {}, graph), inputs, unique


def _fake(value: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)


def compile_nodes(
    graph_module: fx.GraphModule,
    client: pjrt.Client,
    options: LoweringOptions,
    bindings: Mapping[Any, Any],
) -> NodeProgram:
    """Return the program of a graph of `concrete_graph`.

    Raises:
        UnsupportedOpError: a lowering declines its node.
        LoweringError: a lowering built something that does not fit what torch expects.
        CompilationError: XLA refuses it.
    """
    lowered = lower_graph(graph_module, options=options, bindings=bindings)
    executable = None
    if lowered.signature.results:
        with lowered.module.context:
            executable = client.compile(module_bytecode(lowered.module))
    return NodeProgram(lowered, executable, client)


def signature_of(node: fx.Node, values: Values) -> Any:
    """Return what tells the program of a node apart; None where nothing short does.

    The op, its arguments (of tensors: dtype, sizes and strides), and which results are read.
    """

    def described(source: fx.Node) -> Any:
        value = values[source]
        if isinstance(value, torch.Tensor):
            return (str(value.dtype), tuple(value.shape), value.stride())
        return repr(value)

    if any(isinstance(values[source], torch.nn.Module) for source in node.all_input_nodes):
        return None
    arguments = fx.node.map_arg((node.args, node.kwargs), described)
    positions = [user.args[1] for user in node.users if user.target is operator.getitem]
    return str(node.target), repr(arguments), tuple(positions)
