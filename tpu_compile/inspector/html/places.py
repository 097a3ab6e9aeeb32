"""Where instructions come from in the model, even those that XLA gives no place."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tpu_compile.ahead.hlo_text import Instruction

# XLA joins the names of instructions that it makes one of by `;`. The first op counts; a module's
# name may hold such characters, too.
_OP_NAME = re.compile(r"(?:(?P<path>.*?)/)??(?P<op>\w+\.[\w.]+)(?:;|$)", re.DOTALL)

COMPILER = "(compiler)"
"""The module of what the compiler put in by itself, for no op that could be found."""


@dataclass(frozen=True)
class Place:
    """A place in the model; `op_name` is as XLA has it, empty where nothing is known."""

    op_name: str = ""
    line: str = ""

    @property
    def module(self) -> str:
        """The path of the module, empty for the model itself."""
        return self._split()[0] if self.op_name else COMPILER

    @property
    def op(self) -> str:
        """The ATen op."""
        return self._split()[1]

    def _split(self) -> tuple[str, str]:
        found = _OP_NAME.match(self.op_name)
        if found is not None:
            return found["path"] or "", found["op"]
        path, _, op = self.op_name.rpartition("/")
        return path, op


def places_in(
    schedule: Sequence[Instruction], computations: Mapping[str, Sequence[Instruction]]
) -> dict[str, Place]:
    """Return the place of each instruction of a computation.

    Without one of its own, a fusion has the place of most of what it holds, a copy that of what it
    copies. What is left, such as arguments and what prepares them, is for its first reader.
    """
    places: dict[str, Place] = {}
    for instruction in schedule:
        places[instruction.name] = _own(instruction, computations) or next(
            (
                places[name]
                for name in instruction.operands
                if name in places and places[name].op_name
            ),
            Place(),
        )
    unplaced = {name for name, place in places.items() if not place.op_name}
    for instruction in reversed(schedule):
        reader = places[instruction.name]
        for name in instruction.operands:
            if name in unplaced and reader.op_name:
                places[name] = reader
    return places


def _own(
    instruction: Instruction, computations: Mapping[str, Sequence[Instruction]]
) -> Place | None:
    if instruction.op_name:
        return Place(instruction.op_name, instruction.source)
    if instruction.opcode != "fusion":
        return None
    inner = Counter(
        Place(one.op_name, one.source)
        for _, name in instruction.calls
        for one in computations.get(name, ())
        if one.op_name
    )
    return inner.most_common(1)[0][0] if inner else None
