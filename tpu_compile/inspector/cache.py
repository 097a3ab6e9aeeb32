"""`cache`: what the persistent cache holds, and why two programs have two keys.

`cache_upkeep.py` changes it: collection, export and import.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tpu_compile.inspector import cache_upkeep
from tpu_compile.inspector.exits import ExitCode, InspectorError
from tpu_compile.inspector.output import age, print_json, size, table
from tpu_compile.options import CACHE_DIR_VARIABLE, CompileOptions
from tpu_compile.options import parse_size as size_in_bytes
from tpu_compile.runtime.stored_programs import StoredProgram, stored_programs
from tpu_compile.runtime.stores import ProgramStore, is_url, store_at

NAME = "cache"
HELP = "list, compare, collect, export or import the programs of the persistent cache"
EXAMPLES = (
    "tpu-compile-inspect cache ls",
    "tpu-compile-inspect cache why 3f2a 91bc --dir ~/.cache/tpu_compile",
    "tpu-compile-inspect cache gc --max-size 2GiB --older-than 30d --dry-run",
    "tpu-compile-inspect cache export programs.tar 3f2a 91bc",
    "tpu-compile-inspect cache import programs.tar --dir gs://bucket/programs",
)

_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])", re.IGNORECASE)
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
# How many arguments each takes, and what they are.
_ACTIONS: dict[str, tuple[range, str]] = {
    "ls": (range(1), "no argument"),
    "why": (range(2, 3), "two keys"),
    "gc": (range(1), "no argument"),
    "export": (range(1, 2**31), "a file, and then keys"),
    "import": (range(1, 2), "a file"),
}
_KEY_LENGTH = 12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("action", choices=tuple(_ACTIONS), help="what to do")
    parser.add_argument(
        "given",
        metavar="ARGUMENT",
        nargs="*",
        help="why: two keys, or the beginnings of two; export: the file to write, then the keys of "
        "the programs, all without; import: the file to read, whose programs are code that later "
        "runs",
    )
    parser.add_argument(
        "--dir", help=f"the folder, or a URL; without it {CACHE_DIR_VARIABLE} names it"
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
    """Return a size in bytes; units are powers of 1024 with and without the i."""
    try:
        return size_in_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


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
    action, given = arguments.action, arguments.given
    if action == "import":
        store = _store(arguments.dir, must_exist=False)
        return cache_upkeep.import_file(store, Path(given[0]), arguments.json)
    store = _store(arguments.dir)
    if action == "ls":
        return _list(store, arguments.json)
    if action == "why":
        return _why(store, given, arguments.json)
    if action == "export":
        programs = stored_programs(store) if len(given) > 1 else []
        keys = [_found(programs, key, store).key for key in given[1:]]
        return cache_upkeep.export_file(store, Path(given[0]), keys, arguments.json)
    return cache_upkeep.collect(store, arguments)


def _check_usage(arguments: argparse.Namespace) -> None:
    action = arguments.action
    wanted, described = _ACTIONS[action]
    if len(arguments.given) not in wanted:
        raise InspectorError(
            f"cache {action} got {len(arguments.given)} arguments",
            ExitCode.USAGE,
            why=f"it takes {described}",
        )
    rules = [arguments.max_size is not None, arguments.older_than is not None, arguments.dry_run]
    if action != "gc" and any(rules):
        raise InspectorError(
            f"cache {action} takes no --max-size, --older-than or --dry-run",
            ExitCode.USAGE,
            ways_out=("cache gc",),
        )


def _store(given: str | None, *, must_exist: bool = True) -> ProgramStore:
    options = CompileOptions(cache_dir=given)
    location = options.resolved_cache_dir()
    if location is None:
        raise InspectorError(
            "There is no persistent cache",
            ExitCode.USAGE,
            why=f"neither --dir nor {CACHE_DIR_VARIABLE} names a folder",
        )
    if must_exist and not is_url(location) and not Path(location).is_dir():
        raise InspectorError(f"{location} is no folder", ExitCode.FILE, ways_out=("--dir FOLDER",))
    return store_at(location, options.resolved_cache_size())


# --- ls ------------------------------------------------------------------------------------------


def _list(store: ProgramStore, as_json: bool) -> int:
    programs, left = stored_programs(store), store.leftovers()
    now = time.time()
    total = sum(program.size for program in programs)
    if as_json:
        print_json(
            {
                "folder": store.location,
                "size": total,
                "limit": store.limit,
                "programs": [_as_json(program, now) for program in programs],
                "leftovers": [item.name for item in left],
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
    bound = "" if store.limit is None else f" of {size(store.limit)}"
    print(f"{len(programs)} programs, {size(total)}{bound} in {store.location}")
    if left:
        print(f"{len(left)} leftovers of processes that ended early; `cache gc` removes them")
    return ExitCode.OK


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


def _why(store: ProgramStore, keys: Sequence[str], as_json: bool) -> int:
    programs = stored_programs(store)
    first, second = (_found(programs, key, store) for key in keys)
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


def _found(programs: Sequence[StoredProgram], key: str, store: ProgramStore) -> StoredProgram:
    found = [program for program in programs if program.key.startswith(key.lower())]
    if len(found) != 1:
        place = store.location
        what = f"{len(found)} programs in {place} have" if found else f"No program in {place} has"
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
            why="another version of tpu_compile stored it"
            if program.state == "other format"
            else f"its file is {program.state}",
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
        ("compiler_flags", "flags in"),
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
