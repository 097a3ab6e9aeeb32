"""Walks a functional Core ATen FX graph and builds one StableHLO module from it.

Each node gets a location (module path, op, the user's file and line) and is handed to its
registered rule. What the module takes and gives back is described in `lowering.signature`.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from lowering import hlo
from lowering.context import LoweringContext, LoweringOptions, unsupported_op
from lowering.dtypes import TensorSpec, tensor_type
from lowering.errors import LoweringError, UnsupportedOpError
from lowering.mlir import create_context, func, ir, module_text
from lowering.registry import PLACEMENT_ARGUMENTS, REGISTRY, Rule
from lowering.signature import Argument, ResultLayout, Signature, read_signature
from lowering.sizes import Bindings, Sizes, is_number
from lowering.source import SourceLine, own_line, source_line

RNG_KEY = TensorSpec((2,), torch.uint32)


@dataclass(frozen=True)
class LoweredGraph:
    """A StableHLO module and how to call it."""

    module: ir.Module
    signature: Signature
    options: LoweringOptions

    def text(self, *, locations: bool = False) -> str:
        """Return the module's text; without locations it is the same on every machine."""
        with self.module.context:
            return module_text(self.module, locations=locations)


def lower_graph(
    graph_module: fx.GraphModule,
    *,
    options: LoweringOptions | None = None,
    bindings: Bindings | None = None,
    donate: bool = False,
) -> LoweredGraph:
    """Return the StableHLO of `graph_module` for one binding of its symbolic sizes.

    Args:
        graph_module: a functional graph of ATen overloads with fake tensors in `meta["val"]`;
            the only mutations are `aten.copy_` of a value into a placeholder.
        options: platform and precision.
        bindings: the value of every symbolic size.
        donate: mark the arguments that the graph mutates as donated to their new values.

    Raises:
        UnsupportedOpError: a rule declines its node's arguments; `node_name` names the node.
        LoweringError: a rule built something that does not fit what torch expects.
    """
    options = LoweringOptions() if options is None else options
    sizes = Sizes(bindings)
    signature = read_signature(graph_module, sizes)
    context = LoweringContext(options, sizes)
    for node in signature.needed:
        context.specs(node)
    # Rules compute small tables with torch: on the CPU and for real, whatever mode or default
    # device the user has set around the first call.
    with torch.device("cpu"), _disable_current_modes(), create_context(), ir.Location.unknown():
        builder = _ModuleBuilder(graph_module, signature, context)
        return LoweredGraph(builder.build(donate=donate), signature, options)


class _ModuleBuilder:
    """Builds the module of one graph; lives for one call of `lower_graph`."""

    def __init__(
        self, graph_module: fx.GraphModule, signature: Signature, context: LoweringContext
    ) -> None:
        self.graph_module = graph_module
        self.signature = signature
        self.context = context
        self.values: dict[fx.Node, Any] = {}
        self.locations: dict[Any, ir.Location] = {}
        self.lines: dict[fx.Node, SourceLine] = {}

    def build(self, *, donate: bool) -> ir.Module:
        signature = self.signature
        module = ir.Module.create()
        module.operation.attributes["sym_name"] = ir.StringAttr.get("tpu_compile")
        with ir.InsertionPoint(module.body):
            inputs = [tensor_type(argument.physical) for argument in signature.arguments]
            if signature.uses_rng:
                inputs.append(tensor_type(RNG_KEY))
            results = [tensor_type(result.physical) for result in signature.results]
            main: Any = func.FuncOp("main", ir.FunctionType.get(inputs, results))
            main.attributes["sym_visibility"] = ir.StringAttr.get("public")
            if donate:
                main.arg_attrs = self._donations(len(inputs))
            with ir.InsertionPoint(main.add_entry_block()):
                self._read_arguments(main)
                self._lower_nodes()
                func.return_([self._physical(result) for result in signature.results])
        self._verify(module)
        return module

    def _donations(self, count: int) -> ir.ArrayAttr:
        attributes: list[dict[str, ir.Attribute]] = [{} for _ in range(count)]
        by_placeholder = {
            argument.placeholder: i for i, argument in enumerate(self.signature.arguments)
        }
        i32 = ir.IntegerType.get_signless(32)
        for mutation in self.signature.mutations:
            position = by_placeholder.get(mutation.placeholder)
            if position is None or mutation.result is None:
                continue
            argument, result = (
                self.signature.arguments[position],
                self.signature.results[mutation.result],
            )
            if argument.physical == result.physical:
                attributes[position]["tf.aliasing_output"] = ir.IntegerAttr.get(
                    i32, mutation.result
                )
        return ir.ArrayAttr.get([ir.DictAttr.get(attribute) for attribute in attributes])

    def _read_arguments(self, main: Any) -> None:
        for argument, value in zip(self.signature.arguments, main.arguments, strict=False):
            self.values[argument.node] = _logical(argument, value)
        if self.signature.uses_rng:
            self.context.set_rng_key(main.arguments[len(self.signature.arguments)])

    def _lower_nodes(self) -> None:
        for node in self.graph_module.graph.nodes:
            if node in self.values or node not in self.signature.needed or is_number(node):
                continue
            if node.op == "get_attr":
                self.values[node] = self._attribute(node)
            elif node.op == "call_function":
                with self._location(node):
                    self.values[node] = self._lower_node(node)

    def _attribute(self, node: fx.Node) -> Any:
        value = operator.attrgetter(str(node.target))(self.graph_module)
        return hlo.constant(value) if isinstance(value, torch.Tensor) else value

    def _lower_node(self, node: fx.Node) -> Any:
        if node.target is operator.getitem:
            return self.values[node.all_input_nodes[0]][node.args[1]]
        rule = REGISTRY.get(node.target)
        if rule is None:
            raise unsupported_op(node, "it has no lowering")
        self.context.enter(node)
        reason = None if rule.check is None else rule.check(node)
        if reason is not None:
            raise unsupported_op(node, reason)
        args = [self._argument(argument) for argument in node.args]
        kwargs = {
            name: self._argument(argument)
            for name, argument in node.kwargs.items()
            if name in rule.takes or name not in PLACEMENT_ARGUMENTS
        }
        try:
            result = rule.function(self.context, *args, **kwargs)
        except (UnsupportedOpError, LoweringError):
            raise
        except Exception as error:
            raise _rule_failed(node, error) from error
        self._check_result(node, rule, result)
        return result

    def _argument(self, argument: Any) -> Any:
        """Return an FX argument with nodes replaced by values and symbolic sizes by numbers."""
        if isinstance(argument, fx.Node):
            if argument in self.values:
                return self.values[argument]
            return self.context.sizes.resolve(argument.meta["val"])
        if isinstance(argument, (list, tuple)):
            return [self._argument(item) for item in argument]
        return self.context.sizes.resolve(argument)

    def _check_result(self, node: fx.Node, rule: Rule, result: Any) -> None:
        values = result if isinstance(result, (list, tuple)) else (result,)
        if len(values) != len(self.context.results):
            raise _rule_failed(
                node, f"it gave {len(values)} results, torch expects {len(self.context.results)}"
            )
        for value, spec in zip(values, self.context.results, strict=True):
            if value is not None and spec is not None and value.type != tensor_type(spec):
                raise _rule_failed(node, f"it gave {value.type}, torch expects {spec}")

    def _physical(self, result: ResultLayout) -> ir.Value:
        with self._location(result.node):
            return hlo.transpose(self.values[result.node], result.order)

    def _location(self, node: fx.Node) -> ir.Location:
        """Return module path and op, and the user's file and line, as an MLIR location."""
        line = own_line(node)
        if line.file is None:
            # What feeds the node has been here before it; `source_line` would walk for each node.
            sources = node.all_input_nodes
            borrowed = self.lines.get(sources[0]) if sources else None
            line = borrowed or line
        self.lines[node] = line
        key = line, node.target
        found = self.locations.get(key)
        if found is None:
            found = self.locations[key] = _location(line, str(node.target))
        return found

    def _verify(self, module: ir.Module) -> None:
        try:
            module.operation.verify()
        except ir.MLIRError as error:
            raise LoweringError(
                "The StableHLO of a graph does not pass its verifier",
                why=str(error),
                ways_out=("report this graph as a fault of tpu_compile",),
            ) from error


def _logical(argument: Argument, value: ir.Value) -> ir.Value:
    """Return the tensor as torch sees it from the memory order in which it arrives."""
    inverse = [argument.order.index(dim) for dim in range(len(argument.order))]
    return hlo.transpose(value, inverse)


def _location(line: SourceLine, op: str) -> ir.Location:
    name = f"{line.module_path}/{op}" if line.module_path else op
    if line.file is None:
        return ir.Location.name(name)
    return ir.Location.name(name, ir.Location.file(line.file, line.line, 0))


def _rule_failed(node: fx.Node, error: Exception | str) -> LoweringError:
    return LoweringError(
        f"The lowering of {node.target} failed",
        where=f"{source_line(node)}, node `{node.name}`",
        why=f"{type(error).__name__}: {error}" if isinstance(error, Exception) else error,
        ways_out=("report this graph as a fault of tpu_compile",),
    )
