"""The call path of one compiled graph: arguments to the device, execution, outputs as torch wants.

A `GraphExecutable` holds one `Program` for each binding of the graph's symbolic sizes (just one
when it has none). A program's call is the hot path: it does no dictionary walks and converts only
what changed.
"""

from __future__ import annotations

import contextlib
import operator
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from lowering import LoweredGraph, LoweringOptions, lower_graph
from lowering.importer import RNG_KEY
from lowering.mlir import module_bytecode
from lowering.signature import Argument, FromArgument, FromResult, NumberFromResult, Output
from lowering.sizes import Bindings, bind, placeholder_symbols
from tpu_compile.errors import DeviceError, TpuCompileError
from tpu_compile.options import CompileOptions
from tpu_compile.runtime import pjrt
from tpu_compile.runtime.buffers import AliasSlot, CopySlot
from tpu_compile.runtime.cache import ProgramCache, program_key
from tpu_compile.statistics import RECORDER, CompileRecord

PROGRAMS = ProgramCache()

_NO_LOCK = contextlib.nullcontext()


@dataclass(frozen=True)
class GraphName:
    """How records and errors call a graph."""

    function: str
    where: str
    kind: str
    """`"forward"`, `"backward"` or `"inference"`."""

    def __str__(self) -> str:
        return f"{self.function} {self.kind}"


class Program:
    """One loaded executable and how to call it with torch tensors."""

    def __init__(
        self,
        lowered: LoweredGraph,
        client: pjrt.Client,
        executable: Any,
        name: GraphName,
        versions_ahead: Collection[int],
    ) -> None:
        self._name = name
        signature = lowered.signature
        self._client = client
        self._executable = executable
        mutated = {mutation.placeholder for mutation in signature.mutations}
        self._slots = [
            (index, _slot(client, argument, index in mutated, index in versions_ahead))
            for argument in signature.arguments
            if (index := argument.placeholder) is not None
        ]
        self._positions = [argument.placeholder is not None for argument in signature.arguments]
        self._resident_updates = _resident_updates(lowered, dict(self._slots))
        self._rng_plan = client.put_plan(*RNG_KEY) if signature.uses_rng else None
        self._handlers = [client.read_plan(*layout.physical) for layout in signature.results]
        self._dtypes = [layout.spec.dtype for layout in signature.results]
        self._outputs = signature.outputs
        self._is_plain = all(
            isinstance(output, FromResult) and output.view is None and output.index == index
            for index, output in enumerate(signature.outputs)
        ) and len(signature.outputs) == len(signature.results)
        self._mutations = signature.mutations
        self._constants: list[Any] = []

    def set_constants(self, lowered: LoweredGraph, graph_module: fx.GraphModule) -> None:
        """Upload the large constants of the graph module, which the module takes as arguments.

        The data is read for real: a capture may have its fake tensor mode in force.
        """
        with _disable_current_modes():
            for argument in lowered.signature.arguments:
                if argument.placeholder is None:
                    value = operator.attrgetter(str(argument.node.target))(graph_module)
                    dense = value.detach().permute(argument.order).contiguous()
                    plan = self._client.put_plan(*argument.physical)
                    self._constants.append(self._client.put(dense, plan))

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        """Return the graph's outputs for its placeholders' values; mutated inputs are updated.

        Nothing of the user's is written before every result is there.
        """
        buffers = self._run(args) if self._handlers else []
        results = self._read(buffers, args)
        outputs = (
            results
            if self._is_plain
            else [_output(output, results, args) for output in self._outputs]
        )
        if self._mutations:
            self._write_back(results, buffers, args)
        return outputs

    def _run(self, args: Sequence[Any]) -> list[Any]:
        """Return the result arrays; the device may still be computing them."""
        client = self._client
        if not client.is_open:
            client.require_open()
        # Where arrays are shared copies, no other thread may donate one between the moment it is
        # looked up and the moment the execution holds it.
        with _NO_LOCK if client.aliases_host_memory else client.dispatch_lock:
            arrays = [slot.array(args[index]) for index, slot in self._slots]
            if self._constants:
                arrays = self._with_constants(arrays)
            if self._rng_plan is not None:
                arrays.append(client.put(_draw_key(), self._rng_plan))
            try:
                buffers = pjrt.execute(self._executable, arrays, self._handlers)
            except pjrt.RUNTIME_ERRORS as error:
                raise self._failed(error, args) from error
        RECORDER.count_execution()
        return buffers

    def _read(self, buffers: list[Any], args: Sequence[Any]) -> list[torch.Tensor]:
        """Return the results as tensors, once the device has computed them."""
        read = self._client.read
        try:
            # Reading an array whose computation failed ends the process; waiting for it raises.
            if buffers:
                buffers[0].block_until_ready()
            return [read(b, dtype) for b, dtype in zip(buffers, self._dtypes, strict=True)]
        except pjrt.RUNTIME_ERRORS as error:
            raise self._failed(error, args) from error

    def _failed(self, error: Exception, args: Sequence[Any]) -> DeviceError:
        """Return the error to raise; donated copies are gone, so they are forgotten."""
        self._client.residency.drop(args[mutation.placeholder] for mutation in self._mutations)
        return DeviceError(
            f"The compiled {self._name} failed while it ran",
            where=self._name.where,
            why=str(error),
            ways_out=("smaller inputs, if memory ran out", "report it as a fault of tpu_compile"),
        )

    def _with_constants(self, arrays: list[Any]) -> list[Any]:
        given, constants = iter(arrays), iter(self._constants)
        return [next(given) if is_input else next(constants) for is_input in self._positions]

    def _write_back(
        self, results: list[torch.Tensor], buffers: list[Any], args: Sequence[Any]
    ) -> None:
        with torch.no_grad():
            values = [_output(mutation.value, results, args) for mutation in self._mutations]
            for mutation, value in zip(self._mutations, values, strict=True):
                args[mutation.placeholder].copy_(value)
        for placeholder, result, slot in self._resident_updates:
            slot.replace(args[placeholder], buffers[result])


def _slot(
    client: pjrt.Client, argument: Argument, is_mutated: bool, is_ahead: bool
) -> AliasSlot | CopySlot:
    shape, dtype = argument.spec
    if client.aliases_host_memory:
        return AliasSlot(client, shape, dtype, argument.order)
    return CopySlot(client, shape, dtype, argument.order, mutated=is_mutated, ahead=int(is_ahead))


def _resident_updates(
    lowered: LoweredGraph, slots: dict[int, AliasSlot | CopySlot]
) -> list[tuple[int, int, CopySlot]]:
    """Return (placeholder, result, slot) where a result can stay on the device as the new value."""
    signature = lowered.signature
    arguments = {argument.placeholder: argument for argument in signature.arguments}
    updates = []
    for mutation in signature.mutations:
        slot = slots.get(mutation.placeholder)
        if not isinstance(slot, CopySlot) or mutation.result is None:
            continue
        argument, result = arguments[mutation.placeholder], signature.results[mutation.result]
        if (argument.spec, argument.order) == (result.spec, result.order):
            updates.append((mutation.placeholder, mutation.result, slot))
    return updates


def _draw_key() -> torch.Tensor:
    """Return the key of one call, drawn from torch's default generator: uint32[2]."""
    return torch.empty((1,), dtype=torch.int64, device="cpu").random_().view(torch.uint32)


def _output(output: Output, results: Sequence[torch.Tensor], args: Sequence[Any]) -> Any:
    if isinstance(output, FromResult):
        tensor, view = results[output.index], output.view
        return tensor if view is None else tensor.as_strided(*view)
    if isinstance(output, FromArgument):
        tensor, view = args[output.placeholder], output.view
        if view is None:
            return tensor
        return tensor.as_strided(view.size, view.stride, tensor.storage_offset() + view.offset)
    if isinstance(output, NumberFromResult):
        return results[output.index].item()
    return output.value


class GraphExecutable:
    """A compiled graph: takes the placeholders' values in order, gives back the outputs.

    Raises at construction, for sizes known then, what lowering and compiling raise.
    """

    def __init__(
        self,
        graph_module: fx.GraphModule,
        *,
        name: GraphName,
        options: CompileOptions,
        client: pjrt.Client,
        bindings: Bindings | None = None,
        versions_ahead: Collection[int] = (),
    ) -> None:
        """Compile `graph_module` for the sizes known now.

        `bindings` are those sizes; `versions_ahead` are the placeholders whose version counters
        the caller raises by one before each call.
        """
        self._versions_ahead = frozenset(versions_ahead)
        self._graph_module = graph_module
        self._name = name
        self._options = options
        self._precision = options.resolved_precision()
        self._client = client
        placeholders = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
        self._symbols = placeholder_symbols(placeholders)
        self._programs: dict[tuple[Any, ...], Program] = {}
        self._lock = threading.Lock()
        self._only: Program | None = None
        if not self._symbols:
            self._only = self._build({})
        elif bindings is not None and all(expr in bindings for expr, _, _ in self._symbols):
            key = tuple(bindings[expr] for expr, _, _ in self._symbols)
            self._programs[key] = self._build(bindings)

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        """Run the program for these arguments' sizes, compiling it if they are new."""
        if self._only is not None:
            return self._only(args)
        bindings = bind(self._symbols, args)
        key = tuple(bindings.values())
        program = self._programs.get(key)
        if program is None:
            with self._lock:
                program = self._programs.get(key) or self._build(bindings)
                self._programs[key] = program
        return program(args)

    def _build(self, bindings: Bindings) -> Program:
        started = time.perf_counter()
        client = self._client
        lowered = lower_graph(
            self._graph_module,
            options=LoweringOptions(client.platform, self._precision),
            bindings=bindings,
            donate=self._options.donate and not client.aliases_host_memory,
        )
        executable = None
        if lowered.signature.results:
            text = lowered.text()
            RECORDER.count("lowered")
            RECORDER.add_seconds("lowering_seconds", time.perf_counter() - started)
            executable = self._compile(lowered, text)
        program = Program(lowered, client, executable, self._name, self._versions_ahead)
        program.set_constants(lowered, self._graph_module)
        return program

    def _compile(self, lowered: LoweredGraph, text: str) -> Any:
        xla_options = tuple(self._options.xla_options.items())
        inputs = tuple(str(argument.spec) for argument in lowered.signature.arguments)

        def compile_program() -> Any:
            reason = HISTORY.reason(self._name, inputs)
            with lowered.module.context:
                bytecode = module_bytecode(lowered.module)
            started = time.perf_counter()
            try:
                executable = self._client.compile(bytecode, xla_options)
            except TpuCompileError as error:
                raise error.at(f"{self._name} at {self._name.where}") from error
            seconds = time.perf_counter() - started
            RECORDER.record_compile(
                CompileRecord(str(self._name), self._name.where, inputs, reason, seconds)
            )
            return executable

        executable, origin = PROGRAMS.get(
            program_key(text, xla_options, self._client),
            self._client,
            compile_program,
            folder=self._options.resolved_cache_dir(),
        )
        HISTORY.add(self._name, inputs)
        if origin != "compiled":
            RECORDER.count("memory_hits" if origin == "memory" else "disk_hits")
        return executable


class CompileHistory:
    """Which input signatures each function was compiled for, to say why another is needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[GraphName, list[tuple[str, ...]]] = {}

    def add(self, name: GraphName, inputs: tuple[str, ...]) -> None:
        """Note that a program of `name` for `inputs` exists."""
        with self._lock:
            self._seen.setdefault(name, []).append(inputs)

    def reason(self, name: GraphName, inputs: tuple[str, ...]) -> str:
        """Return why `inputs` need a program, as the difference from the nearest earlier one."""
        with self._lock:
            earlier = list(self._seen.get(name, ()))
        same_length = [seen for seen in earlier if len(seen) == len(inputs)]
        if not same_length:
            return "another graph of this function" if earlier else "first program of this graph"
        nearest = min(same_length, key=lambda seen: sum(map(_differs, seen, inputs)))
        changes = [
            f"input {index} went from {old} to {new}"
            for index, (old, new) in enumerate(zip(nearest, inputs, strict=True))
            if old != new
        ]
        return "; ".join(changes[:4]) or "the same inputs, but another graph or other options"

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._seen.clear()


def _differs(old: str, new: str) -> bool:
    return old != new


HISTORY = CompileHistory()
