"""The pytest plugin: the marker `max_compiles`, the fixture `compile_stats`, budgets of compiles.

pytest itself loads `tpu_compile_pytest`, which imports this module once a test needs it. Counts are
those of a test's own call: what its fixtures compile is theirs.

Under a budget each call starts without programs, so that the number does not depend on which
tests ran before in the same process. Programs of single ops of the device `tpu` stay.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import tpu_compile
from tpu_compile import budgets
from tpu_compile.loading import PROGRAMS
from tpu_compile.statistics import RECORDER, CompileRecord, CompileStats, Watch

_PROPERTY = "tpu_compile.compiles"
"""The user property of a report that carries a test's counts, from xdist's workers too."""


class LiveStats:
    """The attributes of `CompileStats`, as they are when they are read, counted for one test."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._watch.stats(), name)

    def __repr__(self) -> str:
        return repr(self._watch.stats())

    def now(self) -> CompileStats:
        """Return the counts up to now, which later ones do not change."""
        return self._watch.stats()

    def restart(self) -> None:
        """Count from now on."""
        self._watch.restart()


@contextlib.contextmanager
def watched() -> Iterator[LiveStats]:
    """Give the counts of the block."""
    with RECORDER.watch() as watch:
        yield LiveStats(watch)


class Checks:
    """Hooks around the tests that have the marker or the fixture."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Start the counts of `compile_stats`; fail a test that compiles more than its marker."""
        stats = getattr(item, "funcargs", {}).get("compile_stats")
        if isinstance(stats, LiveStats):
            stats.restart()
        marker = item.get_closest_marker("max_compiles")
        if marker is None:
            return (yield)
        at_most = _at_most(marker)
        with RECORDER.listen() as records:
            result = yield
        if len(records) > at_most:
            pytest.fail(
                f"{len(records)} programs were compiled, max_compiles allows {at_most}:"
                f"{_listed(records)}",
                pytrace=False,
            )
        return result


def _at_most(marker: pytest.Mark) -> int:
    """Return the number of a marker `max_compiles(n)`; fail the test if it has none."""
    values = [*marker.args, *marker.kwargs.values()]
    value = values[0] if len(values) == 1 and not set(marker.kwargs) - {"n"} else None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        given = [*map(repr, marker.args), *(f"{k}={v!r}" for k, v in marker.kwargs.items())]
        pytest.fail(
            f"max_compiles({', '.join(given)}): it takes one whole number from 0 up, as in "
            "@pytest.mark.max_compiles(2)",
            pytrace=False,
        )
    return value


class Budget:
    """Hooks of `--compile-budget`: count each test, fail it or keep its counts for the file."""

    def __init__(self, config: pytest.Config) -> None:
        given = config.getoption("compile_budget")
        self._update: bool = config.getoption("update_compile_budget")
        if given is None:
            raise pytest.UsageError("--update-compile-budget needs --compile-budget=FILE")
        # Workers of xdist get the options of this process, and may have another folder.
        self._path = Path(config.invocation_params.dir, given)
        config.option.compile_budget = str(self._path)
        self._is_worker = hasattr(config, "workerinput")
        self._allowed: dict[str, dict[str, int]] = {}
        self._found: dict[str, budgets.Counts] = {}
        self._over: list[str] = []
        self._problem: str | None = None
        if not self._update or self._path.exists():
            try:
                self._allowed = budgets.read(self._path)
            except budgets.BudgetError as error:
                raise pytest.UsageError(f"--compile-budget: {error}") from error

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Count what a test's call compiles; fail it if that is over its budget."""
        if "torch._dynamo" in sys.modules:
            tpu_compile.reset()
        # What a persistent cache holds would not be compiled, nor counted.
        with RECORDER.listen() as records, PROGRAMS.without_folders():
            try:
                result = yield
            finally:
                found = budgets.counts(records)
                item.user_properties.append((_PROPERTY, found))
        if not self._update:
            over = budgets.compare(self._allowed.get(item.nodeid, {}), found).over
            if over:
                listed = "".join(
                    f"\n{each}:{_listed(budgets.records_of(each.name, records))}" for each in over
                )
                pytest.fail(f"over the budget of {self._path.name}{listed}", pytrace=False)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the counts of a test; where xdist runs, in the process that started it."""
        if self._is_worker or report.when != "call":
            return
        for name, found in report.user_properties:
            if name == _PROPERTY and isinstance(found, dict):
                self._collect(report.nodeid, found, passed=report.passed)

    def _collect(self, test: str, found: budgets.Counts, *, passed: bool) -> None:
        if passed:
            self._found[test] = found
        if not self._update and budgets.compare(self._allowed.get(test, {}), found).over:
            self._over.append(test)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the file, if it is to be written; tests that did not run keep their entries."""
        if self._is_worker or not self._update:
            return
        try:
            budgets.write(self._path, {**self._allowed, **self._found})
        except budgets.BudgetError as error:
            self._problem = str(error)
            session.exitstatus = pytest.ExitCode.USAGE_ERROR

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what was over, what is stale, or what was written."""
        lines = list(self._summary())
        if lines:
            terminalreporter.section("compile budget")
            for line in lines:
                terminalreporter.line(line)

    def _summary(self) -> Iterator[str]:
        if self._problem is not None:
            yield self._problem
        elif self._update:
            programs = sum(sum(found.values()) for found in self._found.values())
            yield f"wrote {self._path}: {len(self._found)} tests compiled {programs} programs"
        for test in self._over:
            yield f"over: {test}"
        if not self._update:
            for test, found in sorted(self._found.items()):
                for each in budgets.compare(self._allowed.get(test, {}), found).stale:
                    yield f"stale: {test}: {each}"


def _listed(records: Sequence[CompileRecord]) -> str:
    return "".join(f"\n  {number}. {record}" for number, record in enumerate(records, 1))
