"""Makes pages of results that `python -m benchmarks --json FILE` wrote.

python -m benchmarks.report RESULTS.json                               print the Markdown page
python -m benchmarks.report --write docs/performance.md RESULTS.json   write it
python -m benchmarks.report --check docs/performance.md RESULTS.json   exit with 1 if it is stale
python -m benchmarks.report --html page.html RESULTS.json              write the page with plots

Several files are put together if they come from one machine with one set of versions; of a case
that two of them have, the later file's rows count.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import history
from benchmarks.reporting.markdown import markdown
from benchmarks.results import Row, Run, load
from benchmarks.suites import SUITES


def merged(runs: Sequence[Run]) -> Run:
    """Return the rows of all runs as one run, with the date and commit of the last.

    Raises:
        ValueError: they come from other machines or versions, or a quick one is among them.
    """
    first, *others = runs
    rows: dict[tuple[str, str], list[Row]] = {
        (row.suite, row.case): [] for run in runs for row in run.rows
    }
    for run in runs:
        if dict(run.versions) != dict(first.versions) or run.quick != first.quick:
            raise ValueError(
                "the files are of other machines, versions or settings and cannot be one table: "
                f"{first.date} has {dict(first.versions)}, {run.date} has {dict(run.versions)}"
            )
        own = {(row.suite, row.case) for row in run.rows}
        rows |= {key: [row for row in run.rows if (row.suite, row.case) == key] for key in own}
    last = others[-1] if others else first
    return dataclasses.replace(last, rows=tuple(row for found in rows.values() for row in found))


def known_cases() -> list[str]:
    """Return every case there is, as `SUITE/CASE`."""
    return [f"{suite.name}/{case.name}" for suite in SUITES.values() for case in suite.cases]


def main() -> int:
    """Print, write or check a page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULTS.json")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--write", type=Path, metavar="PAGE", help="write the Markdown page")
    action.add_argument("--check", type=Path, metavar="PAGE", help="fail if the page is stale")
    action.add_argument("--html", type=Path, metavar="PAGE", help="write the page with plots")
    parser.add_argument("--history", type=Path, metavar="FILE", help="for --html: past runs")
    arguments = parser.parse_args()
    try:
        run = merged([load(path) for path in arguments.results])
        if arguments.html is not None:
            # Imported here: it takes its style from the inspector, which imports torch.
            from benchmarks.reporting.html.page import make_page

            past = history.read(arguments.history) if arguments.history else []
            arguments.html.write_text(make_page(run, history.trends(past, run)))
            return 0
        page = markdown(run, [path.as_posix() for path in arguments.results], known_cases())
    except (OSError, ValueError) as error:
        print(f"python -m benchmarks.report: {error}", file=sys.stderr)
        return 2
    if arguments.write is not None:
        arguments.write.write_text(page)
    elif arguments.check is not None:
        if not arguments.check.exists() or arguments.check.read_text() != page:
            print(f"{arguments.check} is stale: run with --write", file=sys.stderr)
            return 1
    else:
        print(page, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
