"""Runs cases one after the other, each in a process of its own with a time limit.

A process of its own, since torch-xla2 changes torch for everyone else, and since a case that
crashes or hangs is a row with its reason while the others go on.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.fresh import why_it_ended
from benchmarks.registry import Case, Settings, Suite
from benchmarks.results import Row, row_from


def run_case(suite: Suite, case: Case, settings: Settings) -> list[Row]:
    """Return the rows of a case: its measurements, or one row that says why there are none."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "measured.json"
        command = [sys.executable, "-m", "benchmarks.worker", f"{suite.name}/{case.name}"]
        command += [str(output), *(["--quick"] if settings.quick else [])]
        if settings.rounds is not None:
            command += ["--rounds", str(settings.rounds)]
        failure = _failure_of(command, case.limit, Path(folder) / "errors")
        if failure:
            return [Row(suite.name, case.name, case.title, failure=failure)]
        names = {"suite": suite.name, "case": case.name, "title": case.title, "failure": ""}
        return [row_from({**names, "measured": part}) for part in json.loads(output.read_text())]


def _failure_of(command: list[str], limit: float, errors: Path) -> str:
    """Run a command, and return why it failed, or ""."""
    # A file, not a pipe: a compiler's worker that outlives its parent would hold a pipe open.
    with errors.open("w") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=sink, start_new_session=True)
        try:
            process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            return f"took longer than {limit:g} s"
        finally:
            _end_group(process)
    return why_it_ended(process.returncode, errors.read_text()) if process.returncode else ""


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and what it started; it leads a session of its own."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        # Everyone has ended by themselves.
        return
    finally:
        process.wait()
