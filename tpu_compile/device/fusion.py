"""The FX graph of a trace: plans inlined one after the other, views read and written in between."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from lowering.signature import dense_order
from tpu_compile.device.plans import FAKE, Plan
from tpu_compile.device.values import View

aten = torch.ops.aten
higher_order = torch.ops.higher_order


@dataclass(frozen=True)
class Blueprint:
    """A graph, and what each of its placeholders is."""

    graph_module: fx.GraphModule
    inputs: tuple[int, ...]
    """The inputs of the trace that are placeholders, in order."""
    extra: Mapping[int, tuple[torch.dtype, tuple[int, ...]]]
    """The placeholders after them: numbers by dtype, then random keys (uint8)."""


def fused_graph(
    steps: Sequence[tuple[Plan | None, tuple[Any, ...]]],
    live: Sequence[int],
    numbers: Mapping[torch.dtype, int],
    keys: int,
) -> Blueprint:
    """Return the graph of `steps`, whose outputs are the values with the slots `live`."""
    builder = _Builder()
    inputs = builder.add_inputs(steps)
    extra = builder.add_extra(len(inputs), numbers, keys)
    for plan, places in steps:
        if plan is None:
            builder.read_input()
        else:
            builder.add(plan, places)
    return Blueprint(builder.finish(live), inputs, extra)


class _Builder:
    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.slots: list[fx.Node] = []
        self._inputs: list[tuple[torch.dtype, tuple[int, ...], fx.Node | None]] = []
        self.constants: dict[str, Any] = {}
        self._next_input = 0
        self._reads: dict[tuple[int, View | None], fx.Node] = {}
        self._numbers: dict[torch.dtype, fx.Node] = {}
        self._next_number: dict[torch.dtype, int] = {}
        self._keys: fx.Node | None = None
        self._next_key = 0

    # --- what comes in --------------------------------------------------------------------------

    def add_inputs(self, steps: Sequence[tuple[Plan | None, tuple[Any, ...]]]) -> tuple[int, ...]:
        """Make placeholders of the values that exist; return which of the inputs they are."""
        given = [places for plan, places in steps if plan is None]
        for index, (dtype, shape, exists) in enumerate(given):
            node = self._placeholder(f"input_{index}", dtype, shape) if exists else None
            self._inputs.append((dtype, shape, node))
        return tuple([index for index, (_, _, exists) in enumerate(given) if exists])

    def _placeholder(self, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> fx.Node:
        node = self.graph.placeholder(name)
        node.meta["val"] = _fake(dtype, shape)
        return node

    def add_extra(
        self, first: int, numbers: Mapping[torch.dtype, int], keys: int
    ) -> dict[int, tuple[torch.dtype, tuple[int, ...]]]:
        extra: dict[int, tuple[torch.dtype, tuple[int, ...]]] = {}
        for dtype, count in numbers.items():
            extra[first + len(extra)] = (dtype, (count,))
            self._numbers[dtype] = self._placeholder(f"numbers_{len(extra)}", dtype, (count,))
        if keys:
            extra[first + len(extra)] = (torch.uint8, (keys, 8))
            self._keys = self._placeholder("keys", torch.uint8, (keys, 8))
        return extra

    def read_input(self) -> None:
        """Give the next input a slot; memory that was never written to is zero."""
        dtype, shape, node = self._inputs[self._next_input]
        self._next_input += 1
        self.slots.append(node or self._call(aten.full.default, list(shape), 0, dtype=dtype))

    def _number(self, dtype: torch.dtype) -> fx.Node:
        index = self._next_number.get(dtype, 0)
        self._next_number[dtype] = index + 1
        return self._call(aten.select.int, self._numbers[dtype], 0, index)

    # --- steps ----------------------------------------------------------------------------------

    def add(self, plan: Plan, places: Sequence[tuple[int, View | None]]) -> None:
        given = [self._read(slot, view) for slot, view in places]
        given += [self._number(dtype) for dtype in plan.numbers]
        outputs = self._inline(plan, given)
        results = len(plan.results)
        for result, node in zip(plan.results, outputs[:results], strict=True):
            self.slots.append(self._permuted(node, result.order))
        for index, node in zip(plan.writes, outputs[results:], strict=True):
            slot, view = places[index]
            base = self.slots[slot]
            if view is not None and index not in plan.resizes:
                node = self._written(base, view, node)
            self.slots.append(node)

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
        name = f"constant_{len(self.constants)}"
        self.constants[name] = value
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
            found = self._reads[slot, view] = self._viewed(self.slots[slot], view)
        return found

    def _viewed(self, base: fx.Node, view: View) -> fx.Node:
        base = self._as_dtype(base, view.dtype)
        value = base.meta["val"]
        order = dense_order(view.size, view.stride) if not view.offset else None
        if order is None or math.prod(view.size) != value.numel():
            if math.prod(view.size) == 0:
                return self._call(aten.full.default, list(view.size), 0, dtype=view.dtype)
            return self._call(
                aten.as_strided.default, base, list(view.size), list(view.stride), view.offset
            )
        shape = tuple([view.size[dim] for dim in order])
        if shape != tuple(value.shape):
            base = self._call(aten.view.default, base, list(shape))
        inverse = [order.index(dim) for dim in range(len(order))]
        return self._permuted(base, inverse)

    def _written(self, base: fx.Node, view: View, new: fx.Node) -> fx.Node:
        """Return `base` with the elements of `view` replaced by `new`."""
        base = self._as_dtype(base, view.dtype)
        order = dense_order(view.size, view.stride) if not view.offset else None
        if order is not None and math.prod(view.size) == base.meta["val"].numel():
            return self._permuted(new, order)
        if math.prod(view.size) == 0:
            return base
        return self._call(
            aten.as_strided_scatter.default,
            base,
            new,
            list(view.size),
            list(view.stride),
            view.offset,
        )

    def _as_dtype(self, base: fx.Node, dtype: torch.dtype) -> fx.Node:
        """Return the memory of `base` read as elements of another dtype."""
        own = base.meta["val"].dtype
        if own is dtype:
            return base
        if own.is_complex:
            base = self._call(aten.view_as_real.default, base)
            return self._as_dtype(self._call(aten.view.default, base, [-1]), dtype)
        flat = self._call(aten.view.default, base, [-1])
        if dtype.is_complex:
            flat = self._as_dtype(flat, dtype.to_real())
            return self._call(
                aten.view_as_complex.default, self._call(aten.view.default, flat, [-1, 2])
            )
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
        return fx.GraphModule(self.constants, self.graph)


def _fake(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    with FAKE:
        return torch.empty(shape, dtype=dtype)
