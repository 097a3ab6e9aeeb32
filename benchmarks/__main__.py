"""Times this project beside eager, Inductor, `jax.jit` and torch-xla2 in one run.

python -m benchmarks                      every suite
python -m benchmarks overhead --quick     one suite, small, to see that it works
python -m benchmarks --json FILE          also write the figures as JSON
"""

from __future__ import annotations

import argparse
import logging
import warnings
from pathlib import Path

import torch

from benchmarks.harness import Result, table, to_json, versions
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
    logging.getLogger("torch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    print("; ".join(f"{name} {value}" for name, value in versions().items()))
    results: list[Result] = []
    for name in arguments.suites or SUITES:
        torch._dynamo.reset()
        fresh = SUITES[name](quick=arguments.quick)
        print(table(fresh), flush=True)
        results += fresh
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(to_json(results) + "\n")


if __name__ == "__main__":
    main()
