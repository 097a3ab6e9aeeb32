"""What was measured, as data: figures, ratios, rows, and their JSON form.

Owns no measuring and imports no torch, so that a page can be made from a file anywhere.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FORMAT = "tpu_compile-benchmarks-1"
OURS = "tpu_compile"

RIVALS = ("eager", "inductor", "jax.jit", "torch-xla2", "torch-xla")
"""Whom a ratio can be won or lost against, in the order of the tables.

Any other name in a row, such as the floor of every backend or another mode of ours, is a reference.
"""


@dataclass(frozen=True)
class Figure:
    """The median over rounds, and the quartiles around it."""

    median: float
    low: float
    high: float

    @property
    def spread(self) -> float:
        """The interquartile range."""
        return self.high - self.low

    @classmethod
    def of(cls, samples: Sequence[float]) -> Figure:
        """Return the figure of some samples; a single one has no spread."""
        if len(samples) == 1:
            return cls(samples[0], samples[0], samples[0])
        low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
        return cls(median, low, high)


@dataclass(frozen=True)
class Measured:
    """One piece of work, measured for each competitor that could do it."""

    figures: Mapping[str, Figure] = field(default_factory=dict)
    """In `unit`."""
    ratios: Mapping[str, Figure] = field(default_factory=dict)
    """Ours over each competitor's, taken round by round: below 1 ours takes less."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Why a competitor has no figure."""
    wrong: Mapping[str, str] = field(default_factory=dict)
    """How the result of a competitor differs from eager's; such a one is not timed."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """What else there is to know of the row."""
    unit: str = "seconds"
    """`seconds` or `bytes`."""
    rounds: int = 0
    variant: str = ""
    """Tells apart the rows of one case."""


def measured(
    samples: Mapping[str, Sequence[float]], *, unit: str = "seconds", **more: Any
) -> Measured:
    """Return figures and ratios of samples by competitor; the same round has the same index.

    Raises:
        ValueError: two competitors have different numbers of rounds.
    """
    rounds = {len(values) for values in samples.values()}
    if len(rounds) > 1:
        raise ValueError(f"competitors have {sorted(rounds)} rounds; each needs the same number")
    ratios = {}
    ours = samples.get(OURS, ())
    for name, theirs in samples.items():
        # Zero bytes above the baseline are possible, and nothing is a multiple of them.
        if name != OURS and ours and all(value > 0 for value in theirs):
            pairs = [mine / value for mine, value in zip(ours, theirs, strict=True)]
            ratios[name] = Figure.of(pairs)
    return Measured(
        figures={name: Figure.of(values) for name, values in samples.items()},
        ratios=ratios,
        unit=unit,
        rounds=max(rounds, default=0),
        **more,
    )


@dataclass(frozen=True)
class Row:
    """A measurement and the case it is of, or why there is none."""

    suite: str
    case: str
    title: str
    measured: Measured = field(default_factory=Measured)
    failure: str = ""
    """Why the whole case has no figures: it crashed, or ran out of time."""

    @property
    def label(self) -> str:
        """The case, with the variant where it has some."""
        return f"{self.case}, {self.measured.variant}" if self.measured.variant else self.case

    def verdicts(self) -> dict[str, str]:
        """Return `win`, `loss` or `even` for each rival with a ratio.

        It is even where the quartiles of the ratio lie on both sides of 1.
        """
        return {
            name: verdict(ratio) for name, ratio in self.measured.ratios.items() if name in RIVALS
        }

    def gaps(self) -> dict[str, str]:
        """Return why competitors have no figure, by name; `""` names the whole row."""
        wrong = {name: f"wrong result: {why}" for name, why in self.measured.wrong.items()}
        whole = {"": self.failure} if self.failure else {}
        return {**whole, **wrong, **self.measured.left_out}


def verdict(ratio: Figure) -> str:
    """Return `win`, `loss` or `even` for our time over another's."""
    if ratio.high < 1:
        return "win"
    return "loss" if ratio.low > 1 else "even"


@dataclass(frozen=True)
class Run:
    """All rows of one run of the benchmarks, on one machine."""

    date: str
    """Of the start, in UTC, as ISO 8601."""
    commit: str
    quick: bool
    versions: Mapping[str, str]
    rows: tuple[Row, ...]

    def suites(self) -> dict[str, list[Row]]:
        """Return the rows by suite, in the order of the run."""
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            found.setdefault(row.suite, []).append(row)
        return found


def to_json(run: Run) -> str:
    """Return a run as JSON."""
    return json.dumps({"format": FORMAT, **dataclasses.asdict(run)}, indent=1) + "\n"


def load(path: Path) -> Run:
    """Return the run in a JSON file.

    Raises:
        ValueError: the file is no run of these benchmarks.
    """
    return from_data(json.loads(path.read_text()), str(path))


def from_data(data: Mapping[str, Any], origin: str) -> Run:
    """Return the run that `to_json` wrote; `origin` names the file in errors."""
    if data.get("format") != FORMAT:
        raise ValueError(
            f"{origin} has the format {data.get('format')!r}, not {FORMAT!r}; write it with "
            "`python -m benchmarks --json FILE`"
        )
    rows = tuple(row_from(row) for row in data["rows"])
    return Run(data["date"], data["commit"], data["quick"], data["versions"], rows)


def row_from(data: Mapping[str, Any]) -> Row:
    """Return the row that `dataclasses.asdict` wrote."""
    inner = dict(data["measured"])
    for name in ("figures", "ratios"):
        inner[name] = {key: Figure(**value) for key, value in inner[name].items()}
    return Row(**{**data, "measured": Measured(**inner)})


def quantity(value: float, unit: str) -> str:
    """Return a value with its unit, in a size that reads well.

    >>> quantity(0.00021, "seconds"), quantity(3 * 2**20, "bytes")
    ('210.0 us', '3.0 MiB')
    """
    scale, digits, name = _scale(value, unit)
    return f"{value / scale:.{digits}f} {name}"


def with_spread(figure: Figure, unit: str) -> str:
    """Return the median with half the interquartile range, in the median's unit.

    >>> with_spread(Figure(2.0, 1.75, 2.25), "seconds")
    '2.00 ± 0.25 s'
    """
    scale, digits, name = _scale(figure.median, unit)
    half = figure.spread / 2
    return f"{figure.median / scale:.{digits}f} ± {half / scale:.{digits}f} {name}"


def _scale(value: float, unit: str) -> tuple[float, int, str]:
    """Return what to divide by, the digits after the point, and the name of the unit."""
    if unit == "bytes":
        return (2**10, 0, "KiB") if value < 2**20 else (2**20, 1, "MiB")
    if value < 1e-3:
        return 1e-6, 1, "us"
    return (1e-3, 2, "ms") if value < 1 else (1, 2, "s")
