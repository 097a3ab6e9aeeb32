"""What the module of a graph takes and gives back, read from the graph before it is lowered.

It settles which placeholders become arguments and in which memory order they arrive, which values
are results, and how each output of the graph is had from a result or straight from an argument:
outputs alias each other and the arguments exactly as eager's would.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import fx
from torch._ops import HigherOrderOperator

from lowering.context import unsupported_op
from lowering.dtypes import TensorSpec
from lowering.sizes import Sizes, UnboundSizeError, number_dtype
from lowering.subgraphs import draws_random_numbers

aten = torch.ops.aten

# Lifted constants up to this many elements are worth folding into the program; larger ones are
# arguments, so that their data stays out of the module and of the cache key.
EMBEDDED_CONSTANT_ELEMENTS = 16


class View(NamedTuple):
    """Sizes, strides and offset (in elements) of a tensor within a buffer."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Argument:
    """A tensor that the module takes.

    `order` lists the logical dims from the slowest to the fastest in memory; the module takes the
    tensor in that order, so a channels-last or transposed tensor is passed without a copy.
    """

    node: fx.Node
    placeholder: int | None
    """Index among the graph's placeholders; None for a constant of the graph module."""
    spec: TensorSpec
    order: tuple[int, ...]

    @property
    def physical(self) -> TensorSpec:
        """The spec in memory order."""
        return TensorSpec(tuple(self.spec.shape[dim] for dim in self.order), self.spec.dtype)

    @property
    def stride(self) -> tuple[int, ...]:
        """The strides, by logical dim, of a tensor that needs no copy."""
        return dense_strides(self.spec.shape, self.order)


@dataclass(frozen=True)
class ResultLayout:
    """A value that the module gives back, in the memory order `order` (see `Argument`)."""

    node: fx.Node
    spec: TensorSpec
    order: tuple[int, ...]

    @property
    def physical(self) -> TensorSpec:
        """The spec in memory order."""
        return TensorSpec(tuple(self.spec.shape[dim] for dim in self.order), self.spec.dtype)


@dataclass(frozen=True)
class FromResult:
    """An output that is result `index`, seen through `view` (None: contiguous, as it is)."""

    index: int
    view: View | None


@dataclass(frozen=True)
class FromArgument:
    """An output that is placeholder `placeholder` itself, or a view of its memory.

    The offset of the view counts from where the placeholder's own data starts.
    """

    placeholder: int
    view: View | None


@dataclass(frozen=True)
class Number:
    """An output that is no tensor: None, or a size."""

    value: Any


@dataclass(frozen=True)
class NumberFromResult:
    """An output that is the number in the 0-d result `index`: only the run can tell it."""

    index: int


Output = FromResult | FromArgument | Number | NumberFromResult


@dataclass(frozen=True)
class Mutation:
    """The new value of a placeholder that the graph writes to, stored after everything ran."""

    placeholder: int
    value: FromResult | FromArgument

    @property
    def result(self) -> int | None:
        """Index of the result that holds the new value; None if another argument holds it."""
        return self.value.index if isinstance(self.value, FromResult) else None


class _Laid(Protocol):
    """A tensor of a module with its shape and dtype in memory order."""

    @property
    def physical(self) -> TensorSpec: ...


def why_not_in_place(
    mutation: Mutation, argument: _Laid | None, results: Sequence[_Laid]
) -> str | None:
    """Return why a mutated input's array cannot hold its new value; None if it can.

    `argument` is what the module takes for the input, if anything.
    """
    if argument is None:
        return "its old value is not read, so the program does not take it"
    if mutation.result is None:
        return "its new value is another input"
    if argument.physical != results[mutation.result].physical:
        return "its new value lies in memory in another order"
    return None


@dataclass(frozen=True)
class Signature:
    """Arguments, results, outputs and mutations of one graph."""

    arguments: tuple[Argument, ...]
    results: tuple[ResultLayout, ...]
    outputs: tuple[Output, ...]
    mutations: tuple[Mutation, ...]
    uses_rng: bool
    needed: frozenset[fx.Node]
    """Nodes that a result depends on; the others are not lowered."""


def dense_strides(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a gapless tensor of `shape` whose dims lie in memory as `order`."""
    strides = [0] * len(shape)
    step = 1
    for dim in reversed(order):
        strides[dim] = step
        step *= max(shape[dim], 1)
    return tuple(strides)


def dense_order(shape: Sequence[int], stride: Sequence[int]) -> tuple[int, ...] | None:
    """Return the memory order of the dims, or None when memory has gaps or overlaps.

    Dims of size 1 and the strides of an empty tensor say nothing, so they never spoil the order;
    where they leave several orders true, the identity is preferred.
    """
    identity = tuple(range(len(shape)))
    if 0 in shape or _lies_in(shape, stride, identity):
        return identity
    order = tuple(sorted(identity, key=lambda dim: (-stride[dim], dim)))
    return order if _lies_in(shape, stride, order) else None


def _lies_in(shape: Sequence[int], stride: Sequence[int], order: Sequence[int]) -> bool:
    """Whether the dims of a gapless tensor lie in memory as `order`."""
    expected = dense_strides(shape, order)
    return all([shape[dim] == 1 or stride[dim] == expected[dim] for dim in order])


def read_signature(graph_module: fx.GraphModule, sizes: Sizes) -> Signature:
    """Return the signature of a functional graph under one binding of its sizes.

    Raises:
        UnsupportedOpError: the graph mutates something that is not a placeholder.
    """
    return _Reader(graph_module, sizes).read()


class _Reader:
    def __init__(self, graph_module: fx.GraphModule, sizes: Sizes) -> None:
        self.graph_module = graph_module
        self.sizes = sizes
        self.nodes = list(graph_module.graph.nodes)
        self.placeholders = [node for node in self.nodes if node.op == "placeholder"]
        self.index_of = {node: index for index, node in enumerate(self.placeholders)}
        self.results: list[ResultLayout] = []
        self.result_of: dict[fx.Node, int] = {}
        self.mutated: dict[int, fx.Node] = {}
        self.inputs_by_storage: dict[int, fx.Node] = {}
        self.reused = _reused_storages(self.nodes)

    def _storage(self, node: fx.Node) -> int | None:
        """Return an identity of the memory that eager would give to `node`; None if unknown."""
        storage = storage_of(node)
        return None if storage in self.reused else storage

    def read(self) -> Signature:
        self._find_mutations()
        for node in self.placeholders:
            storage = self._storage(node)
            if storage is not None and self.index_of[node] not in self.mutated:
                self.inputs_by_storage.setdefault(storage, node)
        output_nodes = self._output_nodes()
        shared = self._shared_storages(output_nodes)
        outputs = tuple(self._output(item, shared) for item in output_nodes)
        mutations = tuple(self._mutation(index, node) for index, node in self.mutated.items())
        needed = self._needed()
        arguments = tuple(self._arguments(needed))
        uses_rng = any(draws_random_numbers(node) for node in needed)
        return Signature(arguments, tuple(self.results), outputs, mutations, uses_rng, needed)

    def _find_mutations(self) -> None:
        for node in self.nodes:
            if node.target is aten.copy_.default:
                target = node.args[0]
                if target not in self.index_of:
                    raise unsupported_op(node, "it writes to a tensor that is no graph input")
                self.mutated[self.index_of[target]] = node.args[1]

    def _output_nodes(self) -> list[Any]:
        (output,) = [node for node in self.nodes if node.op == "output"]
        items = output.args[0]
        items = list(items) if isinstance(items, (list, tuple)) else [items]
        return [
            item.args[1]
            if isinstance(item, fx.Node) and item.target is aten.copy_.default
            else item
            for item in items
        ]

    # --- outputs ----------------------------------------------------------------------------

    def _output(self, item: Any, shared: frozenset[int]) -> Output:
        if not isinstance(item, fx.Node):
            return Number(self.sizes.resolve(item))
        try:
            return self._node_output(item, shared)
        except UnboundSizeError as error:
            raise unsupported_op(item, "the shape of its result depends on data") from error

    def _node_output(self, item: fx.Node, shared: frozenset[int]) -> Output:
        value = item.meta.get("val")
        if item in self.index_of:
            index = self.index_of[item]
            if index not in self.mutated:
                return FromArgument(index, None)
            # Saved for backward before the graph writes to it: backward needs the old value.
            return FromResult(self._result(item), self._own_view_of(item))
        if not isinstance(value, torch.Tensor):
            if self.sizes.is_known(value):
                return Number(self.sizes.resolve(value))
            return NumberFromResult(self._result(item))
        source = self._view_of_argument(item, value)
        if source is not None:
            return source
        shape, stride = self.sizes.shape(value.shape), self.sizes.shape(value.stride())
        order = dense_order(shape, stride)
        storage = self._storage(item)
        if order is None or storage in shared:
            base = self._base(item, value)
            if base is not None:
                offset = self.sizes.resolve(value.storage_offset())
                return FromResult(self._result(base), View(shape, stride, offset))
        return FromResult(self._result(item), self._own_view_of(item))

    def _shared_storages(self, items: Sequence[Any]) -> frozenset[int]:
        """Return the storages that two different output nodes lie in."""
        nodes_of: dict[int, set[fx.Node]] = {}
        for item in items:
            if isinstance(item, fx.Node) and item not in self.index_of:
                storage = self._storage(item)
                if storage is not None:
                    nodes_of.setdefault(storage, set()).add(item)
        return frozenset(storage for storage, nodes in nodes_of.items() if len(nodes) > 1)

    def _own_view_of(self, item: fx.Node) -> View | None:
        """Return how to see a result as the tensor that eager would give for `item`."""
        value = item.meta["val"]
        shape, stride = self.sizes.shape(value.shape), self.sizes.shape(value.stride())
        order = dense_order(shape, stride)
        return self._own_view(self._result(item), shape, None if order is None else stride)

    def _own_view(
        self, index: int, shape: tuple[int, ...], stride: tuple[int, ...] | None
    ) -> View | None:
        result = self.results[index]
        if stride is None:
            stride = dense_strides(shape, result.order)
        identity = tuple(range(len(shape)))
        if result.order == identity and stride == dense_strides(shape, identity):
            return None
        return View(shape, stride, 0)

    def _view_of_argument(self, item: fx.Node, value: torch.Tensor) -> FromArgument | None:
        """Return how to view an input's memory, for an output that is a view of one."""
        base = self.inputs_by_storage.get(self._storage(item) or -1)
        if base is None or not _plain(value) or base.meta["val"].dtype is not value.dtype:
            return None
        offset = self.sizes.resolve(value.storage_offset()) - self.sizes.resolve(
            base.meta["val"].storage_offset()
        )
        view = View(self.sizes.shape(value.shape), self.sizes.shape(value.stride()), offset)
        return FromArgument(self.index_of[base], view)

    def _base(self, item: fx.Node, value: torch.Tensor) -> fx.Node | None:
        """Return the node whose gapless value is the whole memory that `item` is a view of."""
        if not _plain(value):
            return None
        storage = self._storage(item)
        if storage is None:
            return None
        for node in self.nodes:
            candidate = node.meta.get("val")
            if node.op != "call_function" or not isinstance(candidate, torch.Tensor):
                continue
            if self._storage(node) != storage or candidate.dtype is not value.dtype:
                continue
            shape = self.sizes.shape(candidate.shape)
            elements = self.sizes.resolve(candidate.untyped_storage().nbytes()) // value.itemsize
            whole = torch.Size(shape).numel() == elements and _plain(candidate)
            if whole and dense_order(shape, self.sizes.shape(candidate.stride())) is not None:
                return node
        return None

    def _result(self, node: fx.Node, order: tuple[int, ...] | None = None) -> int:
        if node not in self.result_of:
            value = node.meta["val"]
            if not isinstance(value, torch.Tensor):
                self.result_of[node] = len(self.results)
                self.results.append(ResultLayout(node, TensorSpec((), number_dtype(value)), ()))
                return self.result_of[node]
            shape = self.sizes.shape(value.shape)
            order = order or dense_order(shape, self.sizes.shape(value.stride()))
            if order is None:
                order = tuple(range(len(shape)))
            self.result_of[node] = len(self.results)
            self.results.append(ResultLayout(node, TensorSpec(shape, value.dtype), order))
        return self.result_of[node]

    def _mutation(self, placeholder: int, node: fx.Node) -> Mutation:
        if node in self.index_of and self.index_of[node] not in self.mutated:
            return Mutation(placeholder, FromArgument(self.index_of[node], None))
        # A result is stored once for all its readers, so the order may be another's: copying into
        # the placeholder goes by logical position.
        target = self.placeholders[placeholder].meta["val"]
        order = dense_order(self.sizes.shape(target.shape), self.sizes.shape(target.stride()))
        same_shape = self.sizes.shape(target.shape) == self.sizes.shape(node.meta["val"].shape)
        index = self._result(node, order if same_shape else None)
        result = self.results[index]
        stride = dense_strides(result.spec.shape, result.order)
        return Mutation(
            placeholder, FromResult(index, self._own_view(index, result.spec.shape, stride))
        )

    # --- arguments ----------------------------------------------------------------------------

    def _needed(self) -> frozenset[fx.Node]:
        needed: set[fx.Node] = set()
        stack = [result.node for result in self.results]
        while stack:
            node = stack.pop()
            if node not in needed:
                needed.add(node)
                stack.extend(_read_by(node))
        return frozenset(needed)

    def _arguments(self, needed: frozenset[fx.Node]) -> list[Argument]:
        arguments = []
        for node in self.nodes:
            if node not in needed:
                continue
            value: Any = None
            if node.op == "placeholder":
                value = node.meta.get("val")
            elif node.op == "get_attr":
                value = operator.attrgetter(str(node.target))(self.graph_module)
                if isinstance(value, torch.Tensor) and value.numel() <= EMBEDDED_CONSTANT_ELEMENTS:
                    continue
            if isinstance(value, torch.Tensor):
                shape = self.sizes.shape(value.shape)
                order = dense_order(shape, self.sizes.shape(value.stride()))
                if order is None:
                    order = tuple(range(len(shape)))
                spec = TensorSpec(shape, value.dtype)
                arguments.append(Argument(node, self.index_of.get(node), spec, order))
        return arguments


def _read_by(node: fx.Node) -> list[fx.Node]:
    """Return the nodes whose values `node` reads; an effect token has none to read."""
    if node.target is not torch.ops.higher_order.with_effects:
        return node.all_input_nodes
    read: dict[fx.Node, None] = {}
    fx.node.map_arg((node.args[1:], node.kwargs), read.setdefault)
    return list(read)


def storage_of(node: fx.Node) -> int | None:
    """Return an identity of the memory behind a node's fake tensor; None for anything else."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return value.untyped_storage()._cdata


def _plain(value: torch.Tensor) -> bool:
    """Whether the memory holds the values as they are (no lazy conjugation or negation)."""
    return not value.is_conj() and not value.is_neg()


def _reused_storages(nodes: Sequence[fx.Node]) -> frozenset[int]:
    """Return the storages that say nothing, as several inputs or results of graphs lie there.

    Torch gives the fake results of one call of a region (`invoke_subgraph`) to its other calls
    too, and saved for backward they become inputs. Real results of such ops never share memory.
    """
    seen: set[int] = set()
    reused: set[int] = set()
    for node in nodes:
        source = node.args[0] if node.target is operator.getitem else None
        is_result = isinstance(source, fx.Node) and isinstance(source.target, HigherOrderOperator)
        storage = storage_of(node) if is_result or node.op == "placeholder" else None
        if storage is not None:
            (reused if storage in seen else seen).add(storage)
    return frozenset(reused)
