"""Measures this project beside eager, Inductor, `jax.jit`, torch-xla2 and PyTorch/XLA.

python -m benchmarks                        every suite: hours
python -m benchmarks models                 one suite
python -m benchmarks models/bert-forward    one case
python -m benchmarks --quick                everything small: shows that it works, not how fast
python -m benchmarks --list                 the suites and cases

The exit code is 1 if a case failed, or if this project has no figure or a wrong result in one.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from pathlib import Path

from benchmarks import history
from benchmarks.machine import commit, versions
from benchmarks.registry import Settings, UnknownNameError, select
from benchmarks.reporting.html.page import make_page
from benchmarks.reporting.text import text_of
from benchmarks.results import OURS, Row, Run, to_json
from benchmarks.runner import run_case
from benchmarks.suites import SUITES


def main() -> int:
    """Run what the command line names, print it, and write what it asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="SUITE[/CASE]", help=", ".join(SUITES))
    parser.add_argument("--list", action="store_true", help="print the cases and run none")
    parser.add_argument("--quick", action="store_true", help="small sizes and few rounds")
    parser.add_argument("--rounds", type=_positive, metavar="N", help="rounds of every case")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parser.add_argument("--history", type=Path, metavar="FILE", help="append them as one line")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with plots")
    arguments = parser.parse_args()
    try:
        chosen = select(SUITES, arguments.names)
    except UnknownNameError as error:
        parser.error(str(error))
    if arguments.list:
        for suite, case in chosen:
            print(f"{suite.name + '/' + case.name:40} {case.title}")
        return 0
    settings = Settings(quick=arguments.quick, rounds=arguments.rounds)
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    run = Run(date, commit(), settings.quick, versions(), ())
    print("; ".join(f"{name} {value}" for name, value in run.versions.items()), flush=True)
    for suite, case in chosen:
        rows = run_case(suite, case, settings)
        print("\n".join(map(text_of, rows)), flush=True)
        run = Run(run.date, run.commit, run.quick, run.versions, (*run.rows, *rows))
        if arguments.json is not None:
            # After each case: whatever ends a run of hours leaves the figures so far.
            _write(arguments.json, to_json(run))
    past = []
    if arguments.history is not None:
        history.append(arguments.history, run)
        past = history.read(arguments.history)
    if arguments.html is not None:
        _write(arguments.html, make_page(run, history.trends(past, run)))
    return 1 if any(_is_broken(row) for row in run.rows) else 0


def _positive(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError("at least 1 round")
    return int(text)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _is_broken(row: Row) -> bool:
    return bool(row.failure) or OURS in row.gaps()


if __name__ == "__main__":
    sys.exit(main())
