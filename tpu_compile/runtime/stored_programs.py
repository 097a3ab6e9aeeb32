"""The files of the persistent cache: one program each, with what went into its key.

A file is a mark of the format, a digest of the rest, the length of a JSON object, that object, and
the program. It is written under another name and moved into place, so a crash or a second process
never leaves half a file under a key.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

logger = logging.getLogger(__name__)

FORMAT = b"tpu_compile-program-2\n"
"""Raised whenever the meaning of a stored file changes; part of every key."""
_ANY_FORMAT = b"tpu_compile-program-"
_DIGEST = hashlib.sha256().digest_size
_LENGTH = 4

_PROGRAM_NAME = re.compile(r"(?P<key>[0-9a-f]{64})\.xla")
_LEFTOVER_NAME = re.compile(r"[0-9a-f]{64}\w*\.tmp")
_OLD_LEFTOVER = 3600.0

State = Literal["intact", "damaged", "other format"]


@dataclass(frozen=True)
class StoredProgram:
    """A program in the folder of a persistent cache."""

    key: str
    path: Path
    size: int
    """Bytes of the file."""
    used: float
    """When it was stored or last loaded, in seconds since the epoch."""
    state: State
    """`"other format"`: another version of tpu_compile wrote it."""
    parts: Mapping[str, Any] | None
    """What went into the key (see `key_parts` in `cache.py`), if the file is intact."""


@dataclass(frozen=True)
class Leftover:
    """What a process that ended while it stored a program left behind."""

    path: Path
    size: int


def path_of(folder: str, key: str) -> Path:
    """Return where the program of `key` is stored."""
    return Path(folder) / f"{key}.xla"


def read(path: Path) -> bytes | None:
    """Return the program stored at `path`; None if there is none or the file is damaged."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        logger.warning("cannot read the stored program %s: %s", path, error)
        return None
    found = _split(data)
    if found is None:
        logger.warning("ignoring the damaged program file %s", path)
        return None
    # The time of the last use is what `cache gc` goes by. A folder that can only be read keeps its
    # times, and is not for us to collect.
    with contextlib.suppress(OSError):
        os.utime(path)
    return found[1]


def write(path: Path, parts: Mapping[str, Any], body: bytes) -> None:
    """Store a program under `path` in one step; a folder that cannot be written is reported."""
    described = json.dumps(parts, sort_keys=True).encode()
    rest = len(described).to_bytes(_LENGTH, "little") + described + body
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(FORMAT + hashlib.sha256(rest).digest() + rest)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        logger.warning("cannot store a program under %s: %s", path, error)


def _split(data: bytes) -> tuple[dict[str, Any], bytes] | None:
    """Return the two parts of a file's contents; None if it is not whole."""
    head = len(FORMAT) + _DIGEST
    digest, rest = data[len(FORMAT) : head], data[head:]
    if not data.startswith(FORMAT) or hashlib.sha256(rest).digest() != digest:
        return None
    end = _LENGTH + int.from_bytes(rest[:_LENGTH], "little")
    try:
        parts = json.loads(rest[_LENGTH:end])
    except ValueError:
        return None
    return (parts, rest[end:]) if isinstance(parts, dict) else None


def stored_programs(folder: Path) -> list[StoredProgram]:
    """Return the programs in `folder`, the last used first; reads each file.

    Files of other names are not ours and are left out.

    Raises:
        OSError: the folder cannot be read.
    """
    found = []
    for path, status in _files(folder):
        match = _PROGRAM_NAME.fullmatch(path.name)
        if match is None:
            continue
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            continue  # Another process removed it since.
        split = _split(data)
        state: State = "damaged"
        if split is not None:
            state = "intact"
        elif data.startswith(_ANY_FORMAT) and not data.startswith(FORMAT):
            state = "other format"
        found.append(
            StoredProgram(
                match["key"], path, status.st_size, status.st_mtime, state, split and split[0]
            )
        )
    return sorted(found, key=lambda program: (-program.used, program.key))


def leftovers(folder: Path, now: float | None = None) -> list[Leftover]:
    """Return the drafts of programs that are older than an hour: nobody writes them any more.

    Raises:
        OSError: the folder cannot be read.
    """
    oldest = (time.time() if now is None else now) - _OLD_LEFTOVER
    return [
        Leftover(path, status.st_size)
        for path, status in _files(folder)
        if _LEFTOVER_NAME.fullmatch(path.name) and status.st_mtime < oldest
    ]


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for path in sorted(folder.iterdir()):
        try:
            status = path.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue  # Another process removed it since.
        if stat.S_ISREG(status.st_mode):
            yield path, status
