"""What a suite and a case are, and how they are found by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.results import Measured


@dataclass(frozen=True)
class Settings:
    """How a case is to be run."""

    quick: bool = False
    """Small sizes, few rounds: shows that it works, not how fast."""
    rounds: int | None = None

    def rounds_or(self, usual: int) -> int:
        """Return the rounds that were asked for, else 2 if quick, else `usual`."""
        if self.rounds is not None:
            return self.rounds
        return 2 if self.quick else usual


@dataclass(frozen=True)
class Case:
    """One piece of work; it runs in a process of its own."""

    name: str
    title: str
    measure: Callable[[Settings], Measured | Sequence[Measured]]
    limit: float = 900.0
    """Seconds until the process is killed."""


@dataclass(frozen=True)
class Suite:
    """Cases that answer one question."""

    name: str
    cases: tuple[Case, ...]


class UnknownNameError(ValueError):
    """A name that is neither a suite nor a case."""


def by_name(suites: Iterable[Suite]) -> dict[str, Suite]:
    """Return suites by name.

    Raises:
        ValueError: a name is taken twice, or has a slash, which parts a suite from its case.
    """
    found: dict[str, Suite] = {}
    for suite in suites:
        names = [case.name for case in suite.cases]
        twice = {name for name in names if names.count(name) > 1}
        if suite.name in found or twice:
            raise ValueError(f"{suite.name}: the name {min(twice, default='')!r} is taken twice")
        if any("/" in name for name in [suite.name, *names]):
            raise ValueError(f"{suite.name}: a name has a slash")
        found[suite.name] = suite
    return found


def select(suites: Mapping[str, Suite], names: Sequence[str]) -> list[tuple[Suite, Case]]:
    """Return the cases that `SUITE` or `SUITE/CASE` name, each once; all if there are no names.

    Raises:
        UnknownNameError: with the nearest names that exist.
    """
    every = {f"{s.name}/{c.name}": (s, c) for s in suites.values() for c in s.cases}
    chosen: dict[str, tuple[Suite, Case]] = {} if names else every
    for name in names:
        fitting = {key: pair for key, pair in every.items() if name in (key, pair[0].name)}
        if not fitting:
            near = difflib.get_close_matches(name, [*suites, *every], n=3) or list(suites)
            raise UnknownNameError(f"no suite or case {name!r}; near: {', '.join(near)}")
        chosen = {**chosen, **fitting}
    return list(chosen.values())
