"""Optimized HLO as XLA prints it, read far enough to say what costs what.

Only the text is stable across plugins: libtpu hands out modules of no other form that jaxlib can
walk. Read are shapes with their tiled layouts, what an instruction calls, where it comes from, and
the cycles that the TPU compiler estimates for it.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

_BITS = {"pred": 8, "token": 0, "opaque": 0}
_SHAPE = re.compile(r"(?P<type>[a-z]+\d*\w*)\[(?P<dims>[\d,<=]*)\](?:\{(?P<layout>[^}]*)\})?")
_INSTRUCTION = re.compile(r"^\s+(?P<root>ROOT )?%?(?P<name>[\w.\-]+) = (?P<rest>.+)$")
_COMPUTATION = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.\-]+) \(.*\) -> .+ \{$")
_OPCODE = re.compile(r"(?P<opcode>[a-z][\w\-]*)\(")
_OPERAND = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(r"\b(calls|body|condition|to_apply)=%?([\w.\-]+)")
_BRANCHES = re.compile(
    r"\b(?:branch_computations=\{([^}]*)\}|(?:true|false)_computation=%?([\w.\-]+))"
)
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_OP_NAME = re.compile(r'\bop_name="((?:[^"\\]|\\.)*)"')
_SOURCE = re.compile(r'\bsource_file="((?:[^"\\]|\\.)*)" source_line=(\d+)')
_FRAME_ID = re.compile(r"\bstack_frame_id=(\d+)")
# The tables at the head of a module, to which a `stack_frame_id` leads.
_FILE_NAME = re.compile(r'^(\d+) "((?:[^"\\]|\\.)*)"$')
_FILE_LOCATION = re.compile(r"^(\d+) \{file_name_id=(\d+) .*?\bline=(\d+)")
_STACK_FRAME = re.compile(r"^(\d+) \{file_location_id=(\d+)")


@dataclass(frozen=True)
class Shape:
    """An array's type, and how it lies in memory."""

    type: str
    dims: tuple[int, ...]
    minor_to_major: tuple[int, ...]
    tiles: tuple[tuple[int, ...], ...]
    """The first tile is of the most minor dims; further ones are within it."""
    space: int
    """0 is the chip's main memory (HBM); others are on the core."""

    @property
    def bytes(self) -> int:
        """Bytes of the elements."""
        return math.prod(self.dims) * _bits(self.type) // 8

    @property
    def padded_bytes(self) -> int:
        """Bytes in memory: the most minor dims are filled up to whole tiles."""
        if not self.tiles:
            return self.bytes
        sizes = [self.dims[dim] for dim in self.minor_to_major]
        for place, tile in enumerate(reversed(self.tiles[0])):
            if place < len(sizes):
                sizes[place] = -(-sizes[place] // tile) * tile
        return math.prod(sizes) * _bits(self.type) // 8

    def __str__(self) -> str:
        return f"{self.type}[{','.join(map(str, self.dims))}]"


def _bits(kind: str) -> int:
    if kind in _BITS:
        return _BITS[kind]
    found = re.search(r"\d+", kind)
    return int(found[0]) if found else 0


def shapes_in(text: str) -> Iterator[Shape]:
    """Yield every array shape in `text`, in order."""
    for found in _SHAPE.finditer(text):
        yield _shape(found["type"], found["dims"], found["layout"] or "")


@functools.lru_cache(maxsize=8192)
def _shape(kind: str, dims: str, layout: str) -> Shape:
    sizes = tuple(int(size.removeprefix("<=")) for size in dims.split(",") if size)
    order, _, rest = layout.partition(":")
    minor = tuple(int(dim) for dim in order.split(",") if dim)
    tiles = tuple(
        tuple(map(int, tile.split(",")))
        for group in re.findall(r"T((?:\([\d,]+\))+)", rest)
        for tile in re.findall(r"\(([\d,]+)\)", group)
    )
    space = re.search(r"S\((\d+)\)", rest)
    return Shape(kind, sizes, minor, tiles, int(space[1]) if space else 0)


@dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str
    opcode: str
    type: str
    """The result's type as it is printed; a tuple's in parentheses."""
    operands: tuple[str, ...]
    calls: tuple[tuple[str, str], ...]
    """(`"calls"`, `"body"`, `"condition"`, `"to_apply"` or `"branch"`, computation)."""
    op_name: str
    """Module path and ATen op, as the importer placed them; empty where XLA lost them."""
    source: str
    """`file:line` of the user's program; empty where it is not known."""
    cycles: int | None
    """What the TPU compiler estimates for one run; None where it says nothing."""
    trips: int | None
    """How often a loop runs, where that is known."""

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The arrays of the result."""
        return tuple(shapes_in(self.type))


@dataclass(frozen=True)
class Module:
    """The computations of a module, by name."""

    entry: str
    computations: dict[str, tuple[Instruction, ...]]

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        """What the entry computation runs, in the order of the schedule."""
        return self.computations[self.entry]

    def cycles(self, instruction: Instruction) -> int:
        """Return the estimated cycles of one run, with those of what it calls.

        A loop counts as often as it runs, once where that is not known; of branches the longest
        counts. An instruction without an estimate counts nothing by itself.
        """
        total = instruction.cycles or 0
        if instruction.opcode == "fusion":
            return total
        branches = [self._total(name) for kind, name in instruction.calls if kind == "branch"]
        total += max(branches, default=0)
        inner = sum(
            self._total(name)
            for kind, name in instruction.calls
            if kind in ("body", "condition")
            or (kind == "to_apply" and instruction.opcode == "call")
        )
        return total + inner * (instruction.trips or 1)

    def _total(self, computation: str) -> int:
        return sum(map(self.cycles, self.computations.get(computation, ())))

    @property
    def estimated_cycles(self) -> int:
        """The sum over the entry computation: a relative cost, no time."""
        return self._total(self.entry)


@dataclass(frozen=True)
class TileWaste:
    """What the tiles of the main memory hold beside data, over the arrays of a schedule."""

    useful: int
    """Bytes of the elements."""
    padded: int
    """Bytes with the tiles filled up."""
    worst: tuple[tuple[Shape, int], ...]
    """The shapes that waste most, each with the bytes that all its arrays waste."""

    @property
    def share(self) -> float:
        """The part of the bytes that is no data, from 0 to 1."""
        return 1 - self.useful / self.padded if self.padded else 0.0


# They give no array of their own.
_VIEWS = frozenset({"bitcast", "get-tuple-element", "tuple", "while", "conditional", "constant"})


def tile_waste(module: Module, *, most: int = 5) -> TileWaste:
    """Return how much of the arrays in main memory, arguments included, fills up tiles.

    A head size of 64, say, is stored as 128 where it is the most minor dim.
    """
    useful = padded = 0
    by_shape: dict[Shape, int] = {}
    for instruction in module.instructions:
        if instruction.opcode in _VIEWS or instruction.opcode.endswith(("-done", "-update")):
            continue
        for shape in instruction.shapes:
            if shape.space == 0:
                useful += shape.bytes
                padded += shape.padded_bytes
                by_shape[shape] = by_shape.get(shape, 0) + shape.padded_bytes - shape.bytes
    worst = sorted(by_shape.items(), key=lambda item: item[1], reverse=True)[:most]
    return TileWaste(useful, padded, tuple(item for item in worst if item[1]))


def parse(text: str) -> Module:
    """Return the module that `text` prints.

    Raises:
        ValueError: the text has no entry computation.
    """
    computations: dict[str, tuple[Instruction, ...]] = {}
    entry = ""
    name = ""
    lines: list[Instruction] = []
    frames = _frames(text)
    for line in text.splitlines():
        header = _COMPUTATION.match(line)
        if header is not None:
            name, lines = header["name"], []
            if header["entry"]:
                entry = name
        elif line.startswith("}"):
            computations[name] = tuple(lines)
        else:
            instruction = _INSTRUCTION.match(line)
            if instruction is not None:
                lines.append(_instruction(instruction["name"], instruction["rest"], frames))
    if not entry:
        raise ValueError("the text is no HLO module: it has no entry computation")
    return Module(entry, computations)


def entry_types(text: str) -> tuple[str, str]:
    """Return the types of the entry computation's arguments and results, with their layouts."""
    _, mark, layout = text.partition("entry_computation_layout={")
    if not mark:
        return "", ""
    end = _matching(layout, 0)
    results = layout[end:].removeprefix("->")
    stop = _matching(results, 0) if results.startswith("(") else results.find("}, ")
    return layout[:end], results[:stop]


def _frames(text: str) -> dict[str, str]:
    """Return `file:line` by stack frame: the innermost place of each."""
    files: dict[str, str] = {}
    places: dict[str, str] = {}
    frames: dict[str, str] = {}
    table = ""
    for line in text.splitlines():
        if line in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
            table = line
        elif table == "FileNames" and (found := _FILE_NAME.match(line)):
            files[found[1]] = _unescaped(found[2])
        elif table == "FileLocations" and (found := _FILE_LOCATION.match(line)):
            places[found[1]] = f"{files[found[2]]}:{found[3]}"
        elif table == "StackFrames" and (found := _STACK_FRAME.match(line)):
            frames[found[1]] = places[found[2]]
        elif line.startswith(("%", "ENTRY ")):
            break
    return frames


@functools.lru_cache(maxsize=8192)
def _unescaped(text: str) -> str:
    """Return what XLA printed with C's escapes: quotes, backslashes, bytes of UTF-8 in octal."""
    if "\\" not in text:
        return text
    return text.encode().decode("unicode_escape").encode("latin-1").decode("utf-8", "replace")


def _source(attributes: str, frames: dict[str, str]) -> str:
    found = _SOURCE.search(attributes)
    if found is not None:
        return f"{_unescaped(found[1])}:{found[2]}"
    frame = _FRAME_ID.search(attributes)
    return frames.get(frame[1], "") if frame is not None else ""


def _instruction(name: str, rest: str, frames: dict[str, str]) -> Instruction:
    end = _end_of_type(rest)
    kind, rest = rest[:end], rest[end:]
    opcode = _OPCODE.search(rest)
    start = opcode.end() - 1 if opcode else 0
    stop = _matching(rest, start) if opcode else 0
    attributes = rest[stop:]
    branches = [
        ("branch", branch.strip().lstrip("%"))
        for several, one in _BRANCHES.findall(attributes)
        for branch in (several.split(",") if several else [one])
    ]
    op_name = _OP_NAME.search(attributes)
    cycles = _CYCLES.search(attributes)
    trips = _TRIPS.search(attributes)
    return Instruction(
        name,
        opcode["opcode"] if opcode else "",
        kind,
        tuple(_OPERAND.findall(rest[start:stop])),
        (*_CALLED.findall(attributes), *branches),
        _unescaped(op_name[1]) if op_name else "",
        _source(attributes, frames),
        int(cycles[1]) if cycles else None,
        int(trips[1]) if trips else None,
    )


def _end_of_type(text: str) -> int:
    if text.startswith("("):
        return _matching(text, 0)
    return text.find(" ")


def _matching(text: str, start: int) -> int:
    """Return the place after the parenthesis that closes the one at `start`."""
    depth = 0
    for place in range(start, len(text)):
        if text[place] == "(":
            depth += 1
        elif text[place] == ")":
            depth -= 1
            if depth == 0:
                return place + 1
    return len(text)
