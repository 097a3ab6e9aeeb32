"""Every test starts from fresh counters, Dynamo caches and warnings."""

from __future__ import annotations

import pytest
import torch

import tpu_compile


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--full`, which runs the tests marked `full` as well."""
    parser.addoption("--full", action="store_true", help="run the tests marked `full` as well")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip the tests marked `full` unless asked for."""
    if config.getoption("--full"):
        return
    skip = pytest.mark.skip(reason="runs with --full")
    for item in items:
        if item.get_closest_marker("full"):
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def fresh_state() -> None:
    """Reset Dynamo, the programs and the counters; seed torch."""
    tpu_compile.reset()
    torch.manual_seed(0)
