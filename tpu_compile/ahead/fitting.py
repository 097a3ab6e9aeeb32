"""Whether a function fits the memory of a chip, and the largest size that does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lowering.dtypes import TensorSpec
from tpu_compile.ahead.compiled import (
    Compiled,
    CompiledProgram,
    compile_program,
    compiler_for,
)
from tpu_compile.ahead.hlo_text import Shape
from tpu_compile.ahead.live_memory import CallMemory, MemoryUse, memory_over_calls
from tpu_compile.ahead.lowered import Lowered, LoweredProgram, ProgramCall
from tpu_compile.runtime.pjrt import OutOfMemoryError
from tpu_compile.runtime.targets import parse_target


@dataclass(frozen=True)
class Fit:
    """What a function needs of a chip's memory, be it too much."""

    memory: MemoryUse
    refused: tuple[OutOfMemoryError, ...]
    """Of the programs that alone need too much."""
    compiled: Compiled | None
    """None where a program was refused."""

    @property
    def fits(self) -> bool:
        """Whether every program was compiled, and what stays between them has room as well."""
        return not self.refused and self.memory.fits


def fit(
    lowered: Lowered, target: str, *, progress: Callable[[LoweredProgram], object] | None = None
) -> Fit:
    """Return what `lowered` needs of the memory of `target`; too much is a result, no error.

    Raises:
        UnknownTargetError, DeviceError, CompilationError: as `Lowered.compile`.
    """
    chosen = parse_target(target)
    lowered = lowered.on(chosen.platform)
    compiler = compiler_for(chosen)
    done: dict[LoweredProgram, CompiledProgram] = {}
    refused: dict[LoweredProgram, OutOfMemoryError] = {}
    for program in lowered.programs:
        if progress is not None:
            progress(program)
        try:
            done[program] = compile_program(program, compiler, lowered.options)
        except OutOfMemoryError as error:
            if error.needed is None:
                raise
            refused[program] = error
    available = compiler.available_bytes()
    if not refused:
        compiled = Compiled(
            chosen, tuple(done.values()), lowered.calls, available, compiler.version
        )
        return Fit(compiled.memory, (), compiled)
    calls = [_call_memory(call, done, refused) for call in lowered.calls]
    code = sum(program.memory.code for program in done.values())
    memory = memory_over_calls(calls, code=code, available=available)
    return Fit(memory, tuple(refused.values()), None)


def _call_memory(
    call: ProgramCall,
    done: Mapping[LoweredProgram, CompiledProgram],
    refused: Mapping[LoweredProgram, OutOfMemoryError],
) -> CallMemory:
    compiled = done.get(call.program)
    if compiled is not None:
        return CallMemory(call, compiled.memory, *compiled.shapes)
    signature = call.program.lowered.signature
    return CallMemory(
        call,
        refused[call.program].needed or 0,
        tuple(_plain(argument.physical) for argument in signature.arguments),
        tuple(_plain(result.physical) for result in signature.results),
    )


def _plain(spec: TensorSpec) -> Shape:
    """Return a shape without tiles: how a refused program would lay it out is not known."""
    bits = 8 * spec.dtype.itemsize
    return Shape(f"u{bits}", spec.shape, tuple(reversed(range(len(spec.shape)))), (), 0)


@dataclass(frozen=True)
class Largest:
    """The largest size that fits."""

    size: int | None
    """None if not even 1 does."""
    is_limit: bool
    """Whether the search ended at its limit, so that a larger size may fit as well."""
    tried: Mapping[int, Fit]


def largest_size(
    fit_at: Callable[[int], Fit], known: Mapping[int, Fit], *, limit: int = 65536
) -> Largest:
    """Return the largest size that fits; the next one was seen not to.

    Memory grows almost linearly with a batch, so each guess is where the line through two known
    sizes meets the chip's memory.

    Args:
        fit_at: compiles at a size.
        known: sizes that were compiled before.
        limit: where to stop if everything fits; of no meaning once a size was seen not to.
    """
    tried = dict(known)
    streak = 0  # guesses in a row that moved the same end: positive for the lower one
    while True:
        fitting = [size for size, one in tried.items() if one.fits]
        failing = [size for size, one in tried.items() if not one.fits]
        low, high = max(fitting, default=0), min(failing, default=limit + 1)
        if high - low <= 1 or (low >= limit and not failing):
            return Largest(low or None, not failing, tried)
        guess = _line_meets_limit(tried, low, high)
        # The line is a little off, always to the same side: ever larger steps find the other.
        guess += (2 ** abs(streak) - 1) * (1 if streak > 0 else -1)
        size = min(max(guess, low + 1), high - 1)
        tried[size] = fit_at(size)
        side = 1 if tried[size].fits else -1
        streak = streak + side if streak * side > 0 else side


def _line_meets_limit(tried: Mapping[int, Fit], low: int, high: int) -> int:
    """Return the size at which memory runs out if it grows by a line between two known sizes.

    Between the ends of the interval where both are known, else through the two largest known.
    """
    known = sorted(size for size in tried if size <= high)
    if len(known) < 2:
        return 2 * low if low else high // 2
    first, second = (low, high) if low in tried and high in tried else known[-2:]
    available = tried[first].memory.available
    slope = (tried[second].memory.peak - tried[first].memory.peak) / (second - first)
    if available is None or slope <= 0:
        return (low + high) // 2 if high in tried else 2 * low
    return int(first + (available - tried[first].memory.peak) / slope)
