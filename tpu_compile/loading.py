"""A lowered module as a loaded program: found in memory, on disk, or compiled, and counted."""

from __future__ import annotations

import time
from typing import Any

from lowering import LoweredGraph
from lowering.mlir import module_bytecode
from tpu_compile.errors import TpuCompileError
from tpu_compile.history import HISTORY, GraphName
from tpu_compile.options import CompileOptions
from tpu_compile.runtime.cache import Persistence, ProgramCache, key_parts
from tpu_compile.runtime.pjrt import Client
from tpu_compile.statistics import RECORDER, CompileRecord

PROGRAMS = ProgramCache()
_COUNTERS = {"memory": "memory_hits", "disk": "disk_hits", "mismatch": "cache_mismatches"}


def load(
    lowered: LoweredGraph, started: float, name: GraphName, options: CompileOptions, client: Client
) -> tuple[Any, float]:
    """Return the executable of a module lowered since `started`, and the seconds to compile it.

    Raises:
        CompilationError: XLA refuses the module; the error is placed at `name`.
    """
    text = lowered.text()
    RECORDER.count("lowered")
    RECORDER.add_seconds("lowering_seconds", time.perf_counter() - started)
    xla_options = tuple(options.xla_options.items())
    inputs = tuple(str(argument.spec) for argument in lowered.signature.arguments)
    seconds = 0.0

    def compile_program() -> Any:
        nonlocal seconds
        reason = HISTORY.reason(name, inputs)
        with lowered.module.context:
            bytecode = module_bytecode(lowered.module)
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
    return executable, seconds


def _persistence(options: CompileOptions) -> Persistence | None:
    location = options.resolved_cache_dir()
    if location is None:
        return None
    return Persistence(location, options.resolved_cache_size(), options.resolved_cache_verify())
