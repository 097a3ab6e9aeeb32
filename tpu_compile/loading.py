"""A lowered module as a loaded program: found in memory, on disk, or compiled, and counted."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lowering import LoweredGraph
from lowering.mlir import module_bytecode
from tpu_compile.errors import TpuCompileError
from tpu_compile.history import HISTORY, GraphName
from tpu_compile.interface import Interface
from tpu_compile.options import CompileOptions
from tpu_compile.runtime.cache import Persistence, ProgramCache, key_parts
from tpu_compile.runtime.pjrt import Client
from tpu_compile.statistics import RECORDER, CompileRecord

PROGRAMS = ProgramCache()
_COUNTERS = {"memory": "memory_hits", "disk": "disk_hits", "mismatch": "cache_mismatches"}


@dataclass(frozen=True)
class Loaded:
    """A program, and how it was had."""

    executable: Any
    seconds: float
    """What compiling it took; 0 if it was found."""


def load(
    lowered: LoweredGraph,
    interface: Interface,
    started: float,
    name: GraphName,
    options: CompileOptions,
    client: Client,
) -> Loaded:
    """Return the program of a module that was lowered since `started`.

    Raises:
        CompilationError: XLA refuses the module; the error is placed at `name`.
    """
    text = lowered.text()
    RECORDER.count("lowered")
    RECORDER.add_seconds("lowering_seconds", time.perf_counter() - started)

    def module() -> bytes:
        with lowered.module.context:
            return module_bytecode(lowered.module)

    return find(text, module, interface, name, options, client)


def find(
    text: str,
    module: Callable[[], bytes],
    interface: Interface,
    name: GraphName,
    options: CompileOptions,
    client: Client,
) -> Loaded:
    """Return the program of a module that lies in a cache, or else is compiled.

    Args:
        text: the module's canonical text, by which it is found.
        module: gives what is compiled.
        interface: how the program is called.
        name: what errors and records call it.
        options: the options of `torch.compile`.
        client: where it runs.

    Raises:
        CompilationError: XLA refuses the module; the error is placed at `name`.
    """
    xla_options = tuple(options.xla_options.items())
    inputs = interface.inputs
    seconds = 0.0

    def compile_program() -> Any:
        nonlocal seconds
        reason = HISTORY.reason(name, inputs)
        bytecode = module()
        started = time.perf_counter()
        try:
            executable = client.compile(bytecode, xla_options)
        except TpuCompileError as error:
            raise error.at(f"{name} at {name.where}") from error
        seconds = time.perf_counter() - started
        RECORDER.record_compile(CompileRecord(str(name), name.where, inputs, reason, seconds))
        return executable

    def describe() -> dict[str, Any]:
        return {
            "function": str(name),
            "inputs": list(inputs),
            # These two shape the module, and so tell why it differs from another.
            "settings": {
                "matmul_precision": options.resolved_precision(),
                "donate": str(options.donate),
            },
        }

    executable, origin = PROGRAMS.get(
        key_parts(text, xla_options, client),
        client,
        compile_program,
        persistence=_persistence(options),
        describe=describe,
    )
    HISTORY.add(name, inputs)
    counter = _COUNTERS.get(origin)
    if counter is not None:
        RECORDER.count(counter)
    return Loaded(executable, seconds)


def _persistence(options: CompileOptions) -> Persistence | None:
    location = options.resolved_cache_dir()
    if location is None:
        return None
    return Persistence(location, options.resolved_cache_size(), options.resolved_cache_verify())
