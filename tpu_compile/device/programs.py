"""Recorded steps as loaded programs, and how one is run."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import torch

from lowering import LoweringOptions, lower_graph
from tpu_compile import loading
from tpu_compile.device.client import explained
from tpu_compile.device.fusion import Input, Recorded, fused_graph
from tpu_compile.device.values import Value
from tpu_compile.history import GraphName
from tpu_compile.interface import Interface
from tpu_compile.options import CompileOptions
from tpu_compile.runtime import pjrt
from tpu_compile.statistics import RECORDER

Numbers = Mapping[torch.dtype, Sequence[float]]

# Arrays of numbers that calls take again and again, such as the 2 of `x * 2.0`.
_MOST_NUMBERS = 64


class Program:
    """A loaded program: takes the values that steps read, gives those that they make."""

    __slots__ = (
        "_client",
        "_executable",
        "_handlers",
        "_key_plan",
        "_known_numbers",
        "_number_plans",
        "_outputs",
        "taken",
    )

    def __init__(
        self,
        client: pjrt.Client,
        inputs: Sequence[Input],
        steps: Sequence[Recorded],
        live: Sequence[int],
        numbers: Mapping[torch.dtype, int],
        keys: int,
    ) -> None:
        """Compile `steps` for the values `live` (see `fused_graph`), unless a cache has them.

        Raises:
            LoweringError, CompilationError: a fault of ours.
        """
        started = time.perf_counter()
        blueprint = fused_graph(inputs, steps, live, numbers, keys)
        options = CompileOptions()
        lowered = lower_graph(
            blueprint.graph_module,
            options=LoweringOptions(client.platform, options.resolved_precision()),
        )
        signature = lowered.signature
        interface = Interface.of(signature, blueprint.graph_module)
        self._client = client
        loaded = loading.load(lowered, interface, started, _name(steps), options, client)
        self._executable = loaded.executable
        self._handlers = [client.read_plan(*result.physical) for result in signature.results]
        self._outputs: list[int] = [output.index for output in signature.outputs]  # type: ignore[union-attr]
        taken = {argument.placeholder for argument in signature.arguments}
        count = len(blueprint.inputs)
        self.taken = [index for place, index in enumerate(blueprint.inputs) if place in taken]
        extra = [kind for place, kind in enumerate(blueprint.extra, count) if place in taken]
        plans = [(kind.dtype, client.put_plan(kind.shape, kind.dtype)) for kind in extra]
        self._number_plans = [plan for plan in plans if plan[0] is not torch.uint8]
        self._key_plan = next((plan for dtype, plan in plans if dtype is torch.uint8), None)
        self._known_numbers: dict[tuple[Any, ...], Any] = {}

    def __call__(
        self, inputs: Sequence[Value], numbers: Numbers, keys: Sequence[bytes]
    ) -> list[Any]:
        """Start the program; return an array for each of the live values."""
        arrays = [inputs[index].array for index in self.taken]
        for dtype, plan in self._number_plans:
            arrays.append(self._numbers(tuple(numbers[dtype]), dtype, plan))
        if self._key_plan is not None:
            data = numpy.frombuffer(b"".join(keys), dtype=numpy.uint8).reshape(-1, 8).copy()
            arrays.append(self._client.put(torch.from_numpy(data), self._key_plan))
        try:
            results = pjrt.execute(self._executable, arrays, self._handlers)
        except pjrt.RUNTIME_ERRORS as error:
            raise explained(error) from error
        RECORDER.count_execution()
        return [results[index] for index in self._outputs]

    def _numbers(self, numbers: tuple[float, ...], dtype: torch.dtype, plan: Any) -> Any:
        # As text where it matters: 0.0 is equal to -0.0.
        key: tuple[Any, ...] = tuple(map(repr, numbers)) if 0.0 in numbers else numbers
        array = self._known_numbers.get(key)
        if array is None:
            array = self._client.put(torch.tensor(numbers, dtype=dtype, device="cpu"), plan)
            if len(self._known_numbers) >= _MOST_NUMBERS:
                del self._known_numbers[next(iter(self._known_numbers))]
            self._known_numbers[key] = array
        return array


def _name(steps: Sequence[Recorded]) -> GraphName:
    first, more = str(steps[0].step.plan.op), len(steps) - 1
    return GraphName(f"{first} and {more} more ops" if more else first, "", "eager")
