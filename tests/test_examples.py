"""Runs every file of `examples/` as a user would; an example exits with 1 if its claim is false."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.examples
@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path: Path) -> None:
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{path.name} failed\n{done.stdout}\n{done.stderr[-4000:]}"
    assert "XLA compiles" in done.stdout
