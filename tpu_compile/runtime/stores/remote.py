"""A folder of compiled programs behind a URL, through fsspec: object stores and file servers.

Nobody can be kept from reading a file while it is written: object stores put one in a step, and
elsewhere it is written as a draft and moved; the digest in each file covers the rest.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import secrets
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from tpu_compile.errors import OptionError
from tpu_compile.runtime.stores.base import (
    DRAFT_NAME,
    OLD_DRAFT,
    PROGRAM_NAME,
    StoredFile,
    StoreError,
    evictions,
    too_large,
)

T = TypeVar("T")

# Those whose whole-file put is one step.
_PUTS_WHOLE = {"abfs", "abfss", "adl", "az", "gcs", "gs", "memory", "s3", "s3a"}
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "created")
_PAUSE = 60.0
"""Seconds for which a store that failed is left alone: a timeout a program would add up."""


class RemoteStore:
    """See `ProgramStore`. Files go by the time they were stored: reading one does not touch it."""

    def __init__(self, location: str, limit: int | None) -> None:
        self.location = location
        self.limit = limit
        self._paused_until = 0.0
        try:
            import fsspec
        except ImportError as error:
            raise OptionError(
                f"The cache folder {location!r} needs fsspec",
                why="a URL is reached through it, and it is not installed",
                ways_out=("pip install tpu_compile[remote]", "a local folder"),
            ) from error
        try:
            self._files, self._path = fsspec.core.url_to_fs(location)
        except (ImportError, ValueError) as error:
            raise OptionError(
                f"The cache folder {location!r} cannot be reached",
                why=str(error),
                ways_out=("install the package that fsspec needs for it", "a local folder"),
            ) from error
        except Exception as error:
            # Drivers look for credentials here, and raise what they like.
            raise self._failed("opened", error) from error
        protocols = self._files.protocol
        names = {protocols} if isinstance(protocols, str) else set(protocols)
        self._puts_whole = bool(names & _PUTS_WHOLE)

    def read(self, name: str, *, is_use: bool = True) -> bytes | None:
        """See `ProgramStore`."""
        try:
            return self._call("read", lambda: bytes(self._files.cat_file(self._join(name))))
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """See `ProgramStore`."""
        if self.limit is not None:
            if len(data) > self.limit:
                raise too_large(self.location, len(data), self.limit)
            self.remove([draft.name for draft in self.leftovers()])
            self.remove(evictions(self.programs(), name, len(data), self.limit))
        self._call("written", lambda: self._write(name, data))

    def remove(self, names: Iterable[str]) -> None:
        """See `ProgramStore`."""
        for name in names:
            path = self._join(name)
            # Another process may have removed it.
            with contextlib.suppress(FileNotFoundError):
                self._call("written", functools.partial(self._files.rm_file, path))

    def programs(self) -> list[StoredFile]:
        """See `ProgramStore`."""
        return [file for file in self._listed() if PROGRAM_NAME.fullmatch(file.name)]

    def leftovers(self) -> list[StoredFile]:
        """See `ProgramStore`; the drafts that are older than an hour."""
        oldest = time.time() - OLD_DRAFT
        return [
            file
            for file in self._listed()
            if DRAFT_NAME.fullmatch(file.name) and file.used < oldest
        ]

    def _write(self, name: str, data: bytes) -> None:
        if self._puts_whole:
            self._files.pipe_file(self._join(name), data)
            return
        self._files.makedirs(self._path, exist_ok=True)
        draft = self._join(f"{name.partition('.')[0]}_{secrets.token_hex(8)}.tmp")
        try:
            self._files.pipe_file(draft, data)
            self._files.mv(draft, self._join(name))
        except BaseException:
            if self._files.exists(draft):
                self._files.rm_file(draft)
            raise

    def _listed(self) -> list[StoredFile]:
        def listed() -> list[StoredFile]:
            # Drivers keep listings; other processes write here too.
            self._files.invalidate_cache(self._path)
            return [
                StoredFile(
                    str(entry["name"]).rpartition("/")[2], int(entry["size"] or 0), _time_of(entry)
                )
                for entry in self._files.ls(self._path, detail=True)
                if entry["type"] == "file"
            ]

        try:
            return self._call("listed", listed)
        except FileNotFoundError:
            return []  # Nothing was stored yet.

    def _join(self, name: str) -> str:
        return f"{self._path.rstrip('/')}/{name}"

    def _call(self, what: str, action: Callable[[], T]) -> T:
        if time.monotonic() < self._paused_until:
            raise StoreError(
                f"{self.location} is not used", why=f"it failed less than {_PAUSE:.0f} seconds ago"
            )
        try:
            return action()
        except FileNotFoundError:
            raise
        except Exception as error:
            # Each driver has exceptions of its own, and none of them may fail a compile.
            self._paused_until = time.monotonic() + _PAUSE
            raise self._failed(what, error) from error

    def _failed(self, what: str, error: Exception) -> StoreError:
        return StoreError(
            f"{self.location} cannot be {what}", why=f"{type(error).__name__}: {error}"
        )


def _time_of(entry: dict[str, Any]) -> float:
    """Return when a file was stored, in seconds since the epoch; 0 where a driver does not say."""
    for name in _TIMES:
        value = entry.get(name)
        if isinstance(value, str):
            try:
                value = datetime.datetime.fromisoformat(value)
            except ValueError:
                continue
        if isinstance(value, datetime.datetime):
            # Without a zone it is UTC, as drivers give it.
            return value.replace(tzinfo=value.tzinfo or datetime.UTC).timestamp()
        if isinstance(value, (int, float)):
            return float(value)
    return 0.0
