"""Ops that were called and have not run yet.

A trace is a list of steps and how values go between them. Flushing runs it as one program, found by
the structure of the trace: the same ops on values of the same kinds are the same program, whatever
the numbers are that were lifted out of them.
"""

from __future__ import annotations

import itertools
import logging
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from tpu_compile.device.client import device_client
from tpu_compile.device.fusion import Input, Recorded
from tpu_compile.device.programs import Program
from tpu_compile.device.steps import Step
from tpu_compile.device.values import Value
from tpu_compile.errors import TpuCompileError
from tpu_compile.runtime.pjrt import RUNTIME_ERRORS

logger = logging.getLogger(__name__)

LOCK = threading.RLock()
"""Held while ops are recorded and run: backward passes record from threads of autograd's own."""

FAILURES: tuple[type[Exception], ...] = (TpuCompileError, *RUNTIME_ERRORS)

_programs: dict[Any, Program] = {}


class Trace:
    """The ops recorded since the last flush."""

    def __init__(self) -> None:
        self._steps: list[Recorded] = []
        self._inputs: list[Value] = []
        self._input_places: list[Input] = []
        self._key: list[Any] = []
        self._slots = 0
        self._promised: list[weakref.ref[Value]] = []
        self._numbers: dict[torch.dtype, list[float]] = {}
        self._keys: list[bytes] = []

    def __len__(self) -> int:
        return len(self._steps)

    def starts_with(self, step: Step) -> bool:
        """Whether `step` is the first that was recorded."""
        return bool(self._steps) and self._steps[0].step is step

    def record(
        self,
        step: Step,
        values: Sequence[Value],
        numbers: Sequence[float] = (),
        keys: Sequence[bytes] = (),
    ) -> list[Value]:
        """Add a step; return the values that it will make."""
        slots = tuple(
            [value.slot if value.trace is self else self._take(value) for value in values]
        )
        first = self._slots
        self._steps.append(Recorded(step, slots, first))
        self._key += (step, slots)
        if numbers:
            for dtype, number in zip(step.plan.numbers, numbers, strict=True):
                self._numbers.setdefault(dtype, []).append(number)
        self._keys.extend(keys)
        made = []
        for slot, kind in enumerate(step.made, first):
            value = Value(kind, None, self, slot)
            self._promised.append(weakref.ref(value))
            made.append(value)
        self._slots = first + len(made)
        return made

    def _take(self, value: Value) -> int:
        if value.error is not None:
            raise value.error
        value.trace, value.slot = self, self._slots
        exists = value.array is not None
        self._key.append((value.kind, exists))
        self._inputs.append(value)
        self._input_places.append(Input(self._slots, value.kind, exists))
        self._slots += 1
        return value.slot

    def flush(self) -> None:
        """Run what was recorded; every value that something still holds gets its array.

        Where that fails, the steps are run one by one, and values that cannot be had keep the
        error: it is raised when they are read.
        """
        live = [value for ref in self._promised if (value := ref()) is not None]
        for value in (*self._inputs, *live):
            value.trace = None
        if not live:
            return
        try:
            self._run(live)
        except FAILURES as error:
            logger.warning("running %d device ops one by one: %s", len(self), error)
            self._run_singly(live)

    def _run_singly(self, live: list[Value]) -> None:
        values = {place.slot: v for place, v in zip(self._input_places, self._inputs, strict=True)}
        numbers = {dtype: iter(given) for dtype, given in self._numbers.items()}
        keys = iter(self._keys)
        for step, slots, first in self._steps:
            plan = step.plan
            given = [next(numbers[dtype]) for dtype in plan.numbers]
            drawn = list(itertools.islice(keys, len(plan.random_ops)))
            try:
                made = run_now(step, [values[slot] for slot in slots], given, drawn)
            except FAILURES as error:
                made = [Value(kind) for kind in step.made]
                for value in made:
                    value.error = error
            values.update(enumerate(made, first))
        for value in live:
            value.array, value.error = values[value.slot].array, values[value.slot].error

    def _run(self, live: list[Value]) -> None:
        slots = tuple([value.slot for value in live])
        client = device_client()
        key = (client, tuple(self._key), slots)
        program = _programs.get(key)
        if program is None:
            counts = {dtype: len(numbers) for dtype, numbers in self._numbers.items()}
            program = Program(
                client, self._input_places, self._steps, slots, counts, len(self._keys)
            )
            _programs[key] = program
        arrays = program(self._inputs, self._numbers, self._keys)
        for value, array in zip(live, arrays, strict=True):
            value.array = array


def run_now(
    step: Step, values: Sequence[Value], numbers: Sequence[float], keys: Sequence[bytes]
) -> list[Value]:
    """Run one step, which nothing recorded before it is waiting for; return what it makes."""
    program = step.program
    if program is None:
        program = step.program = _program_of(step)
    for value in values:
        if value.array is None:
            _settle(values, program)
            break
    by_dtype = {step.plan.numbers[0]: numbers} if numbers else {}
    arrays = program(values, by_dtype, keys)
    return [Value(kind, array) for kind, array in zip(step.made, arrays, strict=True)]


def _settle(values: Sequence[Value], program: Program) -> None:
    """Give arrays to the values that a program takes: what was never written to reads as zeros."""
    for value in values:
        if value.error is not None:
            raise value.error
    for index in program.taken:
        value = values[index]
        if value.array is None:
            client, kind = device_client(), value.kind
            zeros = torch.zeros(kind.shape, dtype=kind.dtype, device="cpu")
            value.array = client.put(zeros, client.put_plan(kind.shape, kind.dtype))


def _program_of(step: Step) -> Program:
    count = len(step.kinds)
    inputs = [Input(slot, kind, True) for slot, kind in enumerate(step.kinds)]
    steps = [Recorded(step, tuple(range(count)), count)]
    live = range(count, count + len(step.made))
    dtypes = step.plan.numbers
    numbers = {dtypes[0]: len(dtypes)} if dtypes else {}
    return Program(device_client(), inputs, steps, live, numbers, len(step.plan.random_ops))


_current = Trace()


def current_trace() -> Trace:
    """Return the trace that ops are recorded in."""
    return _current


def flush() -> None:
    """Run every op that was recorded."""
    global _current
    with LOCK:
        trace = _current
        if len(trace):
            _current = Trace()
            trace.flush()
