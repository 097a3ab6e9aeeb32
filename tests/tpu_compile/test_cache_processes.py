"""Processes that share a cache folder and are killed at random: nothing wrong, nothing left."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent


def outcome(folder: Path, *options: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.tpu_compile.cache_workers", str(folder), *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def check(found: dict[str, Any]) -> None:
    assert found["failed"] == found["errors"] == []
    assert found["kills_within_a_write"] > 0
    assert "wrong" not in found["origins"]
    assert found["origins"]["compiled"] > 0
    assert found["origins"]["disk"] > 0
    assert found["bytes"] <= found["bound"]
    assert found["drafts_at_the_end"] == 0
    assert len(found["states"]) > 2
    assert set(found["states"]) == {"intact"}


def test_processes_that_are_killed(tmp_path: Path) -> None:
    found = outcome(tmp_path / "cache", "--processes", "5", "--seconds", "6")
    check(found)
    assert found["kills"] > 5


@pytest.mark.full
@pytest.mark.timeout(900)
def test_64_processes_that_are_killed(tmp_path: Path) -> None:
    found = outcome(
        tmp_path / "cache",
        *("--processes", "64", "--seconds", "120", "--programs", "12", "--size", "600000"),
    )
    check(found)
    assert found["started"] > 64
