"""Lowers the nodes of a graph, in place: the graph of a module, or one that an op runs.

A higher-order operator is given a `Region` for each graph among its arguments. Calling it lowers
that graph's nodes at the current insertion point, so a rule may put them into a region of a
StableHLO op, in the open, or (`Region.call`) into a function that is called several times.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from lowering import hlo
from lowering.context import LoweringContext, unsupported_op
from lowering.dtypes import spec_of
from lowering.errors import LoweringError, UnsupportedOpError
from lowering.mlir import func, ir
from lowering.registry import PLACEMENT_ARGUMENTS, REGISTRY, Rule
from lowering.run_time_numbers import accepts_run_time_numbers, lower_number
from lowering.sizes import SYMBOLIC, Sizes, UnboundSizeError, expression, is_number
from lowering.source import SourceLine, own_line, source_line
from lowering.subgraphs import draws_random_numbers
from lowering.threefry import fresh_key

Values = dict[fx.Node, Any]


class Walker:
    """Lowers the nodes of one graph under the context's binding of sizes."""

    def __init__(self, graph_module: fx.GraphModule, context: LoweringContext) -> None:
        self.graph_module = graph_module
        self.context = context
        self.values: Values = {}
        self._meets_run_time_numbers = False

    def run(self, values: Values, needed: Collection[fx.Node] | None = None) -> Values:
        """Return the values of all nodes (those in `needed`), given the placeholders'."""
        values = self.values = dict(values)
        self._meets_run_time_numbers = any(is_number(node) for node in values)
        location_of = self.context.locations.of
        for node in self.graph_module.graph.nodes:
            if node in values or (needed is not None and node not in needed):
                continue
            if node.op == "get_attr":
                values[node] = self._attribute(node)
            elif node.op == "call_function":
                number = is_number(node)
                if number and self.context.sizes.is_known(node.meta["val"]):
                    continue
                with location_of(node):
                    values[node] = self._lower_number(node) if number else self._lower(node)
        return values

    def _attribute(self, node: fx.Node) -> Any:
        value = operator.attrgetter(str(node.target))(self.graph_module)
        if isinstance(value, torch.Tensor):
            return hlo.constant(value)
        return Region(value, self.context) if isinstance(value, fx.GraphModule) else value

    def _lower_number(self, node: fx.Node) -> Any:
        self._meets_run_time_numbers = True
        if node.target is operator.getitem:
            return self._item(node)
        try:
            return lower_number(node, [self.argument(argument) for argument in node.args])
        except UnboundSizeError as error:
            raise unsupported_op(node, "a size of it depends on data") from error

    def _lower(self, node: fx.Node) -> Any:
        if node.target is operator.getitem:
            return self._item(node)
        try:
            args = [self.argument(argument) for argument in node.args]
            kwargs = node.kwargs
            if kwargs:
                kwargs = {name: self.argument(value) for name, value in kwargs.items()}
            if self._meets_run_time_numbers:
                self._refuse_run_time_numbers(node)
            return apply_rule(self.context, node, args, kwargs)
        except UnboundSizeError as error:
            if self.context.padded is not None:
                raise
            raise unsupported_op(node, "a size of it depends on data") from error

    def _item(self, node: fx.Node) -> Any:
        padded = self.context.padded
        if padded is not None:
            padded.item(node, node.all_input_nodes[0], node.args[1])
        return self.values[node.all_input_nodes[0]][node.args[1]]

    def _refuse_run_time_numbers(self, node: fx.Node) -> None:
        for source in node.all_input_nodes:
            told_by_the_run = is_number(source) and isinstance(self.values.get(source), ir.Value)
            if told_by_the_run and not accepts_run_time_numbers(self.context, node):
                raise unsupported_op(node, "it takes a number that only the run can tell")

    def argument(self, argument: Any) -> Any:
        """Return an FX argument with nodes replaced by values and symbolic sizes by numbers."""
        kind = type(argument)
        if kind is fx.Node:
            if argument in self.values:
                return self.values[argument]
            return self.context.sizes.resolve(argument.meta["val"])
        if kind is int or kind is float or kind is bool:
            return argument
        if isinstance(argument, (list, tuple)):
            return [self.argument(item) for item in argument]
        if isinstance(argument, dict):
            return {name: self.argument(item) for name, item in argument.items()}
        return self.context.sizes.resolve(argument)


def apply_rule(
    context: LoweringContext, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """Return what the rule of `node` makes of `args` and `kwargs`, checked against torch's shapes.

    Raises:
        UnsupportedOpError: the node has no rule, or its rule declines.
        LoweringError: the rule failed, or gave another shape or dtype than torch expects.
    """
    rule = REGISTRY.get(node.target)
    if rule is None:
        raise unsupported_op(node, "it has no lowering")
    reason = None if rule.check is None else rule.check(node)
    if reason is not None:
        raise unsupported_op(node, reason)
    if kwargs:
        kwargs = {
            name: value
            for name, value in kwargs.items()
            if name in rule.takes or name not in PLACEMENT_ARGUMENTS
        }
    padded = context.padded
    lower = context.templates.lower
    if padded is None or not padded.concerns(node):
        return lower(context, node, rule, args, kwargs)
    run = functools.partial(lower, context, node, rule)
    result = padded.lower(node, rule.padding, args, kwargs, run)
    with context.at(node):
        _check_result(context, node, result)
    return result


def run_rule(
    context: LoweringContext,
    node: fx.Node,
    rule: Rule,
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> Any:
    """Return what `rule` makes of the arguments of `node`, checked against torch's shapes."""
    before = context.enter(node)
    try:
        result = rule.function(context, *args, **kwargs)
        _check_result(context, node, result)
    except (UnsupportedOpError, LoweringError, UnboundSizeError):
        raise
    except Exception as error:
        raise _rule_failed(node, error) from error
    finally:
        context.leave(before)
    return result


def _check_result(context: LoweringContext, node: fx.Node, result: Any) -> None:
    expected = context.results
    values = result if isinstance(result, (list, tuple)) else (result,)
    if len(values) != len(expected):
        raise _rule_failed(node, f"it gave {len(values)} results, torch expects {len(expected)}")
    for value, spec in zip(values, expected, strict=True):
        if value is not None and spec is not None and spec_of(value) != spec:
            raise _rule_failed(node, f"it gave {value.type}, torch expects {spec}")


class Locations:
    """The MLIR locations of nodes: module path, op, and the user's file and line."""

    def __init__(self) -> None:
        self._lines: dict[fx.Node, SourceLine] = {}
        self._made: dict[tuple[SourceLine, Any], ir.Location] = {}

    def of(self, node: fx.Node) -> ir.Location:
        """Return the location of `node`, whose sources were asked for before it."""
        line = own_line(node)
        if line.file is None:
            # What feeds the node has been here before it; `source_line` would walk for each node.
            sources = node.all_input_nodes
            line = (self._lines.get(sources[0]) if sources else None) or line
        self._lines[node] = line
        key = line, node.target
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = _location(line, str(node.target))
        return found


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


@dataclass(frozen=True)
class Function:
    """A function of the module; `fixed` has its results that are no values, None elsewhere."""

    op: Any
    fixed: tuple[tuple[Any] | None, ...]

    def call(self, operands: Sequence[ir.Value]) -> list[Any]:
        """Return the results, values and others in order."""
        types = list(self.op.type.results)
        name = ir.FlatSymbolRefAttr.get(self.op.name.value)
        results = iter(func.CallOp(types, name, list(operands)).results)
        return [next(results) if item is None else item[0] for item in self.fixed]


class Functions:
    """The functions of a module other than `main`, one a graph and kinds of its operands."""

    def __init__(self, body: ir.Block) -> None:
        self._body = body
        self._made: dict[tuple[Any, ...], Function] = {}

    def get(
        self, key: tuple[Any, ...], types: Sequence[ir.Type], build: Callable[..., list[Any]]
    ) -> Function:
        """Return the function for `key`, made by `build` on its arguments at the first call."""
        if key not in self._made:
            with ir.InsertionPoint.at_block_begin(self._body):
                op: Any = func.FuncOp(f"region_{len(self._made)}", ir.FunctionType.get(types, []))
            op.attributes["sym_visibility"] = ir.StringAttr.get("private")
            with ir.InsertionPoint(op.add_entry_block()):
                results = build(*op.arguments)
                values = [result for result in results if isinstance(result, ir.Value)]
                func.return_(values)
            kind = ir.FunctionType.get(types, [value.type for value in values])
            op.attributes["function_type"] = ir.TypeAttr.get(kind)
            fixed = tuple(None if isinstance(result, ir.Value) else (result,) for result in results)
            self._made[key] = Function(op, fixed)
        return self._made[key]


class Region:
    """A graph that an op runs: takes values for its placeholders, gives those of its outputs."""

    def __init__(self, graph_module: fx.GraphModule, context: LoweringContext) -> None:
        self.graph_module = graph_module
        self._context = context
        nodes = list(graph_module.graph.nodes)
        self._placeholders = [node for node in nodes if node.op == "placeholder"]
        (self._output,) = [node for node in nodes if node.op == "output"]
        self.draws_random_numbers = any(draws_random_numbers(node) for node in nodes)

    def __call__(self, *operands: Any) -> list[Any]:
        """Lower the graph here; `operands` are values, numbers, or None.

        Raises:
            UnsupportedOpError: a node declines; the error names the node that holds the graph.
        """
        context = self._context
        outer = context.node
        with context.with_sizes(self._sizes(operands)):
            values = dict(zip(self._placeholders, operands, strict=True))
            walker = Walker(self.graph_module, context)
            try:
                walker.run(values)
                outputs = self._output.args[0]
                items = outputs if isinstance(outputs, (list, tuple)) else [outputs]
                return [walker.argument(item) for item in items]
            except UnsupportedOpError as error:
                why = f"within it, {error.what} ({error.where}): {error.why}"
                raise unsupported_op(outer, why) from error
            except UnboundSizeError as error:
                raise unsupported_op(outer, "a size within it depends on data") from error

    def _sizes(self, operands: Sequence[Any]) -> Sizes:
        """Return the binding of the graph's own symbols, read from what it is called with."""
        known: dict[Any, int | float] = {}
        unknown = set()
        for node, operand in zip(self._placeholders, operands, strict=True):
            fake = node.meta.get("val")
            if isinstance(fake, torch.Tensor) and isinstance(operand, ir.Value):
                for size, actual in zip(fake.shape, spec_of(operand).shape, strict=True):
                    if isinstance(size, torch.SymInt):
                        known[expression(size)] = actual
            elif isinstance(fake, SYMBOLIC) and not isinstance(operand, ir.Value):
                known[expression(fake)] = operand
            elif isinstance(fake, SYMBOLIC):
                unknown.add(expression(fake))
        return self._context.sizes.within(known, unknown)

    def call(self, *operands: Any) -> list[Any]:
        """Call the graph as a function of the module, lowered once for all such calls.

        Numbers are part of what it is made for; random ops draw from a key of the call's own.
        """
        context = self._context
        given = [operand for operand in operands if isinstance(operand, ir.Value)]
        fixed = tuple(None if isinstance(o, ir.Value) else (o,) for o in operands)
        if self.draws_random_numbers:
            given.append(fresh_key(context))
        types = [operand.type for operand in given]

        def build(*arguments: ir.Value) -> list[Any]:
            values = iter(arguments)
            inner = [next(values) if item is None else item[0] for item in fixed]
            with context.with_rng_key(next(values, None)):
                return self(*inner)

        key = (self.graph_module, fixed, tuple(map(str, types)))
        return context.functions.get(key, types, build).call(given)
