"""From compiled programs to what the page shows."""

from __future__ import annotations

import dataclasses
import operator
import platform
from collections import Counter
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import torch

from lowering.source import source_line
from tpu_compile._version import __version__
from tpu_compile.ahead import hlo_text
from tpu_compile.ahead.compiled import Compiled, CompiledProgram
from tpu_compile.ahead.lowered import Lowered
from tpu_compile.inspector.html import facts
from tpu_compile.inspector.html.liveness import ALIASES, donated_outputs, liveness
from tpu_compile.inspector.html.modules import ModuleTree
from tpu_compile.inspector.html.places import Place, places_in

# They move nothing by themselves: what they call, or what reads them, does.
_WITHOUT_TRAFFIC = ALIASES | {"conditional", "call", "parameter", "constant", "after-all"}


def gather(
    lowered: Lowered, compiled: Compiled, *, model: str, training: str | None
) -> facts.Report:
    """Return what the page shows of a compiled model.

    Args:
        lowered: what was compiled.
        compiled: its programs.
        model: how the user named it.
        training: the optimizer of a training step; None for a plain call.
    """
    runs = Counter(call.program for call in compiled.calls)
    has_cycles = compiled.cost.estimated_cycles > 0
    tree = ModuleTree()
    instructions = []
    for index, program in enumerate(compiled.programs):
        count = runs[program.lowered]
        for node in program.lowered.graph_module.graph.nodes:
            if node.op == "call_function" and node.target is not operator.getitem:
                line = source_line(node)
                where = short_line(str(line)) if line.file is not None else ""
                tree.add_op(line.module_path, str(node.target), where)
        for instruction in _instructions(index, program.hlo_module, count):
            tree.add_instruction(instruction)
            instructions.append(instruction)
    root = tree.root()
    largest = max(
        range(len(compiled.programs)),
        key=lambda index: compiled.programs[index].memory.total,
        default=0,
    )
    return facts.Report(
        model=model,
        target=str(compiled.target),
        training=training,
        versions=_versions(compiled),
        totals=_totals(compiled, root.ops),
        chip=_chip(compiled),
        programs=tuple(
            _program(program, runs[program.lowered], has_cycles) for program in compiled.programs
        ),
        runs=_runs(compiled),
        root=root,
        liveness=_liveness(compiled.programs, largest),
        capture_seconds=lowered.seconds - sum(one.seconds for one in lowered.programs),
        fallbacks=tuple(
            facts.Fallback(one.op, short_line(one.where), one.why) for one in lowered.fallbacks
        ),
        graph_breaks=lowered.graph_breaks,
        instructions=tuple(instructions),
    )


def short_line(where: str) -> str:
    """Return `file:line` with the file seen from the current folder, or from where it is installed.

    >>> short_line("/usr/lib/python3/site-packages/torch/optim/adam.py:414")
    'torch/optim/adam.py:414'
    """
    installed = where.rpartition("/site-packages/")[2]
    return installed.removeprefix(f"{Path.cwd()}/")


# --- totals --------------------------------------------------------------------------------------


def _versions(compiled: Compiled) -> tuple[tuple[str, str], ...]:
    return (
        ("tpu_compile", __version__),
        ("torch", torch.__version__),
        ("jaxlib", metadata.version("jaxlib")),
        ("python", platform.python_version()),
        ("compiler", " ".join(compiled.compiler.split())),
    )


def _totals(compiled: Compiled, ops: int) -> facts.Totals:
    roofline = compiled.roofline
    cost = compiled.cost
    return facts.Totals(
        flops=cost.flops,
        bytes_accessed=cost.bytes_accessed,
        cycles=cost.estimated_cycles or None,
        peak_bytes=compiled.memory.peak,
        available_bytes=compiled.available,
        peak_share=None if roofline is None else roofline.peak_share,
        bound=None if roofline is None else roofline.bound,
        ops=ops,
        runs=len(compiled.calls),
    )


def _chip(compiled: Compiled) -> facts.Chip | None:
    chip = compiled.target.chip
    if chip is None:
        return None
    return facts.Chip(chip.product, chip.device_peak_flops, chip.device_bandwidth)


def _program(program: CompiledProgram, runs: int, has_cycles: bool) -> facts.Program:
    memory = program.memory
    return facts.Program(
        title=program.lowered.title,
        where=short_line(program.lowered.where),
        runs=runs,
        flops=program.cost.flops,
        bytes_accessed=program.cost.bytes_accessed,
        cycles=program.cost.estimated_cycles if has_cycles else None,
        lowering_seconds=program.lowered.seconds,
        compile_seconds=program.seconds,
        arguments=memory.arguments,
        outputs=memory.outputs,
        aliased=memory.aliased,
        temporaries=memory.temporaries,
        code=memory.code,
    )


def _runs(compiled: Compiled) -> tuple[facts.Run, ...]:
    numbers = {program.lowered: index for index, program in enumerate(compiled.programs)}
    return tuple(
        facts.Run(
            numbers[call.program],
            step.others,
            step.arguments,
            step.outputs,
            step.temporaries,
            step.code,
        )
        for call, step in zip(compiled.calls, compiled.memory.steps, strict=True)
    )


def _liveness(programs: tuple[CompiledProgram, ...], largest: int) -> facts.Liveness:
    if not programs:
        return liveness(0, ())
    program = programs[largest]
    module = program.hlo_module
    places = places_in(module.instructions, module.computations)
    found = liveness(largest, module.instructions, donated_outputs(program.hlo))
    buffers = [
        dataclasses.replace(
            one, op=places[one.name].op_name, line=short_line(places[one.name].line)
        )
        for one in found.largest
    ]
    return dataclasses.replace(found, largest=tuple(buffers))


# --- instructions --------------------------------------------------------------------------------


def _instructions(program: int, module: hlo_text.Module, runs: int) -> Iterator[facts.Instruction]:
    """Yield what a program schedules, with the place in the model that it comes from."""
    traffic: dict[str, int] = {}
    for instruction, place, times in _scheduled(module, module.entry, runs):
        is_view = instruction.opcode in _WITHOUT_TRAFFIC or instruction.opcode.endswith(
            ("-done", "-update")
        )
        is_start = instruction.opcode.endswith("-start")
        shapes = instruction.shapes
        written = sum(shape.padded_bytes for shape in shapes if shape.space == 0)
        # A copy that starts gives its source among its results.
        read = 0 if is_start else sum(traffic.get(name, 0) for name in instruction.operands)
        traffic[instruction.name] = written
        own = shapes[:1] if is_start else shapes
        yield facts.Instruction(
            program,
            instruction.name,
            instruction.opcode,
            place.module,
            place.op or instruction.opcode,
            short_line(place.line),
            _layout(own),
            times,
            instruction.cycles,
            0 if is_view else sum(shape.bytes for shape in own),
            0 if is_view else sum(shape.padded_bytes for shape in own),
            0 if is_view else read + written,
        )


def _layout(shapes: tuple[hlo_text.Shape, ...]) -> str:
    first = ", ".join(map(str, shapes[:3]))
    return first if len(shapes) <= 3 else f"{first}, {len(shapes) - 3} more"


def _scheduled(
    module: hlo_text.Module, computation: str, runs: int
) -> Iterator[tuple[hlo_text.Instruction, Place, int]]:
    """Yield instructions with how often they run, as `hlo_text.Module.cycles` counts them."""
    schedule = module.computations.get(computation, ())
    places = places_in(schedule, module.computations)
    for instruction in schedule:
        yield instruction, places[instruction.name], runs
        if instruction.opcode == "fusion":
            continue
        inner = runs * (instruction.trips or 1)
        branches = []
        for kind, name in instruction.calls:
            if kind == "branch":
                branches.append(name)
            elif kind in ("body", "condition") or instruction.opcode == "call":
                yield from _scheduled(module, name, inner)
        longest = max(branches, key=lambda name: _cycles(module, name), default=None)
        for name in branches:
            yield from _scheduled(module, name, runs if name == longest else 0)


def _cycles(module: hlo_text.Module, computation: str) -> int:
    return sum(map(module.cycles, module.computations.get(computation, ())))
