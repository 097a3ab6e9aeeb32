"""`diff`: what changed between two dumps: ops of each program, cost, memory."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tpu_compile.inspector.exits import ExitCode, InspectorError
from tpu_compile.inspector.output import print_json, quantity, size, styled, table

NAME = "diff"
HELP = "compare two dumps: ops, cost, memory"
EXAMPLES = (
    "tpu-compile-inspect diff before.json after.json",
    "tpu-compile-inspect diff before/ after/ --tolerance 0.02",
)

FORMAT = 1
HEADER = ("program", "figure", "old", "new", "ratio")
# Units of the figures of cost that have one; those of memory are bytes.
_UNITS = {"flops": "FLOP", "bytes_accessed": "B"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    for name in ("old", "new"):
        parser.add_argument(
            name,
            metavar=name.upper(),
            type=Path,
            help="a file that `dump --format json` wrote, or a folder with such files",
        )
    parser.add_argument(
        "--tolerance",
        type=parse_tolerance,
        default=0.0,
        metavar="SHARE",
        help="ignore changes of cost and memory up to this share, such as 0.02",
    )


def parse_tolerance(text: str) -> float:
    """Return a share from 0 up.

    >>> parse_tolerance("0.02")
    0.02
    """
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no share, such as 0.02")
    return share


@dataclass(frozen=True)
class OpChange:
    """How often an op is in a program, before and after."""

    program: str
    op: str
    old: int
    new: int


@dataclass(frozen=True)
class FigureChange:
    """A figure of cost or memory, before and after; None where a dump has none."""

    program: str
    """Empty for a figure of the whole call."""
    group: str
    """`cost` or `memory`."""
    figure: str
    old: float | None
    new: float | None

    @property
    def ratio(self) -> float | None:
        """New by old; None where that is no number."""
        return self.new / self.old if self.old and self.new is not None else None

    def is_within(self, tolerance: float) -> bool:
        """Whether the change is at most a share `tolerance` of the old figure."""
        if self.old is None or self.new is None:
            return self.old == self.new
        return abs(self.new - self.old) <= tolerance * abs(self.old)


@dataclass(frozen=True)
class Changes:
    """All that differs between two dumps."""

    targets: tuple[str | None, str | None]
    removed: tuple[str, ...]
    """Titles of programs that are gone."""
    added: tuple[str, ...]
    calls: tuple[OpChange, ...]
    """Programs that run more or less often; `op` is empty."""
    ops: tuple[OpChange, ...]
    figures: tuple[FigureChange, ...]

    @property
    def are_none(self) -> bool:
        """Whether the dumps are equal, as far as they are compared."""
        lists = (self.removed, self.added, self.calls, self.ops, self.figures)
        return self.targets[0] == self.targets[1] and not any(lists)


def run(arguments: argparse.Namespace) -> int:
    """Print what differs; with nothing to print, say that the dumps are equal."""
    old, new = read(arguments.old), read(arguments.new)
    found = {
        name: changes(old[name], new[name], arguments.tolerance) for name in old if name in new
    }
    removed, added = sorted(old.keys() - new.keys()), sorted(new.keys() - old.keys())
    is_equal = not removed and not added and all(each.are_none for each in found.values())
    if arguments.json:
        print_json(
            {
                "equal": is_equal,
                "removed": removed,
                "added": added,
                "dumps": {name: _as_json(each) for name, each in found.items()},
            }
        )
        return ExitCode.OK if is_equal else ExitCode.FOUND
    for mark, style, names in (("-", "red", removed), ("+", "green", added)):
        for name in names:
            print(styled(f"{mark} dump {name}", style))
    for name, each in found.items():
        if name and not each.are_none:
            print(styled(name, "bold"))
        _print(each)
    if is_equal:
        print("no difference")
    return ExitCode.OK if is_equal else ExitCode.FOUND


# --- reading -------------------------------------------------------------------------------------


def read(path: Path) -> dict[str, dict[str, Any]]:
    """Return the dumps of a file (under the name "") or of a folder (by file name).

    Raises:
        InspectorError: there is none, or one of them is no dump that this version knows.
    """
    if not path.exists():
        raise InspectorError(f"There is no {path}", ExitCode.FILE)
    if not path.is_dir():
        return {"": _dump(path)}
    files = sorted(path.glob("*.json"))
    if not files:
        raise InspectorError(
            f"{path} holds no dump",
            ExitCode.FILE,
            why="no file in it ends in .json",
            ways_out=("dump --format json",),
        )
    if len(files) == 1:
        return {"": _dump(files[0])}
    return {file.name: _dump(file) for file in files}


def _dump(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _not_a_dump(path, f"it is no JSON: {error}") from error
    if not isinstance(found, dict) or "format" not in found:
        raise _not_a_dump(path, "it has no key 'format'")
    if found["format"] != FORMAT:
        raise _not_a_dump(path, f"its format is {found['format']!r}, and this version reads 1")
    _require(found, {"programs": list}, path, "the dump")
    _require_figures(found, path, "the dump")
    for index, program in enumerate(found["programs"]):
        where = f"programs[{index}]"
        _require(program, {"title": str, "ops": list}, path, where)
        _require_figures(program, path, where)
        for position, op in enumerate(program["ops"]):
            _require(op, {"op": str}, path, f"{where}.ops[{position}]")
    return found


def _require(value: Any, kinds: Mapping[str, type], path: Path, where: str) -> None:
    if not isinstance(value, dict):
        raise _not_a_dump(path, f"{where} is no object")
    for key, kind in kinds.items():
        if key not in value:
            raise _not_a_dump(path, f"{where} has no key {key!r}")
        if not isinstance(value[key], kind):
            raise _not_a_dump(path, f"{where} has {type(value[key]).__name__} for {key!r}")


def _require_figures(value: Mapping[str, Any], path: Path, where: str) -> None:
    for group in ("cost", "memory"):
        if group not in value:
            raise _not_a_dump(path, f"{where} has no key {group!r}")
        if value[group] is not None and not isinstance(value[group], dict):
            raise _not_a_dump(path, f"{where} has {type(value[group]).__name__} for {group!r}")


def _not_a_dump(path: Path, why: str) -> InspectorError:
    return InspectorError(
        f"{path} is no dump", ExitCode.FILE, why=why, ways_out=("dump --format json",)
    )


# --- comparing -----------------------------------------------------------------------------------


def changes(old: Mapping[str, Any], new: Mapping[str, Any], tolerance: float) -> Changes:
    """Return what differs between two dumps; programs are matched by title."""
    before, after = _by_title(old), _by_title(new)
    both = [title for title in before if title in after]
    figures = list(_figures("", old, new))
    calls, ops = [], []
    for title in both:
        one, other = before[title], after[title]
        figures += _figures(title, one, other)
        if one.get("calls") != other.get("calls"):
            calls.append(OpChange(title, "", one.get("calls", 0), other.get("calls", 0)))
        counts = [Counter(op["op"] for op in program["ops"]) for program in (one, other)]
        ops += [
            OpChange(title, op, counts[0][op], counts[1][op])
            for op in sorted({*counts[0], *counts[1]})
            if counts[0][op] != counts[1][op]
        ]
    return Changes(
        (old.get("target"), new.get("target")),
        tuple(title for title in before if title not in after),
        tuple(title for title in after if title not in before),
        tuple(calls),
        tuple(ops),
        tuple(figure for figure in figures if not figure.is_within(tolerance)),
    )


def _by_title(dump: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the programs by title; of several with one title, the later ones get a number."""
    found: dict[str, Mapping[str, Any]] = {}
    seen: Counter[str] = Counter()
    for program in dump["programs"]:
        title = program["title"]
        seen[title] += 1
        found[title if seen[title] == 1 else f"{title} ({seen[title]})"] = program
    return found


def _figures(
    program: str, old: Mapping[str, Any], new: Mapping[str, Any]
) -> Iterator[FigureChange]:
    for group in ("cost", "memory"):
        before, after = old[group] or {}, new[group] or {}
        for figure in dict.fromkeys((*before, *after)):
            values = [_number(figures.get(figure)) for figures in (before, after)]
            yield FigureChange(program, group, figure, *values)


def _number(value: Any) -> float | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


# --- results -------------------------------------------------------------------------------------


def _print(found: Changes) -> None:
    if found.targets[0] != found.targets[1]:
        print(f"target: {found.targets[0] or 'none'} became {found.targets[1] or 'none'}")
    for mark, style, titles in (("-", "red", found.removed), ("+", "green", found.added)):
        for title in titles:
            print(styled(f"{mark} program {title}", style))
    for change in found.calls:
        print(f"{change.program}: {change.old} calls became {change.new}")
    for change in found.ops:
        more = change.new > change.old
        text = f"{'+' if more else '-'} {abs(change.new - change.old)} {change.op}"
        print(
            f"{styled(text, 'green' if more else 'red')}  "
            f"({change.old} became {change.new}) in {change.program}"
        )
    if found.figures:
        rows = [
            (
                figure.program or "all",
                f"{figure.group} {figure.figure}",
                _shown(figure, figure.old),
                _shown(figure, figure.new),
                "-" if figure.ratio is None else f"{figure.ratio:.3f}",
            )
            for figure in found.figures
        ]
        print(table(HEADER, rows))


def _shown(figure: FigureChange, value: float | None) -> str:
    if value is None:
        return "-"
    if figure.group == "memory":
        return size(value)
    return quantity(value, _UNITS.get(figure.figure, ""))


def _as_json(found: Changes) -> dict[str, Any]:
    return {
        "target": {"old": found.targets[0], "new": found.targets[1]},
        "removed": list(found.removed),
        "added": list(found.added),
        "calls": [_counts(change) for change in found.calls],
        "ops": [asdict(change) for change in found.ops],
        "figures": [{**asdict(figure), "ratio": figure.ratio} for figure in found.figures],
    }


def _counts(change: OpChange) -> dict[str, Any]:
    return {"program": change.program, "old": change.old, "new": change.new}
