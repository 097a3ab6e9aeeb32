"""A folder of compiled programs on a file system, shared by processes that may die at any time.

Three rules keep it right. A file is written as a draft and moved into place. Whoever writes holds
the lock of the folder, so a draft that is there when the lock is taken is a dead process's. All
files are reached through one descriptor of the folder, whose owner and mode were checked, so that
nobody can put another folder in its place between the check and the use.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import secrets
import stat
import threading
import time
from collections.abc import Iterable, Iterator

from tpu_compile.runtime.stores.base import (
    DRAFT_NAME,
    OLD_DRAFT,
    PROGRAM_NAME,
    StoredFile,
    StoreError,
    UnsafeStoreError,
    evictions,
    too_large,
)

try:
    import fcntl
except ImportError:  # Not POSIX: `LocalStore` says so when it is asked for something.
    fcntl = None  # type: ignore[assignment]

DEFAULT_SIZE = 10 * 2**30
"""Bytes that a folder may take unless a user says otherwise."""

_LOCK_NAME = "lock"
_LOCK_SECONDS = 30.0
# Seconds for which nothing is stored after that: a process that is stopped while it stores would
# delay every compile.
_BUSY_SECONDS = 300.0
# File systems without locks, such as some network ones.
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)

# Not the generator of the module `random`, whose numbers are the user's.
_CHANCE = random.SystemRandom()

# Where locks belong to processes (NFS), they do not keep threads apart.
_THREADS = threading.Lock()


class _BusyError(StoreError):
    """The lock of the folder cannot be had."""


class LocalStore:
    """See `ProgramStore`. The bound is strict where the file system has locks."""

    def __init__(self, path: str, limit: int) -> None:
        self.location = path
        self.limit = limit
        self._busy_until = 0.0

    def read(self, name: str, *, is_use: bool = True) -> bytes | None:
        """See `ProgramStore`; a file that is refused raises `UnsafeStoreError`."""
        try:
            with self._folder() as folder:
                # Not blocking, in case it is a pipe.
                handle = os.open(
                    name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder
                )
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise self._refused(name, "it is a symbolic link") from error
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise self._refused(name, "it is no file")
            reason = _unsafe(status)
            if reason is not None:
                raise self._refused(name, reason)
            with open(handle, "rb", closefd=False) as file:
                data = file.read()
            if is_use:
                # A folder that can only be read keeps its times; it is not ours to collect.
                with contextlib.suppress(OSError):
                    os.utime(handle)
        finally:
            os.close(handle)
        return data

    def write(self, name: str, data: bytes) -> None:
        """See `ProgramStore`; waits up to half a minute for others that are storing."""
        if len(data) > self.limit:
            raise too_large(self.location, len(data), self.limit)
        if time.monotonic() < self._busy_until:
            raise self._busy()
        try:
            self._write(name, data)
        except FileNotFoundError:
            # Somebody removed the whole folder meanwhile: it is made again, once.
            self._write(name, data)
        except _BusyError:
            self._busy_until = time.monotonic() + _BUSY_SECONDS
            raise

    def remove(self, names: Iterable[str]) -> None:
        """See `ProgramStore`."""
        gone = list(names)
        with contextlib.suppress(FileNotFoundError), self._folder() as folder, self._lock(folder):
            for name in gone:
                _unlink(folder, name)

    def programs(self) -> list[StoredFile]:
        """See `ProgramStore`."""
        try:
            with self._folder() as folder:
                return [file for file in _files(folder) if PROGRAM_NAME.fullmatch(file.name)]
        except FileNotFoundError:
            return []  # Nothing was stored yet.

    def leftovers(self) -> list[StoredFile]:
        """See `ProgramStore`; while another process stores, only the drafts of over an hour."""
        try:
            with self._folder() as folder:
                drafts = [file for file in _files(folder) if DRAFT_NAME.fullmatch(file.name)]
                return [draft for draft in drafts if self._is_leftover(folder, draft)]
        except FileNotFoundError:
            return []

    def _is_leftover(self, folder: int, draft: StoredFile) -> bool:
        if _is_old(draft):
            return True
        try:
            with self._lock(folder, seconds=0.0) as alone:
                return alone
        except (OSError, StoreError):
            return False  # Somebody is storing, or the folder can only be read.

    def _write(self, name: str, data: bytes) -> None:
        with self._folder(make=True) as folder, self._lock(folder) as alone:
            self._make_room(folder, name, len(data), alone=alone)
            draft = f"{name.partition('.')[0]}_{os.getpid()}_{secrets.token_hex(8)}.tmp"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                with open(os.open(draft, flags, 0o600, dir_fd=folder), "wb") as file:
                    file.write(data)
                os.replace(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                _unlink(folder, draft)
                raise

    def _make_room(self, folder: int, name: str, size: int, *, alone: bool) -> None:
        kept = []
        now = time.time()
        for file in _files(folder):
            is_draft = DRAFT_NAME.fullmatch(file.name) is not None
            if is_draft and (alone or _is_old(file)):
                _unlink(folder, file.name)
            elif is_draft or PROGRAM_NAME.fullmatch(file.name):
                kept.append(file)
                if file.used > now and not is_draft:
                    # A clock was wrong, here or there. From now on the file grows old like others.
                    with contextlib.suppress(OSError):
                        os.utime(file.name, (now, now), dir_fd=folder, follow_symlinks=False)
        for gone in evictions(kept, name, size, self.limit):
            _unlink(folder, gone)

    @contextlib.contextmanager
    def _folder(self, *, make: bool = False) -> Iterator[int]:
        """Give a descriptor of the folder, whose owner and mode are what they have to be."""
        if fcntl is None:
            raise StoreError(
                "There is no persistent cache on this system",
                why="it needs the file locks and modes of POSIX",
            )
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        try:
            folder = os.open(self.location, flags)
        except FileNotFoundError:
            if not make:
                raise
            os.makedirs(self.location, mode=0o700, exist_ok=True)
            folder = os.open(self.location, flags)
        try:
            reason = _unsafe(os.fstat(folder))
            if reason is not None:
                raise UnsafeStoreError(
                    f"The folder {self.location} is not used as a cache of compiled programs",
                    why=f"{reason}, and a stored program is code that runs",
                    ways_out=(f"chmod go-w {self.location}", "another `cache_dir`"),
                )
            yield folder
        finally:
            os.close(folder)

    @contextlib.contextmanager
    def _lock(self, folder: int, seconds: float | None = None) -> Iterator[bool]:
        """Hold the folder's lock; gives False where the file system has none."""
        seconds = _LOCK_SECONDS if seconds is None else seconds
        deadline = time.monotonic() + seconds
        if not _THREADS.acquire(timeout=seconds):
            raise self._busy()
        try:
            handle = self._locked(folder, deadline)
            try:
                yield handle is not None
            finally:
                if handle is not None:
                    # Closing would leave it to a child that was forked meanwhile.
                    fcntl.flock(handle, fcntl.LOCK_UN)
                    os.close(handle)
        finally:
            _THREADS.release()

    def _locked(self, folder: int, deadline: float) -> int | None:
        pause = 0.001
        while True:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            handle = os.open(_LOCK_NAME, flags, 0o600, dir_fd=folder)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Unless somebody removed the file, and others hold the lock of the next one.
                is_ours = _is_named(handle, folder)
            except BlockingIOError:
                is_ours = False
            except OSError as error:
                os.close(handle)
                if error.errno in _NO_LOCKS:
                    return None
                raise
            if is_ours:
                return handle
            os.close(handle)
            if time.monotonic() > deadline:
                raise self._busy()
            # Uneven, so that no process keeps coming when another has the lock.
            time.sleep(pause * _CHANCE.uniform(0.5, 1.0))
            pause = min(2 * pause, 0.02)

    def _busy(self) -> _BusyError:
        return _BusyError(
            f"The folder {self.location} cannot be written",
            why=f"other processes have held its lock for {_LOCK_SECONDS:.0f} seconds",
        )

    def _refused(self, name: str, reason: str) -> UnsafeStoreError:
        return UnsafeStoreError(
            f"The stored program {os.path.join(self.location, name)} is not loaded",
            why=f"{reason}, and a stored program is code that runs",
        )


def why_unsafe(folder: str) -> str | None:
    """Return why code in a folder may be another user's; None if it cannot be.

    Raises:
        OSError: there is no such folder.
    """
    return _unsafe(os.stat(folder))


def _unsafe(status: os.stat_result) -> str | None:
    """Return why code from this file or folder may be another user's; None if it cannot be."""
    if status.st_uid not in (os.geteuid(), 0):
        return f"it belongs to another user (uid {status.st_uid})"
    # A sticky bit keeps others from removing our files, not from adding theirs.
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "other users can write to it"
    return None


def _is_named(handle: int, folder: int) -> bool:
    """Whether an open lock file is still the one of that name in `folder`."""
    try:
        named = os.stat(_LOCK_NAME, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(named, os.fstat(handle))


def _files(folder: int) -> list[StoredFile]:
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # Another process removed it since.
            if stat.S_ISREG(status.st_mode):
                found.append(StoredFile(entry.name, status.st_size, status.st_mtime))
    return found


def _is_old(file: StoredFile) -> bool:
    return file.used < time.time() - OLD_DRAFT


def _unlink(folder: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
