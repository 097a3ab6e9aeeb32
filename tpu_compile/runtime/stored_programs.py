"""What is in a file of the persistent cache: one program, and what went into its key.

A file is a mark of the format, a digest of the rest, the length of a JSON object, that object, and
the program. The key follows from the object, so a file under another key than its own is found out.
Nothing is unpickled. Where files lie is the business of `stores`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tpu_compile.runtime.stores import ProgramStore, UnsafeStoreError

FORMAT = b"tpu_compile-program-3\n"
"""Raised whenever the meaning of a stored file changes; part of every key."""
_ANY_FORMAT = re.compile(rb"tpu_compile-program-\d+\n")
_DIGEST = hashlib.sha256().digest_size
_LENGTH = 4

KEY_PARTS = ("compiler_flags", "module", "versions", "xla_options")
"""The parts that make the key; a file may tell more of its program."""

State = Literal["intact", "damaged", "other format", "under another key", "refused"]
"""`"refused"`: another user could have put code into the file."""


@dataclass(frozen=True)
class Contents:
    """What a file holds; parts and program are there if it is intact."""

    state: State
    """`"other format"`: another version of tpu_compile wrote it."""
    parts: Mapping[str, Any] | None = None
    program: bytes = b""


@dataclass(frozen=True)
class StoredProgram:
    """A program in a store."""

    key: str
    name: str
    """Of its file."""
    size: int
    """Bytes of the file."""
    used: float
    """When it was stored or last loaded, in seconds since the epoch."""
    state: State
    parts: Mapping[str, Any] | None
    """What went into the key (see `key_parts` in `cache.py`), if the file is intact."""


def key_of(parts: Mapping[str, Any]) -> str:
    """Return the key that `KEY_PARTS` of `parts` make; equal in every process and folder."""
    made = json.dumps({name: parts.get(name) for name in KEY_PARTS}, sort_keys=True)
    return hashlib.sha256(FORMAT + made.encode()).hexdigest()


def name_of(key: str) -> str:
    """Return the name of the file of `key`."""
    return f"{key}.xla"


def packed(parts: Mapping[str, Any], program: bytes) -> bytes:
    """Return the contents of a program's file."""
    described = json.dumps(parts, sort_keys=True).encode()
    rest = len(described).to_bytes(_LENGTH, "little") + described + program
    return FORMAT + hashlib.sha256(rest).digest() + rest


def unpacked(data: bytes, key: str) -> Contents:
    """Return what the file of `key` holds."""
    if not data.startswith(FORMAT):
        return Contents("other format" if _ANY_FORMAT.match(data) else "damaged")
    head = len(FORMAT) + _DIGEST
    rest = memoryview(data)[head:]
    if hashlib.sha256(rest).digest() != data[len(FORMAT) : head]:
        return Contents("damaged")
    end = _LENGTH + int.from_bytes(rest[:_LENGTH], "little")
    try:
        parts = json.loads(bytes(rest[_LENGTH:end]))
    except (ValueError, RecursionError):
        return Contents("damaged")
    if not isinstance(parts, dict):
        return Contents("damaged")
    if key_of(parts) != key:
        return Contents("under another key")
    return Contents("intact", parts, bytes(rest[end:]))


def stored_programs(store: ProgramStore) -> list[StoredProgram]:
    """Return the programs of a store, the last used first; reads each file.

    Raises:
        StoreError, OSError: the store cannot be read, or not safely.
    """
    found = []
    for file in store.programs():
        key = file.name.partition(".")[0]
        try:
            data = store.read(file.name, is_use=False)
        except UnsafeStoreError:
            contents = Contents("refused")
        else:
            if data is None:
                continue  # Another process removed it since.
            contents = unpacked(data, key)
        found.append(
            StoredProgram(key, file.name, file.size, file.used, contents.state, contents.parts)
        )
    return sorted(found, key=lambda program: (-program.used, program.key))
