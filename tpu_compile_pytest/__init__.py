"""What pytest loads at every start: names and options, and `tpu_compile` once a test asks for it.

A package of its own, because importing anything of `tpu_compile` imports torch, which takes seconds
that a project which has us installed but does not test with us must not pay.
`tpu_compile.pytest_plugin` does the work.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tpu_compile.pytest_plugin import LiveStats

_CHECKS = "tpu_compile_checks"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of budgets."""
    group = parser.getgroup("tpu_compile", "tpu_compile: budgets of XLA compiles")
    group.addoption(
        "--compile-budget",
        metavar="FILE",
        help="fail tests that compile more programs than FILE says, function by function",
    )
    group.addoption(
        "--update-compile-budget",
        action="store_true",
        help="write what the tests compile into the file of --compile-budget",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker; start the budget if one is asked for."""
    config.addinivalue_line(
        "markers", "max_compiles(n): fail if the test compiles more than n XLA programs"
    )
    if config.getoption("compile_budget") is not None or config.getoption("update_compile_budget"):
        from tpu_compile.pytest_plugin import Budget

        config.pluginmanager.register(Budget(config), "tpu_compile_budget")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start the checks if one of the tests that will run needs them."""
    manager = session.config.pluginmanager
    if not manager.has_plugin(_CHECKS) and any(map(_is_checked, session.items)):
        from tpu_compile.pytest_plugin import Checks

        manager.register(Checks(), _CHECKS)


def _is_checked(item: pytest.Item) -> bool:
    return item.get_closest_marker("max_compiles") is not None or "compile_stats" in getattr(
        item, "fixturenames", ()
    )


@pytest.fixture
def compile_stats() -> Iterator[LiveStats]:
    """The counters of `tpu_compile.stats()`, counted from the start of the test."""
    from tpu_compile.pytest_plugin import watched

    with watched() as stats:
        yield stats
