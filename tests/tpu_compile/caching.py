"""What the tests of the persistent cache's folder share."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch

import tpu_compile
from tests.tpu_compile.comparing import compiled


def name(number: int) -> str:
    """Return the name of a program's file."""
    return f"{number:064x}.xla"


def age(path: Path, seconds: float) -> None:
    """Make a file as old as that."""
    then = time.time() - seconds
    os.utime(path, (then, then))


def run(location: Path | str, factor: float = 3.5, **options: Any) -> tuple[int, int]:
    """Compile a small function, check its result, and return compiles and disk hits."""
    tpu_compile.reset()
    result = compiled(lambda x: x * factor, cache_dir=str(location), **options)(torch.ones(2))
    assert torch.equal(result, torch.full((2,), factor))
    stats = tpu_compile.stats()
    return stats.xla_compiles, stats.disk_hits
