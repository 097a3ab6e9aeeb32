"""How much of a chip's memory one call of a function takes, program by program.

Between programs stays what later ones read: parameters, optimizer state, what the forward saved for
the backward. Sizes are those of the arrays as the compiler lays them out, tiles filled up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpu_compile.ahead.hlo_text import Shape
from tpu_compile.ahead.lowered import ProgramCall
from tpu_compile.ahead.recording import Tensor

if TYPE_CHECKING:
    from tpu_compile.ahead.compiled import ProgramMemory


@dataclass(frozen=True)
class StepMemory:
    """Bytes in the chip's memory while one program runs."""

    program: str
    others: int
    """Held for other programs: parameters and state that this one does not take, saved tensors."""
    arguments: int
    outputs: int
    """Without those that take the place of donated arguments."""
    temporaries: int
    code: int
    """Of all programs: they stay loaded."""
    refused: int = 0
    """What a program needs that the compiler refused for it: all of its own in one number."""

    @property
    def total(self) -> int:
        """All of it."""
        own = self.arguments + self.outputs + self.temporaries + self.refused
        return self.others + own + self.code


@dataclass(frozen=True)
class MemoryUse:
    """What one call takes of the chip's memory, in bytes."""

    steps: tuple[StepMemory, ...]
    """One a run of a program, in order."""
    state: int
    """What stays from call to call: the arrays that come from outside, parameters among them."""
    available: int | None
    """What programs may use of the chip's memory; None where nothing limits them."""

    @property
    def peak(self) -> int:
        """The most that is needed at a time."""
        return max((step.total for step in self.steps), default=0)

    @property
    def excess(self) -> int:
        """By how much that is too much; 0 if it fits."""
        return 0 if self.available is None else max(self.peak - self.available, 0)

    @property
    def fits(self) -> bool:
        """Whether the chip has the memory."""
        return self.excess == 0


@dataclass(frozen=True)
class CallMemory:
    """A run of a program, what its compiler says, and how its arrays lie."""

    call: ProgramCall
    memory: ProgramMemory | int
    """The number of bytes alone, of a program that the compiler refused for it."""
    arguments: tuple[Shape, ...]
    results: tuple[Shape, ...]


def memory_over_calls(
    calls: Sequence[CallMemory], *, code: int, available: int | None
) -> MemoryUse:
    """Return the memory of each run: its own, and what is held for others meanwhile.

    A tensor that a program made is held until its last reader ran; one that nobody reads is the
    caller's and stays. What comes from outside is there from the start and stays, too. Of tensors
    that share a storage the largest counts, once.
    """
    sizes: dict[int, int] = {}
    made: dict[int, int] = {}
    last: dict[int, int] = {}
    for number, one in enumerate(calls):
        for tensor, shape in _pairs(one.call.inputs, one.arguments):
            sizes[tensor.memory] = max(sizes.get(tensor.memory, 0), shape.padded_bytes)
            last[tensor.memory] = number
        for tensor, shape in _pairs(one.call.outputs, one.results):
            sizes[tensor.memory] = max(sizes.get(tensor.memory, 0), shape.padded_bytes)
            if tensor.memory not in last:
                made.setdefault(tensor.memory, number)
    outside = sizes.keys() - made.keys()
    steps = []
    for number, one in enumerate(calls):
        own = {t.memory for t in (*one.call.inputs, *one.call.outputs) if t is not None}
        held = {
            memory
            for memory in sizes.keys() - own
            if memory in outside
            or (made[memory] < number and last.get(memory, len(calls)) > number)
        }
        title, others, memory = (
            one.call.program.title,
            sum(sizes[number] for number in held),
            one.memory,
        )
        if isinstance(memory, int):
            steps.append(StepMemory(title, others, 0, 0, 0, code, memory))
            continue
        steps.append(
            StepMemory(
                title,
                others,
                memory.arguments,
                memory.outputs - memory.aliased,
                memory.temporaries,
                code,
            )
        )
    return MemoryUse(tuple(steps), sum(sizes[memory] for memory in outside), available)


def _pairs(tensors: Sequence[Tensor | None], shapes: Sequence[Shape]) -> list[tuple[Any, Shape]]:
    """Return tensors with their shapes; further arguments (a random key, sizes) are dropped."""
    return [(t, shape) for t, shape in zip(tensors, shapes, strict=False) if t is not None]
