"""Stored programs as one file: a plain uncompressed tar of a store's files.

A tar of another's making is read with care. Names are only compared with those of programs, never
used as paths; a file of programs must have the digest and the key that it claims; what is read at a
time has a bound, and so has what is kept of what was passed over.
"""

from __future__ import annotations

import contextlib
import os
import tarfile
import tempfile
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from tpu_compile.errors import TpuCompileError
from tpu_compile.runtime.stored_programs import State, unpacked
from tpu_compile.runtime.stores import ProgramStore, TooLargeError, UnsafeStoreError
from tpu_compile.runtime.stores.base import PROGRAM_NAME

LARGEST_PROGRAM = 2**31 + 2**20
"""Bytes: a serialized executable is a protocol buffer, which holds no more than 2 GiB."""

_BLOCK = tarfile.BLOCKSIZE
_FILE_TYPES = (tarfile.REGTYPE, tarfile.AREGTYPE)
_REPORTED = 20


class ArchiveError(TpuCompileError):
    """A file is no archive of stored programs, or ends early."""


@dataclass
class Report:
    """What became of the programs of an export or an import."""

    done: list[str] = field(default_factory=list)
    """Keys of the programs that were written."""
    size: int = 0
    """Bytes of them."""
    present: int = 0
    """Programs that the store had already."""
    passed_over: int = 0
    """Files that were not taken."""
    reasons: list[tuple[str, str]] = field(default_factory=list)
    """Name and reason of the first twenty of them."""

    def pass_over(self, name: str, reason: str) -> None:
        """Note a file that is not taken."""
        self.passed_over += 1
        if len(self.reasons) < _REPORTED:
            self.reasons.append((name, reason))


def export_programs(store: ProgramStore, target: Path, keys: Collection[str] = ()) -> Report:
    """Write the programs of `keys`, or all, into one file, which appears when it is whole.

    Programs that are not intact are passed over. The last used come last, so that they stay where
    an archive is imported into a smaller store.

    Raises:
        StoreError, OSError: the store cannot be read, or the file cannot be written.
    """
    report = Report()
    # Rename is one step within a file system only.
    handle, draft = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:100]}_")
    try:
        with open(handle, "wb") as file:
            for stored in sorted(store.programs(), key=lambda stored: (stored.used, stored.name)):
                key = stored.name.partition(".")[0]
                if keys and key not in keys:
                    continue
                try:
                    data = store.read(stored.name, is_use=False)
                except UnsafeStoreError as error:
                    report.pass_over(stored.name, error.why or str(error))
                    continue
                if data is None:
                    continue  # Another process removed it since.
                state = unpacked(data, key).state
                if state != "intact":
                    report.pass_over(stored.name, _why(state))
                    continue
                _add(file, stored.name, data)
                report.done.append(key)
                report.size += len(data)
            file.write(bytes(2 * _BLOCK))
        os.replace(draft, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)
        raise
    return report


def import_programs(source: Path, store: ProgramStore) -> Report:
    """Store the programs of an archive that the store lacks; its bound holds.

    What an archive holds is code that later runs: import only what you would run.

    Raises:
        ArchiveError: the file is none, or ends early; what came before that is stored.
        StoreError, OSError: the store cannot be written, or the file cannot be read.
    """
    report = Report()
    with open(source, "rb") as file:
        while True:
            block = file.read(_BLOCK)
            if block == bytes(_BLOCK):
                return report
            try:
                member = tarfile.TarInfo.frombuf(block, "ascii", "backslashreplace")
            except tarfile.HeaderError as error:
                raise ArchiveError(
                    f"{source} is no archive of compiled programs, or a damaged one",
                    where=f"byte {file.tell() - len(block)}",
                    why=str(error),
                    ways_out=("tpu-compile-inspect cache export FILE",),
                ) from error
            _take(file, member, source, store, report)


def _take(
    file: BinaryIO, member: tarfile.TarInfo, source: Path, store: ProgramStore, report: Report
) -> None:
    """Store the program of one member, if it is one, and move on to the next."""
    padded = -(-member.size // _BLOCK) * _BLOCK
    match = PROGRAM_NAME.fullmatch(member.name)
    name = member.name[:100]
    reason = None
    if member.size < 0:
        raise ArchiveError(f"{source} is damaged", why=f"the size of {name!r} is negative")
    if member.type not in _FILE_TYPES or match is None:
        reason = "it is no file of a program"
    elif member.size > LARGEST_PROGRAM:
        reason = f"it is larger than a program can be ({member.size} bytes)"
    if match is None or reason is not None:
        report.pass_over(name, reason or "")
        if file.tell() + padded > os.fstat(file.fileno()).st_size:
            raise _ends_early(source, name)
        file.seek(padded, os.SEEK_CUR)
        return
    data = file.read(member.size)
    if len(data) < member.size or len(file.read(padded - member.size)) < padded - member.size:
        raise _ends_early(source, name)
    state = unpacked(data, match["key"]).state
    if state != "intact":
        report.pass_over(name, _why(state))
        return
    there = store.read(name, is_use=False)
    if there is not None and unpacked(there, match["key"]).state == "intact":
        report.present += 1
        return
    try:
        store.write(name, data)
    except TooLargeError as error:
        report.pass_over(name, error.why or str(error))
        return
    report.done.append(match["key"])
    report.size += len(data)


def _add(file: BinaryIO, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    member.mode = 0o600
    file.write(member.tobuf(tarfile.USTAR_FORMAT))
    file.write(data)
    file.write(bytes(-len(data) % _BLOCK))


def _why(state: State) -> str:
    return (
        "another version of tpu_compile wrote it" if state == "other format" else f"it is {state}"
    )


def _ends_early(source: Path, name: str) -> ArchiveError:
    return ArchiveError(f"{source} ends early", why=f"within {name!r}")
