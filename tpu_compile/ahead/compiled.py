"""What a compiler makes of lowered programs: HLO, cost, memory. The chip need not be there."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lowering.mlir import create_context, ir, module_bytecode
from tpu_compile.ahead import hlo_text
from tpu_compile.ahead.live_memory import CallMemory, MemoryUse, memory_over_calls
from tpu_compile.ahead.lowered import Lowered, LoweredProgram, ProgramCall
from tpu_compile.errors import TpuCompileError
from tpu_compile.options import CompileOptions
from tpu_compile.runtime import pjrt
from tpu_compile.runtime.pjrt import compile_only
from tpu_compile.runtime.targets import Target, UnknownTargetError

# Of `Compiled.serialize`; raised whenever the meaning of the bytes changes.
_FORMAT = b"tpu_compile-compiled-1\n"


@dataclass(frozen=True)
class Cost:
    """What XLA's cost analysis says of programs; sums where there are several."""

    flops: float
    """Floating-point operations, of transcendental ones one each."""
    bytes_accessed: float
    """Bytes that the fusions read and write: upper bound of the memory traffic."""
    transcendentals: float
    estimated_cycles: int
    """The TPU compiler's own estimate, summed over the schedule; 0 on other platforms.

    A relative cost, to compare programs for one chip; no time."""

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.flops + other.flops,
            self.bytes_accessed + other.bytes_accessed,
            self.transcendentals + other.transcendentals,
            self.estimated_cycles + other.estimated_cycles,
        )


@dataclass(frozen=True)
class ProgramMemory:
    """Bytes of one program in the chip's memory, as its compiler lays them out."""

    arguments: int
    outputs: int
    aliased: int
    """Of the outputs, those that take the place of donated arguments."""
    temporaries: int
    code: int

    @property
    def total(self) -> int:
        """What one run needs by itself."""
        return self.arguments + self.outputs - self.aliased + self.temporaries + self.code


@dataclass(eq=False)
class CompiledProgram:
    """One compiled program."""

    lowered: LoweredProgram
    executable: Any
    seconds: float
    """How long its compile took here."""

    @functools.cached_property
    def hlo(self) -> str:
        """The optimized HLO as XLA prints it.

        Raises:
            CompilationError: this jaxlib cannot read the HLO of this plugin.
        """
        return compile_only.hlo_of(self.executable)

    @functools.cached_property
    def hlo_module(self) -> hlo_text.Module:
        """The HLO, read: instructions with their place in the model and their cycles."""
        return hlo_text.parse(self.hlo)

    @functools.cached_property
    def cost(self) -> Cost:
        """What XLA says that one run costs."""
        found = compile_only.cost_of(self.executable)
        return Cost(
            found.get("flops", 0.0),
            found.get("bytes accessed", 0.0),
            found.get("transcendentals", 0.0),
            self.hlo_module.estimated_cycles,
        )

    @functools.cached_property
    def memory(self) -> ProgramMemory:
        """What one run takes of the chip's memory."""
        return ProgramMemory(**compile_only.memory_of(self.executable))

    @functools.cached_property
    def shapes(self) -> tuple[tuple[hlo_text.Shape, ...], tuple[hlo_text.Shape, ...]]:
        """The arrays that it takes and gives, as they lie in memory."""
        arguments, results = hlo_text.entry_types(self.hlo)
        return tuple(hlo_text.shapes_in(arguments)), tuple(hlo_text.shapes_in(results))


@dataclass(frozen=True)
class Roofline:
    """The shortest time that a chip's peaks allow for a cost, in seconds."""

    compute_seconds: float
    memory_seconds: float

    @property
    def seconds(self) -> float:
        """The longer of both: neither peak can be passed."""
        return max(self.compute_seconds, self.memory_seconds)

    @property
    def peak_share(self) -> float:
        """The largest share of the peak of products that the memory traffic allows."""
        return self.compute_seconds / self.seconds if self.seconds else 0.0

    @property
    def bound(self) -> str:
        """What limits it: `"compute"` or `"memory"`."""
        return "compute" if self.compute_seconds >= self.memory_seconds else "memory"


@dataclass(frozen=True)
class Compiled:
    """The programs of one call of a function, compiled for a target."""

    target: Target
    programs: tuple[CompiledProgram, ...]
    calls: tuple[ProgramCall, ...]
    available: int | None
    """Bytes of the chip's memory that programs may use; None on the CPU."""
    compiler: str
    """The compiler's own name and build."""

    @property
    def hlo(self) -> str:
        """The optimized HLO; of several programs, one after the other, each under a comment."""
        if len(self.programs) == 1:
            return self.programs[0].hlo
        return "\n".join(
            f"// program {number} of {len(self.programs)}: {program.lowered.title}\n{program.hlo}"
            for number, program in enumerate(self.programs, 1)
        )

    @functools.cached_property
    def cost(self) -> Cost:
        """What one call of the function costs: the sum over its runs of programs."""
        by_program = {program.lowered: program.cost for program in self.programs}
        return sum((by_program[call.program] for call in self.calls), Cost(0.0, 0.0, 0.0, 0))

    @functools.cached_property
    def memory(self) -> MemoryUse:
        """What one call takes of the chip's memory, program by program."""
        by_program = {program.lowered: program for program in self.programs}
        return memory_over_calls(
            [
                CallMemory(
                    call,
                    by_program[call.program].memory,
                    *by_program[call.program].shapes,
                )
                for call in self.calls
            ],
            code=sum(program.memory.code for program in self.programs),
            available=self.available,
        )

    @property
    def roofline(self) -> Roofline | None:
        """The least time of one call by the chip's peaks; None where they are not known."""
        chip = self.target.chip
        if chip is None:
            return None
        return Roofline(
            self.cost.flops / chip.device_peak_flops,
            self.cost.bytes_accessed / chip.device_bandwidth,
        )

    def serialize(self) -> bytes:
        """Return the executables in one piece: a header in JSON, then the plugin's own bytes.

        The header names target, compiler and programs, with the lengths of their bytes. They can
        be loaded by the same version of the plugin on such a chip, which was never tried.
        """
        bodies = [compile_only.serialized(program.executable) for program in self.programs]
        header = {
            "target": str(self.target),
            "compiler": self.compiler,
            "programs": [
                {"name": program.lowered.title, "bytes": len(body)}
                for program, body in zip(self.programs, bodies, strict=True)
            ],
        }
        text = json.dumps(header).encode()
        return b"".join([_FORMAT, len(text).to_bytes(8, "little"), text, *bodies])


def compile_lowered(
    lowered: Lowered, target: Target, progress: Callable[[LoweredProgram], object] | None = None
) -> Compiled:
    """Return the programs of `lowered` compiled for `target`; see `Lowered.compile`."""
    compiler = compiler_for(target)
    programs = []
    for program in lowered.programs:
        if progress is not None:
            progress(program)
        programs.append(compile_program(program, compiler, lowered.options))
    return Compiled(
        target, tuple(programs), lowered.calls, compiler.available_bytes(), compiler.version
    )


def compile_program(
    program: LoweredProgram, compiler: Compiler, options: CompileOptions
) -> CompiledProgram:
    """Return one program compiled by `compiler`; an error is placed at the program."""
    started = time.perf_counter()
    module = program.lowered.module
    try:
        with module.context:
            executable = compiler.compile(module, tuple(options.xla_options.items()))
    except TpuCompileError as error:
        raise _placed(error, program) from error
    return CompiledProgram(program, executable, time.perf_counter() - started)


def _placed(error: TpuCompileError, program: LoweredProgram) -> TpuCompileError:
    placed = error.at(f"{program.title} at {program.where}")
    placed.__dict__.update({"needed": getattr(error, "needed", None)})
    placed.__dict__.update({"available": getattr(error, "available", None)})
    return placed


class Compiler:
    """A compiler that is asked about programs for one target."""

    version: str

    def compile(self, module: Any, xla_options: Sequence[tuple[str, Any]]) -> Any:
        """Return the executable of an `ir.Module`."""
        raise NotImplementedError

    def available_bytes(self) -> int | None:
        """Return what programs may use of the chip's memory; None where nothing limits them."""
        raise NotImplementedError


class _CpuCompiler(Compiler):
    def __init__(self) -> None:
        self._client = pjrt.open_client("cpu")
        self.version = self._client.platform

    def compile(self, module: Any, xla_options: Sequence[tuple[str, Any]]) -> Any:
        return self._client.compile(module_bytecode(module), xla_options)

    def available_bytes(self) -> int | None:
        return None


class _ChipCompiler(Compiler):
    def __init__(self, target: Target) -> None:
        try:
            self._client = pjrt.open_compile_only(
                target.platform, str(target), one_chip=target.is_one_chip
            )
        except pjrt.UnknownTopologyError as error:
            chip = target.chip
            raise UnknownTargetError(
                f"The compiler refuses the target {str(target)!r}",
                why=error.why,
                ways_out=(f"{chip.name}:{chip.one}",) if chip is not None else (),
            ) from error
        self.version = self._client.version

    def compile(self, module: Any, xla_options: Sequence[tuple[str, Any]]) -> Any:
        return self._client.compile(module, xla_options)

    def available_bytes(self) -> int | None:
        return self._client.available_bytes(_too_large)


@functools.cache
def compiler_for(target: Target) -> Compiler:
    """Return the compiler of `target`, opened once in a process.

    Raises:
        DeviceError: it is not installed.
        UnknownTargetError: it refuses the topology.
    """
    return _CpuCompiler() if target.platform == "cpu" else _ChipCompiler(target)


def _too_large() -> Any:
    """Return a module that fits no chip: what its compiler says of it names the chip's memory."""
    matrix = f"tensor<{2**20}x{2**20}xf32>"
    with create_context():
        return ir.Module.parse(
            f"func.func @main(%a: {matrix}) -> {matrix} {{\n"
            f"  %0 = stablehlo.add %a, %a : {matrix}\n  return %0 : {matrix}\n}}"
        )
