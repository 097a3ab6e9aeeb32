"""Times this project beside eager, Inductor, `jax.jit` and torch-xla2 in one run.

python -m benchmarks                      every suite
python -m benchmarks overhead-1 --quick   one suite, small, to see that it works
python -m benchmarks --json FILE          also write the figures as JSON

Each suite runs in a process of its own, since torch-xla2 changes torch for everyone else.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

from benchmarks.harness import table, to_json, versions
from benchmarks.suites import SUITES


def main() -> None:
    """Run the suites that the command line names and print their tables."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=", ".join(SUITES))
    parser.add_argument("--quick", action="store_true", help="small sizes and few rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.suites) - SUITES.keys())
    if unknown:
        parser.error(f"unknown suite {unknown[0]!r}; known: {', '.join(SUITES)}")
    names = arguments.suites or list(SUITES)
    if len(names) == 1:
        run_one(names[0], quick=arguments.quick, json_file=arguments.json)
    else:
        run_each(names, quick=arguments.quick, json_file=arguments.json)


def run_one(name: str, *, quick: bool, json_file: Path | None) -> None:
    """Run one suite in this process."""
    logging.getLogger("torch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    results = SUITES[name](quick=quick)
    print(table(results), flush=True)
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(to_json(results) + "\n")


def run_each(names: list[str], *, quick: bool, json_file: Path | None) -> None:
    """Run every suite in a new process and put their figures together."""
    print("; ".join(f"{name} {value}" for name, value in versions().items()), flush=True)
    merged: dict[str, object] = {"versions": versions(), "results": []}
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            part = Path(folder) / f"{name}.json"
            command = [sys.executable, "-m", "benchmarks", name, "--json", str(part)]
            subprocess.run([*command, *(["--quick"] if quick else [])], check=True)
            merged["results"] += json.loads(part.read_text())["results"]  # type: ignore[operator]
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(merged, indent=2) + "\n")


if __name__ == "__main__":
    main()
