"""`dump`: what a model becomes, stage by stage, each op with the line it came from."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tpu_compile.ahead.compiled import Compiled, CompiledProgram, Cost
from tpu_compile.ahead.hlo_text import Instruction
from tpu_compile.ahead.live_memory import MemoryUse
from tpu_compile.ahead.lowered import Lowered, LoweredProgram
from tpu_compile.inspector.exits import ExitCode, InspectorError
from tpu_compile.inspector.graph_ops import graph_ops, matches
from tpu_compile.inspector.models import add_model_arguments, lower_subject, subject_of
from tpu_compile.inspector.output import note, quantity, size, table
from tpu_compile.inspector.progress import CompileProgress

NAME = "dump"
HELP = "print what a model becomes: graphs, StableHLO, optimized HLO, memory, cost"
EXAMPLES = (
    "tpu-compile-inspect dump torch.nn:GELU --input f32[8,128]",
    "tpu-compile-inspect dump model.py:factory --stage tpu-hlo --target v6e --op dot",
    "tpu-compile-inspect dump hf:gpt2 --stage aten --module transformer.h.0",
    "tpu-compile-inspect dump model.py:factory --format json > before.json",
    "tpu-compile-inspect dump model.py:factory --format mlir-bytecode --output folder/",
)
STAGES = ("dynamo", "aten", "stablehlo", "hlo", "tpu-hlo", "memory", "cost")
COMPILED_STAGES = frozenset({"hlo", "tpu-hlo", "memory", "cost"})
FORMAT = 1
"""Of the JSON document; raised whenever a key changes its meaning."""

_LOCATION = re.compile(r'loc\("(?P<name>[^"]*)"(?:\("(?P<file>[^"]*)":(?P<line>\d+):\d+\))?\)$')


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_model_arguments(parser)
    parser.add_argument("--stage", choices=STAGES, default="stablehlo")
    parser.add_argument("--target", default=None, help="a chip, such as v6e (default of tpu-hlo)")
    parser.add_argument(
        "--op", metavar="TEXT", help="only ops whose name has TEXT, or matches it with *"
    )
    parser.add_argument("--module", metavar="PATH", help="only ops of modules whose path has PATH")
    parser.add_argument("--format", choices=("text", "json", "mlir-bytecode"), default="text")
    parser.add_argument(
        "--output", metavar="PATH", help="a file, or a folder (a file for each program)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print or write the stage."""
    if arguments.json:
        arguments.format = "json"
    _check(arguments)
    lowered = lower_subject(subject_of(arguments), _platform(arguments))
    compiled = None
    if arguments.stage in COMPILED_STAGES or arguments.target is not None:
        progress = CompileProgress()
        target = "cpu" if arguments.stage == "hlo" else arguments.target or "v6e"
        compiled = lowered.compile(target, progress=progress.expect(lowered))
        lowered = lowered.on(compiled.target.platform)
        progress.close()
    if arguments.format == "json":
        _write(arguments.output, "dump.json", json.dumps(document(lowered, compiled), indent=2))
    elif arguments.format == "mlir-bytecode":
        for number, program in enumerate(lowered.programs):
            _write(arguments.output, _file_name(number, program, "mlirbc"), program.bytecode())
    else:
        _write_text(arguments, lowered, compiled)
    return ExitCode.OK


def _check(arguments: argparse.Namespace) -> None:
    binary = arguments.format == "mlir-bytecode"
    if binary and arguments.output is None and sys.stdout.isatty():
        raise InspectorError(
            "Bytecode is not for a terminal",
            ExitCode.USAGE,
            ways_out=("--output FOLDER/", "--format text"),
        )
    if binary and arguments.stage != "stablehlo":
        raise InspectorError(
            f"The stage {arguments.stage} has no bytecode",
            ExitCode.USAGE,
            ways_out=("--stage stablehlo",),
        )
    if arguments.stage == "hlo" and arguments.target not in (None, "cpu"):
        raise InspectorError(
            "The stage hlo is that of this machine's CPU",
            ExitCode.USAGE,
            ways_out=(f"--stage tpu-hlo --target {arguments.target}",),
        )


def _platform(arguments: argparse.Namespace) -> str:
    return "cpu" if arguments.stage == "hlo" or arguments.target == "cpu" else "tpu"


# --- text ------------------------------------------------------------------------------------


def _write_text(arguments: argparse.Namespace, lowered: Lowered, compiled: Compiled | None) -> None:
    stage = arguments.stage
    if stage == "memory" and compiled is not None:
        _write(arguments.output, "memory.txt", _memory_text(compiled.memory))
        return
    if stage == "dynamo":
        _warn_of_filters(arguments)
        texts = [str(graph.print_readable(print_output=False)) for graph in lowered.captured]
        names = [f"{number:02d}_dynamo.py" for number in range(len(texts))]
    else:
        by_program = {p.lowered: p for p in compiled.programs} if compiled is not None else {}
        texts = [
            _text_of(arguments, program, by_program.get(program)) for program in lowered.programs
        ]
        suffix = {"aten": "txt", "stablehlo": "mlir", "cost": "txt"}.get(stage, "hlo")
        names = [_file_name(n, program, suffix) for n, program in enumerate(lowered.programs)]
        if arguments.output is None and len(texts) > 1:
            titles = [f"// {program.title} ({program.where})" for program in lowered.programs]
            texts = [f"{title}\n{text}" for title, text in zip(titles, texts, strict=True)]
    for name, text in zip(names, texts, strict=True):
        _write(arguments.output, name, text)
    for fallback in lowered.fallbacks:
        note(f"{fallback.op} ({fallback.where}) falls back to eager PyTorch: {fallback.why}")
    for reason in lowered.graph_breaks:
        note(f"graph break: {reason.splitlines()[0]}")


def _warn_of_filters(arguments: argparse.Namespace) -> None:
    if arguments.op is not None or arguments.module is not None:
        raise InspectorError(
            "Dynamo's graph is printed whole",
            ExitCode.USAGE,
            ways_out=("--stage aten, which --op and --module filter",),
        )


def _text_of(
    arguments: argparse.Namespace, program: LoweredProgram, compiled: CompiledProgram | None
) -> str:
    wanted = arguments.op, arguments.module
    is_filtered = any(filter_ is not None for filter_ in wanted)
    if arguments.stage == "aten":
        ops = graph_ops(program.graph_module)
        return "\n".join(str(op) for op in ops if matches(op.op, op.module, *wanted))
    if arguments.stage == "stablehlo":
        text = program.stablehlo_with_locations
        return "\n".join(_stablehlo_lines(text, *wanted)) if is_filtered else text
    assert compiled is not None  # every other stage is compiled
    if arguments.stage == "cost":
        return _cost_text(compiled, *wanted)
    if not is_filtered:
        return compiled.hlo
    return "\n".join(
        f"%{one.name} = {one.type} {one.opcode}  # {one.op_name} ({one.source})"
        for one in _instructions(compiled, *wanted)
    )


def _stablehlo_lines(text: str, op: str | None, module: str | None) -> Iterator[str]:
    """Yield the lines of StableHLO's text that come from an op and module that pass."""
    for line in text.splitlines():
        found = _LOCATION.search(line)
        if found is not None and " = " in line:
            path, _, name = found["name"].rpartition("/")
            if matches(f"{name} {line.split(' = ')[1].split('(')[0]}", path, op, module):
                yield line.strip()


def _instructions(
    compiled: CompiledProgram, op: str | None, module: str | None
) -> Iterator[Instruction]:
    for one in compiled.hlo_module.instructions:
        path, _, name = one.op_name.rpartition("/")
        if matches(f"{name} {one.opcode}", path, op, module):
            yield one


def _cost_text(compiled: CompiledProgram, op: str | None, module: str | None) -> str:
    cost = compiled.cost
    lines = [
        f"{quantity(cost.flops, 'FLOP')}, {size(cost.bytes_accessed)} accessed, "
        f"{cost.estimated_cycles:,} estimated cycles, compiled in {compiled.seconds:.1f} s"
    ]
    cycles: Counter[tuple[str, str]] = Counter()
    for one in _instructions(compiled, op, module):
        cycles[one.op_name or one.opcode, one.source] += compiled.hlo_module.cycles(one)
    rows = [
        (f"{count:,}", f"{count / max(cost.estimated_cycles, 1):.1%}", name, source)
        for (name, source), count in cycles.most_common(40)
        if count
    ]
    if rows:
        lines += ["", table(("cycles", "share", "op", "line"), rows)]
    return "\n".join(lines)


def _memory_text(memory: MemoryUse) -> str:
    header = ("program", "others", "arguments", "outputs", "temporaries", "code", "total")
    rows = [
        (
            step.program,
            *map(size, (step.others, step.arguments, step.outputs, step.temporaries, step.code)),
            size(step.total),
        )
        for step in memory.steps
    ]
    limit = f" of {size(memory.available)} available" if memory.available is not None else ""
    return (
        f"{table(header, rows)}\n\npeak {size(memory.peak)}{limit}, "
        f"{size(memory.state)} stay from call to call"
    )


# --- JSON ------------------------------------------------------------------------------------


def document(lowered: Lowered, compiled: Compiled | None) -> dict[str, Any]:
    """Return everything that is known, for `--format json` and `diff`."""
    by_program = {p.lowered: p for p in compiled.programs} if compiled is not None else {}
    calls = Counter(call.program for call in lowered.calls)
    programs = []
    for program in lowered.programs:
        one = by_program.get(program)
        programs.append(
            {
                "title": program.title,
                "where": program.where,
                "calls": calls[program],
                "buckets": dict(program.buckets),
                "exact_reason": program.exact_reason,
                "ops": [dataclasses.asdict(op) for op in graph_ops(program.graph_module)],
                "cost": None if one is None else _cost(one.cost),
                "memory": None if one is None else dataclasses.asdict(one.memory),
            }
        )
    return {
        "format": FORMAT,
        "target": None if compiled is None else str(compiled.target),
        "compiler": None if compiled is None else compiled.compiler,
        "programs": programs,
        "fallbacks": [
            {"op": one.op, "where": one.where, "why": one.why} for one in lowered.fallbacks
        ],
        "graph_breaks": list(lowered.graph_breaks),
        "cost": None if compiled is None else _cost(compiled.cost),
        "memory": None if compiled is None else _memory(compiled.memory),
    }


def _cost(cost: Cost) -> dict[str, float]:
    return dataclasses.asdict(cost)


def _memory(memory: MemoryUse) -> dict[str, Any]:
    return {
        "peak": memory.peak,
        "state": memory.state,
        "available": memory.available,
        "steps": [dataclasses.asdict(step) for step in memory.steps],
    }


# --- files -----------------------------------------------------------------------------------


def _file_name(number: int, program: LoweredProgram, suffix: str) -> str:
    title = re.sub(r"[^\w.=-]+", "_", program.title).strip("_")
    return f"{number:02d}_{title}.{suffix}"


def _write(output: str | None, name: str, content: str | bytes) -> None:
    """Write to the screen, to the file `output`, or to `name` in the folder `output`."""
    data = content.encode() if isinstance(content, str) else content
    if output is None:
        if isinstance(content, str):
            print(content)
        else:
            sys.stdout.buffer.write(data)
        return
    path = Path(output)
    if output.endswith("/") or path.is_dir():
        path.mkdir(parents=True, exist_ok=True)
        path = path / name
    elif path in _written:
        raise InspectorError(
            "The model is several programs, and --output is one file",
            ExitCode.USAGE,
            ways_out=(f"--output {output}/",),
        )
    path.write_bytes(data)
    _written.add(path)


# One file takes one program; which were written is told apart within a run of the tool.
_written: set[Path] = set()
