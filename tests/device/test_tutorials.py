"""The scripts of `examples/tutorials/`: the same losses on the device as on the CPU."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[2] / "examples" / "tutorials").glob("*.py"))
NUMBER = re.compile(r"\b(?:loss|accuracy) (\d+\.\d+)")


def numbers(script: Path, device: str) -> list[float]:
    done = subprocess.run(
        [sys.executable, str(script), device], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [float(number) for number in NUMBER.findall(done.stdout)]


@pytest.mark.examples
@pytest.mark.timeout(600)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_losses_are_those_of_the_cpu(script: Path) -> None:
    expected, found = numbers(script, "cpu"), numbers(script, "tpu")
    assert len(expected) >= 3
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-4)
