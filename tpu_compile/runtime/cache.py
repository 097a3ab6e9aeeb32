"""Compiled programs by key, in memory and on disk.

The key is a digest of the canonical module, the XLA options and every version that the program
depends on; it is equal in two processes. On disk a program is one file, written under another name
and moved into place, so a crash or a second process never leaves half a file under a key.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from tpu_compile.errors import CompilationError
from tpu_compile.runtime.pjrt import Client

logger = logging.getLogger(__name__)

# Raised whenever the meaning of a stored file changes; part of every key.
_FORMAT = b"tpu_compile-program-1\n"

Origin = Literal["compiled", "memory", "disk"]


def program_key(text: str, options: Sequence[tuple[str, Any]], client: Client) -> str:
    """Return the key of a module's canonical text (no locations) for `client`."""
    digest = hashlib.sha256(_FORMAT)
    for part in (client.version, repr(tuple(options)), text):
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


class ProgramCache:
    """Loaded executables of this process, backed by a folder where one is given."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By client, so that the programs of a closed one go with it.
        self._programs: weakref.WeakKeyDictionary[Client, dict[str, Any]] = (
            weakref.WeakKeyDictionary()
        )
        self._building: dict[tuple[int, str], threading.Lock] = {}

    def get(
        self,
        key: str,
        client: Client,
        compile_program: Callable[[], Any],
        *,
        folder: str | None,
    ) -> tuple[Any, Origin]:
        """Return the executable of `key` and where it came from, compiling it at most once.

        A thread that asks for a key which another is compiling waits for it.

        Raises:
            CompilationError: `compile_program` does; nothing is kept then.
        """
        with self._lock:
            programs = self._programs.setdefault(client, {})
            if key in programs:
                return programs[key], "memory"
            building = self._building.setdefault((id(client), key), threading.Lock())
        with building:
            if key in programs:
                return programs[key], "memory"
            program, origin = self._load_or_compile(key, client, compile_program, folder)
            with self._lock:
                programs[key] = program
                self._building.pop((id(client), key), None)
            return program, origin

    def clear(self) -> None:
        """Forget every executable of this process; files stay."""
        with self._lock:
            self._programs.clear()

    def _load_or_compile(
        self, key: str, client: Client, compile_program: Callable[[], Any], folder: str | None
    ) -> tuple[Any, Origin]:
        if folder is None:
            return compile_program(), "compiled"
        path = Path(folder) / f"{key}.xla"
        data = _read(path)
        if data is not None:
            try:
                return client.deserialize(data), "disk"
            except CompilationError as error:
                logger.warning("ignoring the stored program %s: %s", path, error)
        program = compile_program()
        _write(path, client.serialize(program))
        return program, "compiled"


def _read(path: Path) -> bytes | None:
    """Return the program stored at `path`; None if there is none or the file is damaged."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        logger.warning("cannot read the stored program %s: %s", path, error)
        return None
    head = len(_FORMAT) + hashlib.sha256().digest_size
    stored, body = data[len(_FORMAT) : head], data[head:]
    if not data.startswith(_FORMAT) or hashlib.sha256(body).digest() != stored:
        logger.warning("ignoring the damaged program file %s", path)
        return None
    return body


def _write(path: Path, body: bytes) -> None:
    """Store a program under `path` in one step; a folder that cannot be written is reported."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_FORMAT + hashlib.sha256(body).digest() + body)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        logger.warning("cannot store a program under %s: %s", path, error)
