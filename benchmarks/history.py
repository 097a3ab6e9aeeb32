"""Past runs, one JSON line each, and what became of the ratios over them."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.results import FORMAT, Run, from_data


def append(path: Path, run: Run) -> None:
    """Add a run to the file, which need not exist."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps({"format": FORMAT, **dataclasses.asdict(run)}, separators=(",", ":"))
    with path.open("a") as file:
        file.write(line + "\n")


def read(path: Path) -> list[Run]:
    """Return the runs of the file, the oldest first."""
    lines = path.read_text().splitlines()
    return [
        from_data(json.loads(line), f"line {number} of {path}")
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]


@dataclass(frozen=True)
class Trend:
    """Our time over a rival's in one suite, the geometric mean over its cases, by run."""

    suite: str
    rival: str
    cases: int
    points: tuple[tuple[str, float], ...]
    """Commit or date, and the mean."""


def trends(runs: Sequence[Run], latest: Run) -> list[Trend]:
    """Return a trend for each suite and rival of `latest` that two comparable runs have.

    Comparable are full runs on the same machine, and in them the cases that all of them have: a
    mean over other cases would move without anything having become faster.
    """
    machine = latest.versions.get("machine")
    alike = [run for run in runs if not run.quick and run.versions.get("machine") == machine]
    if not latest.quick and latest not in alike:
        alike.append(latest)
    found = []
    for suite, rows in latest.suites().items():
        for rival in sorted({name for row in rows for name in row.verdicts()}):
            by_run = [(run, _ratios(run, suite, rival)) for run in alike]
            having = [(run, ratios) for run, ratios in by_run if ratios]
            if len(having) < 2:
                continue
            common = set.intersection(*(set(ratios) for _, ratios in having))
            if common:
                points = tuple(
                    (run.commit or run.date, _mean([ratios[case] for case in sorted(common)]))
                    for run, ratios in having
                )
                found.append(Trend(suite, rival, len(common), points))
    return found


def _ratios(run: Run, suite: str, rival: str) -> dict[str, float]:
    return {
        row.label: row.measured.ratios[rival].median
        for row in run.rows
        if row.suite == suite and rival in row.measured.ratios
    }


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
