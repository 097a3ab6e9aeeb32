"""`report`: one page about a compiled model, to read offline."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tpu_compile.ahead.compiled import compiler_for
from tpu_compile.inspector.exits import ExitCode, InspectorError
from tpu_compile.inspector.html.gather import gather
from tpu_compile.inspector.html.page import make_page
from tpu_compile.inspector.models import add_model_arguments, lower_subject, subject_of
from tpu_compile.inspector.output import print_json, size
from tpu_compile.inspector.progress import CompileProgress
from tpu_compile.runtime.targets import parse_target

NAME = "report"
HELP = "write a page about a compiled model: cost by module, memory, roofline, instructions"
EXAMPLES = (
    "tpu-compile-inspect report hf:bert --dtype bf16 --target v6e --html report.html",
    "tpu-compile-inspect report model.py:Model --input f32[8,128] --train --html report.html",
    "tpu-compile-inspect report model.py:factory --target cpu --html report.html",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_model_arguments(parser)
    parser.add_argument("--target", default="v6e", help="a chip (default v6e), or cpu; see targets")
    parser.add_argument(
        "--html",
        required=True,
        type=Path,
        metavar="REPORT",
        help="the file to write: one page that works offline",
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the page, and say where it is."""
    subject = subject_of(arguments)
    target = parse_target(arguments.target)
    with _replacing(arguments.html) as write:
        # A compiler that is not there is told before the model is captured.
        compiler_for(target)
        lowered = lower_subject(subject, target.platform)
        progress = CompileProgress()
        compiled = lowered.compile(str(target), progress=progress.expect(lowered))
        progress.close()
        report = gather(lowered, compiled, model=subject.spec, training=subject.train)
        page = make_page(report)
        write(page)
    if arguments.json:
        print_json(
            {
                "report": str(arguments.html),
                "target": report.target,
                "totals": dataclasses.asdict(report.totals),
                "programs": [dataclasses.asdict(program) for program in report.programs],
                "fallbacks": len(report.fallbacks),
                "graph_breaks": len(report.graph_breaks),
                "instructions": len(report.instructions),
            }
        )
        return ExitCode.OK
    programs = len(report.programs)
    print(
        f"{arguments.html}: {size(len(page.encode()))}, {subject.spec} on {target}, "
        f"{programs} program{'s' if programs != 1 else ''}, "
        f"{len(report.instructions)} instructions"
    )
    return ExitCode.OK


@contextmanager
def _replacing(path: Path) -> Iterator[Callable[[str], object]]:
    """Open a file beside `path` that takes its place once the block is through.

    So a file that cannot be written is told before the work, and an older one outlives an error.

    Raises:
        InspectorError: it cannot be written.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError(21, "it is a folder")
        partial = path.with_name(f".{path.name}.partial")
        stream = partial.open("w", encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InspectorError(
            f"{path} cannot be written",
            ExitCode.FILE,
            why=getattr(error, "strerror", None) or str(error),
        ) from error
    try:
        with stream:
            yield stream.write
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
