"""Ops that were called and have not run yet, and the programs that they become.

A trace is a list of plans and how values go between them. Flushing runs it as one program, found by
the structure of the trace: the same ops on values of the same kinds are the same program, whatever
the numbers are that were lifted out of them. An op that runs at once is a trace of one step.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from lowering import LoweringOptions, lower_graph
from tpu_compile import loading
from tpu_compile.device.client import device_client
from tpu_compile.device.fusion import Blueprint, fused_graph
from tpu_compile.device.plans import Plan
from tpu_compile.device.values import Value, View, whole_order
from tpu_compile.history import GraphName
from tpu_compile.options import CompileOptions
from tpu_compile.runtime import pjrt
from tpu_compile.statistics import RECORDER

LOCK = threading.RLock()
"""Held while ops are recorded and run: backward passes record from threads of autograd's own."""


@dataclass(frozen=True)
class Program:
    """A loaded program: takes the arrays of a trace's inputs, gives those of its live values."""

    executable: Any
    handlers: list[Any]
    number_plans: tuple[tuple[torch.dtype, Any], ...]
    key_plan: Any
    inputs: tuple[int, ...]
    """Which of the trace's inputs the program takes."""
    outputs: tuple[int, ...]
    """For each live value, the result that it is."""


class Trace:
    """The ops recorded since the last flush."""

    def __init__(self) -> None:
        self.steps: list[tuple[Plan, tuple[Any, ...]]] = []
        self.key: list[Any] = []
        self.inputs: list[Value] = []
        self.slots = 0
        self._promised: list[weakref.ref[Value]] = []
        self._numbers: dict[torch.dtype, list[float]] = {}
        self._keys: list[bytes] = []

    def record(
        self,
        plan: Plan,
        reads: Sequence[tuple[Value, View | None]],
        numbers: Sequence[float] = (),
        keys: Sequence[bytes] = (),
    ) -> list[Value]:
        """Add a step; return the values of its results, then of what it writes to."""
        places = tuple([(self._slot(value), view) for value, view in reads])
        self.steps.append((plan, places))
        self.key.append(plan)
        self.key.append(places)
        for dtype, number in zip(plan.numbers, numbers, strict=True):
            self._numbers.setdefault(dtype, []).append(number)
        self._keys.extend(keys)
        made = [self._promise(r.dtype, r.shape) for r in plan.results]
        for index in plan.writes:
            value, view = reads[index]
            size = plan.resizes.get(index)
            if size is not None:
                made.append(self._promise(value.dtype if view is None else view.dtype, size))
            elif view is None:
                made.append(self._promise(value.dtype, value.shape))
            else:
                order = whole_order(view, value)
                shape = value.shape if order is None else tuple([view.size[d] for d in order])
                made.append(self._promise(view.dtype, shape))
        return made

    def _slot(self, value: Value) -> int:
        if value.trace is self:
            return value.slot
        if value.error is not None:
            raise value.error
        value.trace, value.slot = self, self.slots
        self.key.append((value.array is not None, value.dtype, value.shape))
        self.slots += 1
        self.inputs.append(value)
        self.steps.append((None, (value.dtype, value.shape, value.array is not None)))  # type: ignore[arg-type]
        return value.slot

    def _promise(self, dtype: torch.dtype, shape: tuple[int, ...]) -> Value:
        value = Value(dtype, shape)
        value.trace, value.slot = self, self.slots
        self.slots += 1
        self._promised.append(weakref.ref(value))
        return value

    @property
    def length(self) -> int:
        """How many ops were recorded."""
        return len(self.steps)

    def flush(self, *, wait: bool = False) -> None:
        """Run what was recorded; every value that something still holds gets its array."""
        live = [value for ref in self._promised if (value := ref()) is not None]
        try:
            self._run(live)
            if wait:
                for value in live:
                    value.array.block_until_ready()
        except Exception as error:
            for value in live:
                value.error = error
            raise
        finally:
            for value in (*self.inputs, *live):
                value.trace = None

    def _run(self, live: list[Value]) -> None:
        if not live:
            return
        client = device_client()
        key = (client, tuple(self.key), tuple([value.slot for value in live]))
        program = _programs.get(key)
        if program is None:
            program = _programs[key] = self._build(client, [value.slot for value in live])
        inputs = self.inputs
        arrays = [inputs[index].array for index in program.inputs]
        for dtype, plan in program.number_plans:
            arrays.append(client.put(torch.tensor(self._numbers[dtype], dtype=dtype), plan))
        if program.key_plan is not None:
            data = numpy.frombuffer(b"".join(self._keys), dtype=numpy.uint8).reshape(-1, 8).copy()
            arrays.append(client.put(torch.from_numpy(data), program.key_plan))
        results = pjrt.execute(program.executable, arrays, program.handlers)
        RECORDER.count_execution()
        for value, index in zip(live, program.outputs, strict=True):
            value.array = results[index]

    def _build(self, client: pjrt.Client, live: list[int]) -> Program:
        numbers = {dtype: len(values) for dtype, values in self._numbers.items()}
        blueprint = fused_graph(self.steps, live, numbers, len(self._keys))
        return load(blueprint, client, self._name())

    def _name(self) -> GraphName:
        ops = [str(plan.op) for plan, _ in self.steps if plan is not None]
        return GraphName(
            ops[0] if len(ops) == 1 else f"{ops[0]} and {len(ops) - 1} more", "", "eager"
        )


_programs: dict[Any, Program] = {}


def load(blueprint: Blueprint, client: pjrt.Client, name: GraphName) -> Program:
    """Return the program of a fused graph, compiled unless memory or disk has it."""
    options = CompileOptions()
    started = time.perf_counter()
    lowered = lower_graph(
        blueprint.graph_module,
        options=LoweringOptions(client.platform, options.resolved_precision()),
    )
    executable, _ = loading.load(lowered, started, name, options, client)
    taken = {argument.placeholder for argument in lowered.signature.arguments}
    number_plans: list[tuple[torch.dtype, Any]] = []
    key_plan = None
    for placeholder, (dtype, shape) in blueprint.extra.items():
        if placeholder not in taken:
            continue
        plan = client.put_plan(shape, dtype)
        if dtype is torch.uint8:
            key_plan = plan
        else:
            number_plans.append((dtype, plan))
    return Program(
        executable,
        [client.read_plan(*result.physical) for result in lowered.signature.results],
        tuple(number_plans),
        key_plan,
        tuple([index for place, index in enumerate(blueprint.inputs) if place in taken]),
        tuple([output.index for output in lowered.signature.outputs]),  # type: ignore[union-attr]
    )


_current = Trace()


def current_trace() -> Trace:
    """Return the trace that ops are recorded in."""
    return _current


def flush(*, wait: bool = False) -> None:
    """Run every op that was recorded; `wait` until the device has computed them."""
    global _current
    with LOCK:
        trace = _current
        if trace.steps:
            _current = Trace()
            trace.flush(wait=wait)
