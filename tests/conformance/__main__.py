"""Runs any part of PyTorch's test databases through the backend.

python -m tests.conformance --op 'linalg.*' --kind forward --dtype float32
python -m tests.conformance --all                       every kind and dtype, every sample
python -m tests.conformance --kind device --dtype int64 eager calls on the device "tpu"
python -m tests.conformance --all --shard 1/4           the second quarter of it
"""

from __future__ import annotations

import argparse
import os
import sys
from fnmatch import fnmatchcase
from pathlib import Path

from tests.conformance.cases import KINDS, Case, all_cases
from tests.conformance.declared import surprises
from tests.conformance.pool import Result, run_cases, serve
from tests.conformance.report import fallback_table, padding_table, table


def main() -> int:
    """Run, print the table and what surprises; exit code 1 if anything does."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.conformance",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--op", nargs="+", default=["*"], help="entry names; * and ? match")
    parser.add_argument("--kind", nargs="+", choices=KINDS, help="default: forward and backward")
    parser.add_argument("--dtype", nargs="+", help="default: float32")
    parser.add_argument("--samples", type=int, default=4, help="of each case (default 4)")
    parser.add_argument("--all", action="store_true", help="every kind, dtype and sample")
    parser.add_argument("--shard", default="0/1", help="K/N: the K-th (from 0) of N parts")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--timeout", type=float, default=300, help="seconds a case may take")
    parser.add_argument("--results", type=Path, help="file to go on with; default: none is kept")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        serve()
        return 0
    cases = selected(arguments)
    if not cases:
        parser.error("no case matches")
    path = arguments.results or Path("build", "conformance", f"{os.getpid()}.jsonl")
    print(f"{len(cases)} cases; results go to {path}", flush=True)
    results = run_cases(
        cases,
        most=None if arguments.all else arguments.samples,
        jobs=arguments.jobs,
        seconds=arguments.timeout,
        path=path,
        progress=_print_failures,
    )
    print("\n" + table(results))
    for extra in (padding_table(results), fallback_table(results)):
        if extra:
            print("\n" + extra)
    found = list(surprises(results))
    print(f"\n{len(found)} surprises")
    return 1 if found else 0


def selected(arguments: argparse.Namespace) -> list[Case]:
    """Return the cases that the command line asks for, this shard's share of them."""
    kinds = arguments.kind or (list(KINDS) if arguments.all else ["forward", "backward"])
    dtypes = arguments.dtype or ([] if arguments.all else ["float32"])
    cases = [
        case
        for case in all_cases()
        if case.kind in kinds
        and (not dtypes or case.dtype in dtypes)
        and any(fnmatchcase(case.name, pattern) for pattern in arguments.op)
    ]
    shard, _, shards = arguments.shard.partition("/")
    return cases[int(shard) :: int(shards)]


def _print_failures(result: Result) -> None:
    for index, why in result.failures.items():
        print(f"{' '.join(result.case)} [{index}]: {why}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
