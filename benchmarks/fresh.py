"""Runs a module of `benchmarks.children` in a new process: what is measured there happens once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any


class ChildError(RuntimeError):
    """A child process ended without an answer; the message is its last line."""


def run_fresh(module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Any:
    """Return what the module printed as JSON in its last line.

    Raises:
        ChildError: it failed.
    """
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.children.{module}", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **(environment or {})},
    )
    if done.returncode:
        raise ChildError(why_it_ended(done.returncode, done.stderr))
    return json.loads(done.stdout.splitlines()[-1])


def why_it_ended(code: int, errors: str) -> str:
    """Return why a process failed: its last line of errors, or the signal that killed it."""
    if code == -9:
        return "killed by signal 9, most likely for lack of memory"
    if code < 0:
        return f"killed by signal {-code}"
    lines = [line for line in errors.strip().splitlines() if line.strip()]
    # Traces end with the error; torch adds hints after it.
    raised = [line for line in lines if line.partition(":")[0].endswith(("Error", "Exception"))]
    return (raised or lines or [f"exit code {code}"])[-1].strip()[:160]
