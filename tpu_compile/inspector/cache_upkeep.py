"""`cache gc|export|import`: what changes the persistent cache, or copies it."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tpu_compile.inspector.exits import ExitCode
from tpu_compile.inspector.output import age, note, print_json, size
from tpu_compile.runtime.archive import Report, export_programs, import_programs
from tpu_compile.runtime.stored_programs import stored_programs
from tpu_compile.runtime.stores import ProgramStore

_NAME_LENGTH = 12
_NO_GOOD = ("damaged", "under another key", "refused")


@dataclass(frozen=True)
class Removal:
    """A file to remove, and why."""

    name: str
    size: int
    reason: str


def removals(
    store: ProgramStore, *, max_size: int | None, older_than: float | None, now: float
) -> list[Removal]:
    """Return what a collection removes: damaged files, leftovers, and the least recently used.

    Files of another version of tpu_compile are kept or go by their age and size, like ours.
    """
    found = [Removal(item.name, item.size, "leftover") for item in store.leftovers()]
    total = 0
    for program in stored_programs(store):
        reason: str | None = None
        if program.state in _NO_GOOD:
            reason = program.state
        elif older_than is not None and now - program.used > older_than:
            reason = f"used {age(now - program.used)}"
        else:
            # The last used come first: once they fill the size, all that follow go.
            total += program.size
            if max_size is not None and total > max_size:
                reason = "over the size"
        if reason is not None:
            found.append(Removal(program.name, program.size, reason))
    return found


def collect(store: ProgramStore, arguments: argparse.Namespace) -> int:
    """Remove what the rules on the command line say."""
    found = removals(
        store,
        max_size=arguments.max_size,
        older_than=arguments.older_than,
        now=time.time(),
    )
    if not arguments.dry_run:
        store.remove([removal.name for removal in found])
    freed = sum(removal.size for removal in found)
    if arguments.json:
        print_json(
            {
                "folder": store.location,
                "dry_run": arguments.dry_run,
                "freed": freed,
                "removed": [
                    {"file": removal.name, "size": removal.size, "reason": removal.reason}
                    for removal in found
                ],
            }
        )
        return ExitCode.OK
    for removal in found:
        print(f"{removal.name[:_NAME_LENGTH]}  {size(removal.size)}  {removal.reason}")
    verb = "would be removed" if arguments.dry_run else "removed"
    print(f"{len(found)} files {verb}, {size(freed)}")
    return ExitCode.OK


def export_file(store: ProgramStore, target: Path, keys: Sequence[str], as_json: bool) -> int:
    """Write programs to one file."""
    report = export_programs(store, target, keys)
    _tell(report, f"written to {target}", as_json)
    return ExitCode.OK


def import_file(store: ProgramStore, source: Path, as_json: bool) -> int:
    """Store the programs of one file; what is no good in it is told, and the exit code is 1."""
    report = import_programs(source, store)
    _tell(report, f"stored in {store.location}", as_json)
    return ExitCode.FOUND if report.passed_over else ExitCode.OK


def _tell(report: Report, what: str, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "programs": report.done,
                "size": report.size,
                "present": report.present,
                "passed_over": report.passed_over,
                "reasons": [{"file": name, "reason": reason} for name, reason in report.reasons],
            }
        )
        return
    for name, reason in report.reasons:
        note(f"passed over {name!r}: {reason}")
    more = report.passed_over - len(report.reasons)
    if more:
        note(f"passed over {more} more")
    present = f", {report.present} were there already" if report.present else ""
    print(f"{len(report.done)} programs, {size(report.size)} {what}{present}")
