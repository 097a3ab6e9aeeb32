"""`cache`: what the persistent cache holds, why two programs have two keys, and its collection."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpu_compile.inspector.exits import ExitCode, InspectorError
from tpu_compile.inspector.output import print_json, size, table
from tpu_compile.options import CACHE_DIR_VARIABLE, CompileOptions
from tpu_compile.runtime.stored_programs import StoredProgram, leftovers, stored_programs

NAME = "cache"
HELP = "list, compare or collect the programs of the persistent cache"
EXAMPLES = (
    "tpu-compile-inspect cache ls",
    "tpu-compile-inspect cache why 3f2a 91bc --dir ~/.cache/tpu_compile",
    "tpu-compile-inspect cache gc --max-size 2GiB --older-than 30d --dry-run",
)

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])", re.IGNORECASE)
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_ACTIONS = {"ls": 0, "why": 2, "gc": 0}
_KEY_LENGTH = 12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("action", choices=tuple(_ACTIONS), help="what to do")
    parser.add_argument(
        "keys", metavar="KEY", nargs="*", help="why: two keys, or the beginnings of two"
    )
    parser.add_argument(
        "--dir", type=Path, help=f"the folder; without it {CACHE_DIR_VARIABLE} names it"
    )
    parser.add_argument(
        "--max-size",
        metavar="SIZE",
        type=parse_size,
        help="gc: keep the last used programs up to this size, such as 500MiB or 2GiB",
    )
    parser.add_argument(
        "--older-than",
        metavar="AGE",
        type=parse_age,
        help="gc: remove what was not used for this long, such as 12h or 30d",
    )
    parser.add_argument("--dry-run", action="store_true", help="gc: remove nothing, say what would")


def parse_size(text: str) -> int:
    """Return a size in bytes; units are powers of 1024 with and without the i.

    >>> parse_size("2GiB")
    2147483648
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size, such as 500MiB or 2GiB")
    return int(float(match[1]) * 1024 ** "_KMGT".index(match[2].upper() or "_"))


def parse_age(text: str) -> float:
    """Return a time in seconds.

    >>> parse_age("30d")
    2592000.0
    """
    match = _AGE.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time, such as 90m, 12h, 30d or 2w")
    return float(match[1]) * _SECONDS[match[2].lower()]


def run(arguments: argparse.Namespace) -> int:
    """Do what the action says."""
    _check_usage(arguments)
    folder = _folder(arguments.dir)
    if arguments.action == "ls":
        return _list(folder, arguments.json)
    if arguments.action == "why":
        return _why(folder, arguments.keys, arguments.json)
    return _collect(folder, arguments)


def _check_usage(arguments: argparse.Namespace) -> None:
    action, wanted = arguments.action, _ACTIONS[arguments.action]
    if len(arguments.keys) != wanted:
        takes = "two keys" if wanted else "no key"
        raise InspectorError(
            f"cache {action} got {len(arguments.keys)} keys",
            ExitCode.USAGE,
            why=f"it takes {takes}",
        )
    rules = [arguments.max_size is not None, arguments.older_than is not None, arguments.dry_run]
    if action != "gc" and any(rules):
        raise InspectorError(
            f"cache {action} takes no --max-size, --older-than or --dry-run",
            ExitCode.USAGE,
            ways_out=("cache gc",),
        )


def _folder(given: Path | None) -> Path:
    named = str(given) if given is not None else CompileOptions().resolved_cache_dir()
    if named is None:
        raise InspectorError(
            "There is no persistent cache",
            ExitCode.USAGE,
            why=f"neither --dir nor {CACHE_DIR_VARIABLE} names a folder",
        )
    folder = Path(named).expanduser()
    if not folder.is_dir():
        raise InspectorError(f"{folder} is no folder", ExitCode.FILE, ways_out=("--dir FOLDER",))
    return folder


# --- ls ------------------------------------------------------------------------------------------


def _list(folder: Path, as_json: bool) -> int:
    programs, left = stored_programs(folder), leftovers(folder)
    now = time.time()
    total = sum(program.size for program in programs)
    if as_json:
        print_json(
            {
                "folder": str(folder),
                "size": total,
                "programs": [_as_json(program, now) for program in programs],
                "leftovers": [item.path.name for item in left],
            }
        )
        return ExitCode.OK
    rows = [
        (
            program.key[:_KEY_LENGTH],
            size(program.size),
            age(now - program.used),
            program.state,
            _described(program),
        )
        for program in programs
    ]
    if rows:
        print(table(("key", "size", "used", "state", "program"), rows))
    print(f"{len(programs)} programs, {size(total)} in {folder}")
    if left:
        print(f"{len(left)} leftovers of processes that ended early; `cache gc` removes them")
    return ExitCode.OK


def age(seconds: float) -> str:
    """Return a time for reading, in its largest unit.

    >>> age(7300)
    '2h ago'
    """
    for unit in ("w", "d", "h", "m"):
        if seconds >= _SECONDS[unit]:
            return f"{int(seconds // _SECONDS[unit])}{unit} ago"
    return f"{max(0, int(seconds))}s ago"


def _described(program: StoredProgram) -> str:
    if program.parts is None:
        return ""
    inputs = [str(item) for item in program.parts.get("inputs", ())]
    shown = ", ".join(inputs[:3]) + (", ..." if len(inputs) > 3 else "")
    return f"{program.parts.get('function', '')} for {shown}"


def _as_json(program: StoredProgram, now: float) -> dict[str, Any]:
    return {
        "key": program.key,
        "size": program.size,
        "age_seconds": round(now - program.used, 1),
        "state": program.state,
        "parts": program.parts,
    }


# --- why -----------------------------------------------------------------------------------------


def _why(folder: Path, keys: Sequence[str], as_json: bool) -> int:
    programs = stored_programs(folder)
    first, second = (_found(programs, key, folder) for key in keys)
    differences = _differences(_parts(first), _parts(second))
    if as_json:
        print_json(
            {"keys": [first.key, second.key], "differences": [list(each) for each in differences]}
        )
        return ExitCode.OK
    for name, old, new in differences:
        print(f"{name}: {old} and {new}")
    if not differences:
        print("the two are one program")
    return ExitCode.OK


def _found(programs: Sequence[StoredProgram], key: str, folder: Path) -> StoredProgram:
    found = [program for program in programs if program.key.startswith(key.lower())]
    if len(found) != 1:
        what = f"{len(found)} programs in {folder} have" if found else f"No program in {folder} has"
        raise InspectorError(
            f"{what} a key that begins with {key!r}",
            ExitCode.USAGE,
            ways_out=("a longer beginning",) if found else ("cache ls, which lists the keys",),
        )
    return found[0]


def _parts(program: StoredProgram) -> Mapping[str, Any]:
    if program.parts is None:
        raise InspectorError(
            f"The program {program.key[:_KEY_LENGTH]} does not say what it is",
            ExitCode.FILE,
            why=f"its file is {program.state}"
            if program.state == "damaged"
            else "another version of tpu_compile stored it",
            ways_out=("compile it again",),
        )
    return program.parts


def _differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return what differs in the parts of two keys: name, and the two values.

    Function, inputs and settings are no part of a key themselves; they tell why a module differs.
    """
    found: list[tuple[str, str, str]] = []
    if first.get("module") != second.get("module"):
        found.append(("module text", f"{first.get('module')}", f"{second.get('module')}"))
    if first.get("function") != second.get("function"):
        found.append(("function", f"{first.get('function')}", f"{second.get('function')}"))
    found.extend(_input_differences(first.get("inputs", []), second.get("inputs", [])))
    for group, label in (
        ("settings", "setting"),
        ("xla_options", "XLA option"),
        ("versions", "version of"),
    ):
        old, new = first.get(group, {}), second.get(group, {})
        found.extend(
            (f"{label} {name}", old.get(name, "(none)"), new.get(name, "(none)"))
            for name in sorted({*old, *new})
            if old.get(name) != new.get(name)
        )
    return found


def _input_differences(old: Sequence[str], new: Sequence[str]) -> list[tuple[str, str, str]]:
    if len(old) != len(new):
        return [("number of inputs", str(len(old)), str(len(new)))]
    return [
        (f"input {index}", one, other)
        for index, (one, other) in enumerate(zip(old, new, strict=True))
        if one != other
    ]


# --- gc ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Removal:
    """A file to remove, and why."""

    path: Path
    size: int
    reason: str


def removals(
    folder: Path, *, max_size: int | None, older_than: float | None, now: float
) -> list[Removal]:
    """Return what a collection removes: damaged files, leftovers, and the least recently used.

    Files of another version of tpu_compile are kept or go by their age and size, like ours.
    """
    found = [Removal(item.path, item.size, "leftover") for item in leftovers(folder, now)]
    total = 0
    for program in stored_programs(folder):
        reason = None
        if program.state == "damaged":
            reason = "damaged"
        elif older_than is not None and now - program.used > older_than:
            reason = f"used {age(now - program.used)}"
        else:
            # The last used come first: once they fill the size, all that follow go.
            total += program.size
            if max_size is not None and total > max_size:
                reason = "over the size"
        if reason is not None:
            found.append(Removal(program.path, program.size, reason))
    return found


def _collect(folder: Path, arguments: argparse.Namespace) -> int:
    found = removals(
        folder,
        max_size=arguments.max_size,
        older_than=arguments.older_than,
        now=time.time(),
    )
    if not arguments.dry_run:
        for removal in found:
            # Another process may collect at the same time.
            removal.path.unlink(missing_ok=True)
    freed = sum(removal.size for removal in found)
    if arguments.json:
        print_json(
            {
                "folder": str(folder),
                "dry_run": arguments.dry_run,
                "freed": freed,
                "removed": [
                    {"file": removal.path.name, "size": removal.size, "reason": removal.reason}
                    for removal in found
                ],
            }
        )
        return ExitCode.OK
    for removal in found:
        print(f"{removal.path.name[:_KEY_LENGTH]}  {size(removal.size)}  {removal.reason}")
    verb = "would be removed" if arguments.dry_run else "removed"
    print(f"{len(found)} files {verb}, {size(freed)}")
    return ExitCode.OK
