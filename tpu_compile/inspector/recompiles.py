"""`recompiles`: run a script or a test, list what was compiled and why, and check the number.

The script runs in this process, which nothing was compiled in: torch is imported once, an exception
keeps its frames, a debugger works, and each compile is heard as it happens. Programs that the
script's own child processes compile are not seen, nor those of threads that outlive its main one.
Persistent caches are off meanwhile, because what they hold would not be compiled, and so not be
counted.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tpu_compile import budgets
from tpu_compile.inspector.exits import ExitCode, InspectorError
from tpu_compile.inspector.output import note, print_json, styled
from tpu_compile.loading import PROGRAMS
from tpu_compile.statistics import RECORDER, CompileRecord, CompileStats

NAME = "recompiles"
HELP = "run a script or a test, list each compile with its reason, check their number"
EXAMPLES = (
    "tpu-compile-inspect recompiles train.py --at-most 4",
    "tpu-compile-inspect recompiles train.py --budget compile_budget.json --update-budget",
    "tpu-compile-inspect recompiles train.py --budget compile_budget.json -- --epochs 1",
    "tpu-compile-inspect recompiles tests/test_model.py::test_step --at-most 2 --json",
)


@dataclass(frozen=True)
class Run:
    """What a script did to the compiler."""

    stats: CompileStats
    graph_breaks: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("script", metavar="SCRIPT", help="a Python file, or FILE.py::TEST")
    parser.add_argument(
        "script_arguments",
        metavar="ARGS",
        nargs="*",
        help="arguments of the script; those with dashes come last, after --",
    )
    parser.add_argument("--pytest", action="store_true", help="SCRIPT is for pytest to run")
    parser.add_argument(
        "--at-most", metavar="N", type=_count, help="fail if more programs are compiled"
    )
    parser.add_argument(
        "--budget",
        metavar="FILE",
        type=Path,
        help="fail if a function compiles more than FILE says",
    )
    parser.add_argument(
        "--update-budget", action="store_true", help="write what was compiled into the budget"
    )
    _leave_what_follows_dashes(parser)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 up")
    return int(text)


def _leave_what_follows_dashes(parser: argparse.ArgumentParser) -> None:
    """Have `parser` give the script what follows `--`, wherever the script's name was.

    argparse fills a list of positionals once, so what follows an option would have no place.
    """
    parse = parser.parse_known_args

    def parse_head(args: Any = None, namespace: Any = None) -> Any:
        given = list(args or ())
        cut = given.index("--") if "--" in given else len(given)
        found, unknown = parse(given[:cut], namespace)
        found.script_arguments = [*found.script_arguments, *given[cut + 1 :]]
        return found, unknown

    parser.parse_known_args = parse_head  # type: ignore[method-assign]


def run(arguments: argparse.Namespace) -> int:
    """Run the script, print its compiles, and return whether they are as many as they may be."""
    file, is_test = _located(arguments)
    budget = arguments.budget
    if arguments.update_budget and budget is None:
        raise InspectorError(
            "--update-budget has no file to write", ExitCode.USAGE, ways_out=("--budget FILE",)
        )
    try:
        # A damaged file is told before the script runs, which may take long.
        known = _known_budgets(budget, may_be_missing=arguments.update_budget)
        with _only_results_on_output(arguments.json):
            done = _run_watched(arguments, file, is_test)
        unit = _unit_name(arguments.script, file, budget)
        compared = None
        if arguments.update_budget:
            budgets.write(budget, {**known, unit: budgets.counts(done.stats.records)})
            note(f"wrote the budget of {unit} to {budget}")
        elif budget is not None:
            compared = budgets.compare(known.get(unit, {}), budgets.counts(done.stats.records))
    except budgets.BudgetError as error:
        raise InspectorError(
            error.what, ExitCode.FILE, why=error.why, ways_out=error.ways_out
        ) from error
    problems = _problems(done, arguments.at_most, compared)
    stale = [str(each) for each in compared.stale] if compared else []
    if arguments.json:
        print_json(_as_json(arguments.script, done, problems, stale))
    else:
        _print(done, problems, stale)
    return ExitCode.FOUND if problems else ExitCode.OK


def _located(arguments: argparse.Namespace) -> tuple[Path, bool]:
    """Return the file to run, and whether pytest runs it."""
    name = arguments.script.partition("::")[0]
    is_test = arguments.pytest or "::" in arguments.script
    file = Path(name)
    if not (file.is_file() or (is_test and file.is_dir())):
        raise InspectorError(
            f"There is no script {name}", ExitCode.FILE, ways_out=("a path to a Python file",)
        )
    return file, is_test


def _known_budgets(path: Path | None, *, may_be_missing: bool) -> dict[str, dict[str, int]]:
    if path is None or (may_be_missing and not path.exists()):
        return {}
    return budgets.read(path)


def _unit_name(script: str, file: Path, budget: Path | None) -> str:
    test = script.partition("::")[2]
    name = budgets.unit_name(file, budget) if budget else file.as_posix()
    return f"{name}::{test}" if test else name


# --- running -------------------------------------------------------------------------------------


def _run_watched(arguments: argparse.Namespace, file: Path, is_test: bool) -> Run:
    from torch._dynamo.utils import counters

    import tpu_compile

    # Nothing to do in a process of the command line's own; a caller of `main` may have compiled.
    tpu_compile.reset()
    breaks = sum(counters["graph_break"].values())
    with PROGRAMS.without_folders(), RECORDER.watch() as watch:
        if is_test:
            _run_tests(arguments.script, arguments.script_arguments)
        else:
            _run_script(file, arguments.script_arguments)
        stats = watch.stats()
    # Code that clears Dynamo's counters starts from zero.
    return Run(stats, max(0, sum(counters["graph_break"].values()) - breaks))


def _run_script(file: Path, script_arguments: Sequence[str]) -> None:
    """Run `file` as `python file` would.

    Raises:
        InspectorError: it raised, or left with an exit code that is not 0.
    """
    argv, path, folder = sys.argv, list(sys.path), os.getcwd()
    sys.argv = [str(file), *script_arguments]
    sys.path[0:1] = [str(file.resolve().parent)]
    try:
        runpy.run_path(str(file), run_name="__main__")
    except KeyboardInterrupt:
        raise
    except SystemExit as error:
        if error.code not in (None, 0):
            said = error.code if isinstance(error.code, str) else f"with exit code {error.code}"
            raise _script_error(f"{file} ended: {said}", _line_in(error, file)) from error
    except BaseException as error:
        text = traceback.format_exception_only(error)[-1].strip()
        raise _script_error(f"{file} raised {text}", _line_in(error, file)) from error
    finally:
        sys.argv, sys.path[:] = argv, path
        # What comes next names files from here.
        os.chdir(folder)


def _line_in(error: BaseException, file: Path) -> str | None:
    """Return the innermost line of the script that an error passed through."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    lines = [
        f"{file}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == str(file)
    ]
    return lines[-1] if lines else None


def _script_error(what: str, where: str | None) -> InspectorError:
    return InspectorError(
        what, ExitCode.SCRIPT, where=where, ways_out=("--traceback shows every frame",)
    )


def _run_tests(node: str, options: Sequence[str]) -> None:
    try:
        import pytest
    except ImportError as error:
        raise InspectorError(
            f"{node} is a test, and pytest is not installed",
            ExitCode.SCRIPT,
            ways_out=("pip install pytest",),
        ) from error
    code = pytest.main([node, *options])
    if code == pytest.ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    if code != pytest.ExitCode.OK:
        why = {
            pytest.ExitCode.TESTS_FAILED: "tests failed",
            pytest.ExitCode.NO_TESTS_COLLECTED: "no test has this name",
            pytest.ExitCode.USAGE_ERROR: "pytest refuses its arguments",
        }.get(pytest.ExitCode(code), "pytest itself failed")
        raise InspectorError(f"pytest {node} did not pass", ExitCode.SCRIPT, why=why)


@contextlib.contextmanager
def _only_results_on_output(is_needed: bool) -> Iterator[None]:
    """Send what the script prints to standard error, where standard output is for JSON."""
    if not is_needed:
        yield
        return
    with contextlib.redirect_stdout(sys.stderr):
        yield


# --- results -------------------------------------------------------------------------------------


def _problems(
    done: Run, at_most: int | None, compared: budgets.Comparison | None
) -> list[tuple[str, list[CompileRecord]]]:
    """Return what is wrong, each with the compiles that it is about."""
    records = done.stats.records
    found: list[tuple[str, list[CompileRecord]]] = []
    if at_most is not None and len(records) > at_most:
        found.append((f"{len(records)} programs were compiled, at most {at_most} may be", []))
    for each in compared.over if compared else ():
        found.append((str(each), budgets.records_of(each.name, records)))
    return found


def _print(
    done: Run, problems: Sequence[tuple[str, list[CompileRecord]]], stale: Sequence[str]
) -> None:
    records = done.stats.records
    for number, record in enumerate(records, 1):
        print(f"{number:3}. {_told(record)}")
    seconds = done.stats.compile_seconds
    print(f"{len(records)} programs compiled in {seconds:.1f} s, {done.graph_breaks} graph breaks")
    for text in stale:
        note(f"stale budget: {text}; --update-budget lowers it")
    for text, about in problems:
        print(f"{styled('over:', 'red')} {text}")
        for record in about:
            print(f"     {_told(record)}")


def _told(record: CompileRecord) -> str:
    """Return a record for reading; its file from the current folder, where it is below it."""
    return str(replace(record, where=record.where.removeprefix(os.getcwd() + os.sep)))


def _as_json(
    script: str,
    done: Run,
    problems: Sequence[tuple[str, list[CompileRecord]]],
    stale: Sequence[str],
) -> dict[str, Any]:
    return {
        "script": script,
        "compiles": [asdict(record) for record in done.stats.records],
        "compile_seconds": done.stats.compile_seconds,
        "graph_breaks": done.graph_breaks,
        "over": [text for text, _ in problems],
        "stale": list(stale),
    }
