"""Who wins what: the counts and lists that both pages show."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.results import RIVALS, Figure, Row, Run

RULE = (
    "A figure is the median over interleaved rounds; a ratio is ours over the competitor's in the "
    "same round, then the median over rounds, with its quartiles in brackets. Below 1 ours takes "
    "less: a win if both quartiles are below 1, a loss if both are above, else even."
)

COMPETITORS = {
    "eager": "PyTorch as it is; in training, AdamW's default implementation.",
    "inductor": "PyTorch's own compiler in its default mode.",
    "jax.jit": "the function that torch-xla2 extracts from the same module, on jax arrays: no "
    "torch tensor is touched at a call. A training step is its gradient and AdamW in one function, "
    "with donated state; writes to buffers, such as running statistics, are not part of it.",
    "torch-xla2": "its own compile of the module, on its tensors.",
    "torch-xla": "PyTorch/XLA's backend of torch.compile, where it is installed.",
    "aot no-op": "Dynamo and AOTAutograd around nothing: the floor of every backend, no rival.",
}
"""Who is measured beside ours, which takes and gives CPU tensors."""


@dataclass(frozen=True)
class Comparison:
    """A row and one of its rivals."""

    row: Row
    rival: str
    ratio: Figure
    verdict: str


@dataclass(frozen=True)
class Score:
    """How one suite ends against one rival."""

    suite: str
    rival: str
    wins: int
    evens: int
    losses: int
    mean: float
    """The geometric mean of the ratios."""


def comparisons(rows: Iterable[Row]) -> list[Comparison]:
    """Return every comparison with a rival, the largest ratio first."""
    found = [
        Comparison(row, name, row.measured.ratios[name], verdict)
        for row in rows
        for name, verdict in row.verdicts().items()
    ]
    return sorted(found, key=lambda one: -one.ratio.median)


def scores(run: Run) -> list[Score]:
    """Return the score of each suite against each rival that took part."""
    found = []
    for suite, rows in run.suites().items():
        for rival in RIVALS:
            those = [one for one in comparisons(rows) if one.rival == rival]
            if those:
                found.append(_score(suite, rival, those))
    return found


def _score(suite: str, rival: str, those: Sequence[Comparison]) -> Score:
    counts = {kind: sum(one.verdict == kind for one in those) for kind in ("win", "even", "loss")}
    logs = [math.log(one.ratio.median) for one in those]
    mean = math.exp(math.fsum(logs) / len(logs))
    return Score(suite, rival, counts["win"], counts["even"], counts["loss"], mean)


def others_of(rows: Iterable[Row]) -> list[str]:
    """Return whom the rows compare with: rivals in their order, then references by name."""
    names = {name for row in rows for name in row.measured.ratios}
    rivals = [name for name in RIVALS if name in names]
    return rivals + sorted(names - set(rivals))


def gaps(rows: Iterable[Row]) -> list[tuple[str, str]]:
    """Return what has no figure and why, each reason once: `who: why`, and the cases it is of."""
    cases: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for name, why in row.gaps().items():
            cases.setdefault((name or "every competitor", why), []).append(row.label)
    return [(f"{name}: {why}", ", ".join(labels)) for (name, why), labels in cases.items()]


def facts(rows: Iterable[Row]) -> list[str]:
    """Return the facts of the rows as lines."""
    return [
        f"{row.label}: " + "; ".join(f"{name} {value}" for name, value in found.items())
        for row in rows
        if (found := row.measured.facts)
    ]


def heading(suite: str) -> str:
    """Return a suite's name as a heading."""
    return suite.replace("-", " ").capitalize()


def ratio_text(ratio: Figure) -> str:
    """Return a ratio with its quartiles.

    >>> ratio_text(Figure(1.5, 1.25, 2.0))
    '1.50 (1.25 to 2.00)'
    """
    return f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
