"""Runs one case in this process and writes its measurements; `benchmarks.runner` starts it.

python -m benchmarks.worker SUITE/CASE OUTPUT.json [--quick] [--rounds N]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import warnings
from pathlib import Path

from benchmarks.registry import Settings, select
from benchmarks.results import Measured
from benchmarks.suites import SUITES


def main() -> None:
    """Run the case that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.worker")
    parser.add_argument("case")
    parser.add_argument("output", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int)
    arguments = parser.parse_args()
    logging.getLogger("torch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    ((_, case),) = select(SUITES, [arguments.case])
    found = case.measure(Settings(quick=arguments.quick, rounds=arguments.rounds))
    parts = [found] if isinstance(found, Measured) else found
    arguments.output.write_text(json.dumps([dataclasses.asdict(part) for part in parts]))


if __name__ == "__main__":
    main()
