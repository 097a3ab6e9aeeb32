"""What the page shows, as data. Bytes and cycles count every run of a program in one call."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Totals:
    """Sums over one call of the model; None where the target has no such figure."""

    flops: float
    bytes_accessed: float
    """XLA's count of what the fusions read and write."""
    cycles: int | None
    """The TPU compiler's estimate: a relative cost, no time."""
    peak_bytes: int
    available_bytes: int | None
    peak_share: float | None
    """The largest share of the chip's peak that the memory traffic allows, from 0 to 1."""
    bound: str | None
    ops: int
    """Nodes of the functional ATen graphs."""
    runs: int


@dataclass(frozen=True)
class Chip:
    """The peaks of one device, on which a program runs."""

    product: str
    peak_flops: float
    """Of bfloat16 products, a second."""
    bandwidth: float
    """Of HBM, in bytes a second."""


@dataclass(frozen=True)
class Program:
    """One program, and what one run of it costs."""

    title: str
    where: str
    runs: int
    flops: float
    bytes_accessed: float
    cycles: int | None
    lowering_seconds: float
    compile_seconds: float
    arguments: int
    outputs: int
    aliased: int
    temporaries: int
    code: int


@dataclass(frozen=True)
class Run:
    """The memory of one run of a program, in bytes."""

    program: int
    """Index among the programs."""
    others: int
    arguments: int
    outputs: int
    temporaries: int
    code: int


@dataclass(frozen=True)
class OpCost:
    """What an ATen op of a module became."""

    op: str
    kind: str
    """`"product"`, `"reduction"`, `"elementwise"`, `"movement"` or `"other"`."""
    line: str
    ops: int
    """Nodes of the graphs."""
    instructions: int
    """Scheduled HLO instructions; 0 where others took it in."""
    cycles: int
    memory_bytes: int
    """Bytes of the arrays in HBM that the instructions read and write, tiles filled up."""


@dataclass(frozen=True)
class ModuleCost:
    """A module with those in it; figures are sums over all of them."""

    name: str
    path: str
    ops: int
    instructions: int
    cycles: int
    memory_bytes: int
    own: tuple[OpCost, ...]
    modules: tuple[ModuleCost, ...]


@dataclass(frozen=True)
class Instruction:
    """One scheduled HLO instruction."""

    program: int
    name: str
    opcode: str
    module: str
    op: str
    line: str
    shape: str
    runs: int
    """How often it runs in one call; 0 in the cheaper branches of a conditional."""
    cycles: int | None
    """Of one run."""
    bytes: int
    """Of the elements of its result; 0 where it has no array of its own."""
    padded_bytes: int
    memory_bytes: int
    """As in `OpCost`, of one run."""


@dataclass(frozen=True)
class LiveBuffer:
    """An array that is live where the most memory is."""

    name: str
    shape: str
    bytes: int
    role: str
    """`"argument"`, `"output"` or `"temporary"`."""
    op: str = ""
    """What makes it, with the path of the module; of an argument, what reads it first."""
    line: str = ""


@dataclass(frozen=True)
class Liveness:
    """Live bytes over the schedule of the program that takes the most memory."""

    program: int
    instructions: int
    """Length of the schedule."""
    live: tuple[int, ...]
    """Bytes; where the schedule is longer than this, the most of a stretch of it."""
    peak_at: int
    """Index in the schedule."""
    peak_bytes: int
    largest: tuple[LiveBuffer, ...]


@dataclass(frozen=True)
class Fallback:
    """An op that runs in eager PyTorch."""

    op: str
    where: str
    why: str


@dataclass(frozen=True)
class Report:
    """Everything that the page shows."""

    model: str
    target: str
    training: str | None
    versions: tuple[tuple[str, str], ...]
    totals: Totals
    chip: Chip | None
    programs: tuple[Program, ...]
    runs: tuple[Run, ...]
    root: ModuleCost
    liveness: Liveness
    capture_seconds: float
    """Dynamo and AOTAutograd, all graphs together."""
    fallbacks: tuple[Fallback, ...]
    graph_breaks: tuple[str, ...]
    instructions: tuple[Instruction, ...]
