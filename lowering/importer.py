"""Walks a functional Core ATen FX graph and builds one StableHLO module from it.

The nodes are lowered by `lowering.regions`; here is the function around them. What the module
takes and gives back is described in `lowering.signature`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from lowering import hlo
from lowering.bucketing.atoms import Layout, dim_of
from lowering.bucketing.bounds import Bounds, UnboundedSizeError
from lowering.bucketing.call import NoPaddingRuleError
from lowering.bucketing.padded_graph import PaddedGraph
from lowering.context import LoweringContext, LoweringOptions
from lowering.dtypes import TensorSpec, tensor_type
from lowering.errors import LoweringError
from lowering.mlir import create_context, func, ir, module_text
from lowering.regions import Functions, Locations, Walker, run_rule
from lowering.signature import (
    Argument,
    ResultLayout,
    Signature,
    read_signature,
    why_not_in_place,
)
from lowering.sizes import Bindings, Sizes, UnboundSizeError, plain_size
from lowering.templates import Templates

RNG_KEY = TensorSpec((2,), torch.uint32)


@dataclass(frozen=True)
class PaddingPlan:
    """Which symbolic sizes of a graph are padded, and how its inputs are."""

    buckets: Mapping[sympy.Expr, int]
    """The physical size of each symbol; a call's logical ones are given in this order."""
    layouts: Mapping[int, tuple[tuple[Any, ...], ...]] = field(default_factory=dict)
    """The sizes of the atoms of each dim, for placeholders in which real positions do not come
    first: those that another padded program gave."""


@dataclass(frozen=True)
class Padding:
    """How the arguments and results of a module are padded."""

    arguments: Mapping[int | None, Layout]
    """By placeholder."""
    results: tuple[Layout, ...]


@dataclass(frozen=True)
class LoweredGraph:
    """A StableHLO module and how to call it."""

    module: ir.Module
    signature: Signature
    options: LoweringOptions
    padding: Padding | None = None

    def text(self, *, locations: bool = False) -> str:
        """Return the module's text; without locations it is the same on every machine."""
        with self.module.context:
            return module_text(self.module, locations=locations)


def lower_graph(
    graph_module: fx.GraphModule,
    *,
    options: LoweringOptions | None = None,
    bindings: Bindings | None = None,
    padding: PaddingPlan | None = None,
    donate: bool = False,
) -> LoweredGraph:
    """Return the StableHLO of `graph_module` for one binding of its symbolic sizes.

    With `padding`, it is for all sizes up to some: tensors are padded, and the module takes the
    sizes of a call as one more argument, the last.

    Args:
        graph_module: a functional graph of ATen overloads with fake tensors in `meta["val"]`;
            the only mutations are `aten.copy_` of a value into a placeholder.
        options: platform and precision.
        bindings: the value of every symbolic size.
        padding: which symbolic sizes are padded, in place of `bindings`.
        donate: mark the arguments that the graph mutates as donated to their new values.

    Raises:
        UnsupportedOpError: a rule declines its node's arguments; `node_name` names the node.
        LoweringError: a rule built something that does not fit what torch expects.
        NoPaddingRuleError: with `padding`, a node that cannot run on padded tensors.
    """
    options = LoweringOptions() if options is None else options
    if padding is not None:
        return _lower_padded(graph_module, options, padding)
    return _lower(graph_module, options, Sizes(bindings), None, donate=donate)


def _lower_padded(
    graph_module: fx.GraphModule, options: LoweringOptions, padding: PaddingPlan
) -> LoweredGraph:
    try:
        return _lower(graph_module, options, Bounds(padding.buckets), padding, donate=False)
    except (UnboundedSizeError, UnboundSizeError) as error:
        (output,) = [node for node in graph_module.graph.nodes if node.op == "output"]
        raise NoPaddingRuleError(output, f"no bound is known for the size {error}") from error


def _lower(
    graph_module: fx.GraphModule,
    options: LoweringOptions,
    sizes: Sizes,
    padding: PaddingPlan | None,
    *,
    donate: bool,
) -> LoweredGraph:
    signature = read_signature(graph_module, sizes)
    context = LoweringContext(options, sizes)
    context.read_specs(signature.needed)
    # Rules compute small tables with torch: on the CPU and for real, whatever mode or default
    # device the user has set around the first call.
    with torch.device("cpu"), _disable_current_modes(), create_context(), ir.Location.unknown():
        builder = _ModuleBuilder(graph_module, signature, context)
        module = builder.build(padding, donate=donate)
        return LoweredGraph(module, signature, options, builder.padding)


class _ModuleBuilder:
    """Builds the module of one graph; lives for one call of `lower_graph`."""

    def __init__(
        self, graph_module: fx.GraphModule, signature: Signature, context: LoweringContext
    ) -> None:
        self.graph_module = graph_module
        self.signature = signature
        self.context = context
        self.values: dict[fx.Node, Any] = {}
        self.padding: Padding | None = None

    def build(self, plan: PaddingPlan | None, *, donate: bool) -> ir.Module:
        signature = self.signature
        module = ir.Module.create()
        module.operation.attributes["sym_name"] = ir.StringAttr.get("tpu_compile")
        with ir.InsertionPoint(module.body):
            inputs = [tensor_type(argument.physical) for argument in signature.arguments]
            if signature.uses_rng:
                inputs.append(tensor_type(RNG_KEY))
            if plan is not None:
                inputs.append(tensor_type(TensorSpec((len(plan.buckets),), torch.int64)))
            results = [tensor_type(result.physical) for result in signature.results]
            main: Any = func.FuncOp("main", ir.FunctionType.get(inputs, results))
            main.attributes["sym_visibility"] = ir.StringAttr.get("public")
            if donate:
                main.arg_attrs = self._donations(len(inputs))
            with ir.InsertionPoint(main.add_entry_block()):
                self.context.functions = Functions(module.body)
                self.context.locations = Locations()
                self.context.templates = Templates(run_rule)
                self._read_arguments(main)
                if plan is not None:
                    self._start_padding(plan, main.arguments[len(inputs) - 1])
                self.values = Walker(self.graph_module, self.context).run(
                    self.values, self.signature.needed
                )
                func.return_([self._physical(result) for result in signature.results])
                if plan is not None:
                    self.padding = self._told_padding()
        self._verify(module)
        return module

    def _donations(self, count: int) -> ir.ArrayAttr:
        attributes: list[dict[str, ir.Attribute]] = [{} for _ in range(count)]
        places = {
            argument.placeholder: place for place, argument in enumerate(self.signature.arguments)
        }
        i32 = ir.IntegerType.get_signless(32)
        for mutation in self.signature.mutations:
            place = places.get(mutation.placeholder)
            argument = None if place is None else self.signature.arguments[place]
            if why_not_in_place(mutation, argument, self.signature.results) is None:
                alias = ir.IntegerAttr.get(i32, mutation.result)
                attributes[place]["tf.aliasing_output"] = alias  # type: ignore[index]
        return ir.ArrayAttr.get([ir.DictAttr.get(attribute) for attribute in attributes])

    def _read_arguments(self, main: Any) -> None:
        for argument, value in zip(self.signature.arguments, main.arguments, strict=False):
            self.values[argument.node] = _logical(argument, value)
        if self.signature.uses_rng:
            self.context.set_rng_key(main.arguments[len(self.signature.arguments)])

    def _start_padding(self, plan: PaddingPlan, vector: ir.Value) -> None:
        self.context.padded = PaddedGraph(
            self.context,
            tuple(plan.buckets),
            vector,
            {
                argument.node: self._argument_layout(argument, plan)
                for argument in self.signature.arguments
                if argument.placeholder is not None
            },
        )

    def _argument_layout(self, argument: Argument, plan: PaddingPlan) -> Layout:
        shape = argument.node.meta["val"].shape
        dims = plan.layouts.get(argument.placeholder)  # type: ignore[arg-type]
        if dims is None:
            dims = tuple([(size,) for size in map(plain_size, shape)])
        return padded_layout(dims, Bounds(plan.buckets))

    def _told_padding(self) -> Padding:
        layout = self.context.padded.layout
        return Padding(
            {a.placeholder: layout(a.node) for a in self.signature.arguments},
            tuple([layout(result.node) for result in self.signature.results]),
        )

    def _physical(self, result: ResultLayout) -> ir.Value:
        with self.context.locations.of(result.node):
            value = self.values[result.node]
            if not isinstance(value, ir.Value):
                value = hlo.scalar(value, result.spec.dtype)
            return hlo.transpose(value, result.order)

    def _verify(self, module: ir.Module) -> None:
        try:
            module.operation.verify()
        except ir.MLIRError as error:
            raise LoweringError(
                "The StableHLO of a graph does not pass its verifier",
                why=str(error),
                ways_out=("report this graph as a fault of tpu_compile",),
            ) from error


def padded_layout(dims: Sequence[Sequence[Any]], bounds: Bounds) -> Layout:
    """Return the layout of a tensor from the sizes of the atoms of each of its dims."""
    return Layout(
        tuple(
            [tuple([a for size in dim for a in dim_of(size, bounds.bound(size))]) for dim in dims]
        )
    )


def _logical(argument: Argument, value: ir.Value) -> ir.Value:
    """Return the tensor as torch sees it from the memory order in which it arrives."""
    inverse = [argument.order.index(dim) for dim in range(len(argument.order))]
    return hlo.transpose(value, inverse)
