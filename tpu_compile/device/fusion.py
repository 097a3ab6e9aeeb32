"""The FX graph of recorded steps: plans inlined one after the other, views read and written."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import fx

from lowering.signature import dense_order
from tpu_compile.device.plans import FAKE, Plan
from tpu_compile.device.steps import Step
from tpu_compile.device.values import Kind, View

aten = torch.ops.aten
higher_order = torch.ops.higher_order


class Input(NamedTuple):
    """A value that steps read and none of them made."""

    slot: int
    kind: Kind
    exists: bool
    """False for memory that was never written to."""


class Recorded(NamedTuple):
    """A step, the slots of the values that it reads, and the first slot of those that it makes."""

    step: Step
    slots: tuple[int, ...]
    first: int


@dataclass(frozen=True)
class Blueprint:
    """A graph, and what each of its placeholders is."""

    graph_module: fx.GraphModule
    inputs: tuple[int, ...]
    """The inputs that are placeholders, in order."""
    extra: tuple[Kind, ...]
    """The placeholders after them: numbers by dtype, then random keys (uint8)."""


def fused_graph(
    inputs: Sequence[Input],
    steps: Sequence[Recorded],
    live: Sequence[int],
    numbers: Mapping[torch.dtype, int],
    keys: int,
) -> Blueprint:
    """Return the graph of `steps`, whose outputs are the values with the slots `live`.

    Args:
        inputs: what the steps read from before.
        steps: in the order in which they were called.
        live: slots of values.
        numbers: how many run-time numbers of each dtype the steps take.
        keys: how many random keys they take.
    """
    builder = _Builder()
    given = tuple([index for index, item in enumerate(inputs) if item.exists])
    for index in given:
        builder.slots[inputs[index].slot] = builder.placeholder(inputs[index].kind)
    extra = builder.add_extra(numbers, keys)
    for item in inputs:
        if not item.exists:
            builder.slots[item.slot] = builder.zeros(item.kind)
    for step in steps:
        builder.add(step)
    return Blueprint(builder.finish(live), given, extra)


class _Builder:
    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.slots: dict[int, fx.Node] = {}
        self._constants: dict[str, Any] = {}
        self._reads: dict[tuple[int, View], fx.Node] = {}
        self._numbers: dict[torch.dtype, fx.Node] = {}
        self._next_number: dict[torch.dtype, int] = {}
        self._keys: fx.Node | None = None
        self._next_key = 0

    # --- what comes in --------------------------------------------------------------------------

    def placeholder(self, kind: Kind) -> fx.Node:
        node = self.graph.placeholder(f"argument_{len(self.graph.nodes)}")
        node.meta["val"] = _fake(kind.dtype, kind.shape)
        return node

    def zeros(self, kind: Kind) -> fx.Node:
        return self._call(aten.full.default, list(kind.shape), 0, dtype=kind.dtype)

    def add_extra(self, numbers: Mapping[torch.dtype, int], keys: int) -> tuple[Kind, ...]:
        extra = [Kind.of(dtype, (count,)) for dtype, count in numbers.items()]
        for kind in extra:
            self._numbers[kind.dtype] = self.placeholder(kind)
        if keys:
            extra.append(Kind.of(torch.uint8, (keys, 8)))
            self._keys = self.placeholder(extra[-1])
        return tuple(extra)

    def _number(self, dtype: torch.dtype) -> fx.Node:
        index = self._next_number.get(dtype, 0)
        self._next_number[dtype] = index + 1
        return self._call(aten.select.int, self._numbers[dtype], 0, index)

    # --- steps ----------------------------------------------------------------------------------

    def add(self, recorded: Recorded) -> None:
        step, slots, first = recorded
        plan = step.plan
        given = [self._read(slot, view) for slot, view in zip(slots, step.views, strict=True)]
        given += [self._number(dtype) for dtype in plan.numbers]
        outputs = self._inline(plan, given)
        count = len(plan.results)
        for place, (result, node) in enumerate(zip(plan.results, outputs[:count], strict=True)):
            self.slots[first + place] = self._permuted(node, result.order)
        for place, (index, node) in enumerate(zip(plan.writes, outputs[count:], strict=True)):
            view = step.views[index]
            if view is not None:
                node = self._written(self.slots[slots[index]], view, node)
            self.slots[first + count + place] = node

    def _inline(self, plan: Plan, given: Sequence[fx.Node]) -> list[fx.Node]:
        copies: dict[fx.Node, fx.Node] = {}
        values = iter(given)
        for node in plan.graph.nodes:
            if node.op == "placeholder":
                copies[node] = next(values)
            elif node.op == "output":
                return [copies[item] for item in node.args[0]]
            elif node in plan.random_ops:
                copies[node] = self._keyed(node, copies)
            elif node.op == "get_attr":
                copies[node] = self._constant(plan, node)
            else:
                copies[node] = self.graph.node_copy(node, copies.__getitem__)
        raise AssertionError("a graph without an output")

    def _constant(self, plan: Plan, node: fx.Node) -> fx.Node:
        value = operator.attrgetter(str(node.target))(plan.graph.owning_module)
        name = f"constant_{len(self._constants)}"
        self._constants[name] = value
        copy = self.graph.get_attr(name)
        copy.meta = node.meta.copy()
        return copy

    def _keyed(self, node: fx.Node, copies: dict[fx.Node, fx.Node]) -> fx.Node:
        """Return `node` with the next key for its numbers."""
        assert self._keys is not None
        key = self._call(aten.select.int, self._keys, 0, self._next_key)
        self._next_key += 1
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), copies.__getitem__)
        target: Any = node.target
        copy = self.graph.call_function(
            higher_order.run_with_rng_state, (key, target, *args), kwargs
        )
        copy.meta = node.meta.copy()
        return copy

    # --- views ----------------------------------------------------------------------------------

    def _read(self, slot: int, view: View | None) -> fx.Node:
        if view is None:
            return self.slots[slot]
        found = self._reads.get((slot, view))
        if found is None:
            node = self._lazily(self._viewed(self.slots[slot], view), view)
            found = self._reads[slot, view] = node
        return found

    def _viewed(self, base: fx.Node, view: View) -> fx.Node:
        base = self._as_dtype(base, view.dtype)
        value = base.meta["val"]
        order = dense_order(view.size, view.stride) if not view.offset else None
        if order is None or math.prod(view.size) != value.numel():
            if math.prod(view.size) == 0:
                return self._call(aten.full.default, list(view.size), 0, dtype=view.dtype)
            window = (list(view.size), list(view.stride), view.offset)
            return self._call(aten.as_strided.default, base, *window)
        shape = tuple([view.size[dim] for dim in order])
        if shape != tuple(value.shape):
            base = self._call(aten.view.default, base, list(shape))
        inverse = [order.index(dim) for dim in range(len(order))]
        return self._permuted(base, inverse)

    def _written(self, base: fx.Node, view: View, new: fx.Node) -> fx.Node:
        """Return `base` with the elements of `view` replaced by `new`."""
        new = self._lazily(new, view)
        base = self._as_dtype(base, view.dtype)
        order = dense_order(view.size, view.stride) if not view.offset else None
        if order is not None and math.prod(view.size) == base.meta["val"].numel():
            return self._permuted(new, order)
        if math.prod(view.size) == 0:
            return base
        window = (list(view.size), list(view.stride), view.offset)
        return self._call(aten.as_strided_scatter.default, base, new, *window)

    def _lazily(self, node: fx.Node, view: View) -> fx.Node:
        """Return what torch puts off: the conjugate, the negative. Each is its own inverse."""
        if view.is_conj:
            node = self._call(aten._conj_physical.default, node)
        return self._call(aten.neg.default, node) if view.is_neg else node

    def _as_dtype(self, base: fx.Node, dtype: torch.dtype) -> fx.Node:
        """Return the memory of `base` read as elements of another dtype, then flat."""
        own = base.meta["val"].dtype
        if own is dtype:
            return base
        if own.is_complex:
            base = self._call(aten.view_as_real.default, base)
            return self._as_dtype(self._call(aten.view.default, base, [-1]), dtype)
        flat = self._call(aten.view.default, base, [-1])
        if dtype.is_complex:
            flat = self._as_dtype(flat, dtype.to_real())
            pairs = self._call(aten.view.default, flat, [-1, 2])
            return self._call(aten.view_as_complex.default, pairs)
        return self._call(aten.view.dtype, flat, dtype)

    def _permuted(self, node: fx.Node, order: Sequence[int]) -> fx.Node:
        if list(order) == list(range(len(order))):
            return node
        return self._call(aten.permute.default, node, list(order))

    def _call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        node = self.graph.call_function(target, args, kwargs)
        values = fx.node.map_arg((args, kwargs), lambda source: source.meta["val"])
        with FAKE:
            node.meta["val"] = target(*values[0], **values[1])
        return node

    # --- what comes out -------------------------------------------------------------------------

    def finish(self, live: Sequence[int]) -> fx.GraphModule:
        outputs = []
        for slot in live:
            # Fresh metadata: fakes of plans that were inlined twice would look like aliases.
            source = self.slots[slot]
            node = self.graph.call_function(aten.clone.default, (source,))
            value = source.meta["val"]
            node.meta["val"] = _fake(value.dtype, tuple(value.shape))
            outputs.append(node)
        self.graph.output(tuple(outputs))
        return fx.GraphModule(self._constants, self.graph)


def _fake(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    with FAKE:
        return torch.empty(shape, dtype=dtype)
