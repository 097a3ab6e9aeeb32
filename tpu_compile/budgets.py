"""How many programs a script or a test may compile, kept in a file beside the code.

The file is JSON: for each script or test, for each function, a number of programs. Its names are
the same on every machine: paths are relative, functions have no lines. It says nothing of sizes, so
a function may compile for other sizes as long as there are not more of them.
"""

from __future__ import annotations

import collections
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpu_compile.errors import TpuCompileError
from tpu_compile.statistics import CompileRecord

FORMAT = "tpu_compile-budget-1"
"""Changes whenever the meaning of the file does."""

Counts = Mapping[str, int]
"""From the name of a function, and what of it was compiled, to a number of programs."""

# Dynamo calls what follows a graph break by the line of the break, which any edit moves.
_RESUMED = re.compile(r"\b(?:torch_dynamo_resume_in_)+(.+?)(?:_at_\d+)+\b")


class BudgetError(TpuCompileError):
    """A budget file is missing, damaged, or cannot be written."""


@dataclass(frozen=True)
class Difference:
    """A function that compiled more or fewer programs than its budget says."""

    name: str
    allowed: int | None
    """None if the budget does not have the function."""
    found: int

    def __str__(self) -> str:
        allowed = "is not in the budget" if self.allowed is None else f"may compile {self.allowed}"
        return f"{self.name} {allowed}, compiled {self.found}"


@dataclass(frozen=True)
class Comparison:
    """What was compiled beside what may be."""

    over: tuple[Difference, ...]
    """These fail a check."""
    stale: tuple[Difference, ...]
    """These compiled less than the budget grants; a smaller one would catch more."""


def counts(records: Iterable[CompileRecord]) -> dict[str, int]:
    """Return the number of programs by function."""
    found = collections.Counter(_RESUMED.sub(r"\1", record.function) for record in records)
    return dict(sorted(found.items()))


def records_of(name: str, records: Iterable[CompileRecord]) -> list[CompileRecord]:
    """Return the records that `counts` counts under `name`."""
    return [record for record in records if _RESUMED.sub(r"\1", record.function) == name]


def compare(allowed: Counts, found: Counts) -> Comparison:
    """Return where `found` differs from `allowed`.

    >>> compare({"step forward": 1}, {"step forward": 3}).over[0].found
    3
    """
    differences = [
        Difference(name, allowed.get(name), found.get(name, 0))
        for name in sorted({*allowed, *found})
    ]
    return Comparison(
        over=tuple(each for each in differences if each.found > (each.allowed or 0)),
        stale=tuple(each for each in differences if each.found < (each.allowed or 0)),
    )


def unit_name(path: Path, budget: Path) -> str:
    """Return what a budget file calls a script: its path from the file's folder."""
    return Path(os.path.relpath(path.resolve(), budget.resolve().parent)).as_posix()


def read(path: Path) -> dict[str, dict[str, int]]:
    """Return the budgets of a file by script or test.

    Raises:
        BudgetError: there is no such file, or it is no budget file of this format.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BudgetError(
            f"There is no budget file {path}", ways_out=("write one by updating the budget",)
        ) from error
    except OSError as error:
        raise BudgetError(f"Cannot read the budget file {path}", why=_reason(error)) from error
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"it is not JSON ({error})") from error
    if not isinstance(content, dict) or "format" not in content:
        raise _damaged(path, 'it has no "format"')
    if content["format"] != FORMAT:
        raise _damaged(path, f"its format is {content['format']!r}, not {FORMAT!r}")
    units = content.get("budgets")
    if not isinstance(units, dict):
        raise _damaged(path, '"budgets" is no object')
    for unit, allowed in units.items():
        if not isinstance(allowed, dict) or not all(map(_is_count, allowed.values())):
            raise _damaged(path, f"{unit!r} is no object of whole numbers from 0 up")
    return units


def write(path: Path, budgets: Mapping[str, Counts]) -> None:
    """Store budgets in one step: a reader sees the old file or the new one.

    What compiles nothing is left out. Lines are sorted, one for each function.

    Raises:
        BudgetError: the file cannot be written.
    """
    kept = {unit: dict(sorted(budgets[unit].items())) for unit in sorted(budgets) if budgets[unit]}
    text = json.dumps({"format": FORMAT, "budgets": kept}, indent=2) + "\n"
    # A link stays one.
    target = path.resolve()
    # Not `tempfile`: its files are for their owner alone, and this one belongs to a repository.
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        try:
            draft.write_text(text, encoding="utf-8")
            os.replace(draft, target)
        except BaseException:
            if draft.exists():
                draft.unlink()
            raise
    except OSError as error:
        raise BudgetError(
            f"Cannot write the budget file {path}",
            why=_reason(error),
            ways_out=("another path",),
        ) from error


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _damaged(path: Path, why: str) -> BudgetError:
    return BudgetError(
        f"{path} is no budget file that can be used",
        why=why,
        ways_out=("restore it", "delete it and update the budget"),
    )


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
