"""Live bytes over the schedule of a program: each array from its definition to its last use.

An upper bound: the compiler writes some results in the place of an operand, which the text of a
module does not say, except for donated arguments.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tpu_compile.ahead.hlo_text import Instruction, Shape
from tpu_compile.inspector.html.facts import LiveBuffer, Liveness

# They name arrays of their operands. A loop works in the place of what it starts from.
ALIASES = frozenset(
    {"bitcast", "get-tuple-element", "tuple", "while", "optimization-barrier", "add-dependency"}
)
MOST_POINTS = 2000
LARGEST = 12

_DONATED = re.compile(r"\{(\d*)[\d, ]*\}: \(\d+, ")


@dataclass
class _Buffer:
    instruction: Instruction
    shape: Shape
    bytes: int
    first: int
    last: int
    role: str = "temporary"


def donated_outputs(hlo: str) -> frozenset[int]:
    """Return the indices of the results that take the place of an argument."""
    header, _, _ = hlo.partition("\n")
    _, mark, aliases = header.partition("input_output_alias={ ")
    if not mark:
        return frozenset()
    aliases, _, _ = aliases.partition(" }, ")
    return frozenset(int(found or 0) for found in _DONATED.findall(aliases))


def liveness(
    program: int, schedule: Sequence[Instruction], donated: frozenset[int] = frozenset()
) -> Liveness:
    """Return how many bytes of main memory are live at each instruction of `schedule`.

    Args:
        program: which one it is, to be noted.
        schedule: the instructions of the entry computation, the root last.
        donated: see `donated_outputs`.
    """
    buffers = _buffers(schedule, donated)
    changes = [0] * (len(schedule) + 1)
    for buffer in buffers:
        changes[buffer.first] += buffer.bytes
        changes[buffer.last + 1] -= buffer.bytes
    live, now = [], 0
    for change in changes[:-1]:
        now += change
        live.append(now)
    peak = max(range(len(live)), key=live.__getitem__, default=0)
    at_peak = [b for b in buffers if b.first <= peak <= b.last and b.bytes]
    at_peak.sort(key=lambda buffer: buffer.bytes, reverse=True)
    return Liveness(
        program,
        len(schedule),
        _thinned(live),
        peak,
        live[peak] if live else 0,
        tuple(
            LiveBuffer(
                buffer.instruction.name,
                str(buffer.shape),
                buffer.bytes,
                buffer.role,
            )
            for buffer in at_peak[:LARGEST]
        ),
    )


def _buffers(schedule: Sequence[Instruction], donated: frozenset[int]) -> list[_Buffer]:
    end = len(schedule) - 1
    buffers: list[_Buffer] = []
    held: dict[str, tuple[_Buffer, ...]] = {}
    for index, instruction in enumerate(schedule):
        operands = [buffer for name in instruction.operands for buffer in held.get(name, ())]
        for buffer in operands:
            buffer.last = max(buffer.last, index)
        shapes = instruction.shapes
        opcode = instruction.opcode
        if opcode == "get-tuple-element":
            # The text's index is not read; an element has the very shape that it has in the tuple.
            own = tuple(buffer for buffer in operands if buffer.shape == shapes[0])
        elif opcode in ALIASES or opcode.endswith(("-done", "-update")):
            own = tuple(operands)
        else:
            is_start = opcode.endswith("-start")
            made = [
                _Buffer(instruction, shape, shape.padded_bytes, index, index)
                for shape in (shapes[:1] if is_start else shapes)
                if shape.space == 0
            ]
            if opcode == "parameter":
                for buffer in made:
                    buffer.first, buffer.last, buffer.role = 0, end, "argument"
            buffers += made
            # Until it is done, a copy needs its source as well.
            own = (*made, *operands) if is_start else tuple(made)
        held[instruction.name] = own
    if schedule:
        root = schedule[-1]
        results = root.operands if root.opcode == "tuple" else (root.name,)
        for number, name in enumerate(results):
            for buffer in held.get(name, ()):
                if buffer.role == "argument":
                    continue
                buffer.last, buffer.role = end, "output"
                if number in donated:
                    buffer.bytes = 0
    return buffers


def _thinned(live: Sequence[int]) -> tuple[int, ...]:
    """Return at most `MOST_POINTS` numbers: of each stretch the largest."""
    stretch = -(-len(live) // MOST_POINTS) or 1
    return tuple(max(live[start : start + stretch]) for start in range(0, len(live), stretch))
