"""What a store of compiled programs is, its errors, and which files make room for another."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tpu_compile.errors import TpuCompileError

PROGRAM_NAME = re.compile(r"(?P<key>[0-9a-f]{64})\.xla", re.ASCII)
DRAFT_NAME = re.compile(r"[0-9a-f]{64}\w*\.tmp", re.ASCII)

OLD_DRAFT = 3600.0
"""Seconds after which nobody writes a draft any more, where locks cannot tell."""


class StoreError(TpuCompileError):
    """A store of compiled programs cannot be read or written."""


class UnsafeStoreError(StoreError):
    """A folder or a file is refused because another user could have put code into it."""


class TooLargeError(StoreError):
    """A program is larger than the whole store may be."""


@dataclass(frozen=True)
class StoredFile:
    """A file of a store."""

    name: str
    size: int
    """Bytes."""
    used: float
    """When it was stored or last loaded, in seconds since the epoch."""


class ProgramStore(Protocol):
    """Files by name, in one folder; every call may find that other processes changed it.

    Methods raise `StoreError`, or `OSError` where the local file system refuses.
    """

    location: str
    """As a user wrote it."""

    @property
    def limit(self) -> int | None:
        """Bytes that all files together may take; None is no bound."""

    def read(self, name: str, *, is_use: bool = True) -> bytes | None:
        """Return a file's contents, None if there is none; `is_use` makes it the last used."""

    def write(self, name: str, data: bytes) -> None:
        """Store a file in one step, after removing what has to make room for it.

        Raises:
            TooLargeError: it is larger than the bound; nothing was removed.
        """

    def remove(self, names: Iterable[str]) -> None:
        """Remove files; one that is gone is no error."""

    def programs(self) -> list[StoredFile]:
        """Return the files of programs, in no order; files of other names are not ours."""

    def leftovers(self) -> list[StoredFile]:
        """Return what processes that ended while they stored a program left behind."""


def too_large(location: str, size: int, limit: int) -> TooLargeError:
    """Return what to raise for a program that no eviction makes room for."""
    return TooLargeError(
        f"A program of {size} bytes is not stored in {location}",
        why=f"the whole cache may take {limit} bytes",
        ways_out=("a larger `cache_size`",),
    )


def evictions(files: Sequence[StoredFile], name: str, size: int, limit: int) -> list[str]:
    """Return which files go before `size` bytes are stored as `name`: the least recently used.

    An earlier file of that name goes first, as it is about to be replaced.
    """
    excess = sum(file.size for file in files) + size - limit
    gone = []
    for file in sorted(files, key=lambda file: (file.name != name, file.used, file.name)):
        if excess <= 0:
            break
        gone.append(file.name)
        excess -= file.size
    return gone
