"""Compiled programs by key, in memory and on disk.

The key is a digest of the canonical module, the XLA options and every version that the program
depends on; it is equal in two processes. `stored_programs.py` owns the files.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from tpu_compile.errors import CompilationError
from tpu_compile.runtime import stored_programs
from tpu_compile.runtime.pjrt import Client

logger = logging.getLogger(__name__)

Origin = Literal["compiled", "memory", "disk"]


def program_key(text: str, options: Sequence[tuple[str, Any]], client: Client) -> str:
    """Return the key of a module's canonical text (no locations) for `client`."""
    digest = hashlib.sha256(stored_programs.FORMAT)
    for part in (client.version, repr(tuple(options)), text):
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def key_parts(text: str, options: Sequence[tuple[str, Any]], client: Client) -> dict[str, Any]:
    """Return what `program_key` digests, to be stored beside the program; the text as a digest."""
    return {
        "module": hashlib.sha256(text.encode()).hexdigest(),
        "xla_options": {name: str(value) for name, value in options},
        "versions": client.versions,
    }


class ProgramCache:
    """Loaded executables of this process, backed by a folder where one is given."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By client, so that the programs of a closed one go with it.
        self._programs: weakref.WeakKeyDictionary[Client, dict[str, Any]] = (
            weakref.WeakKeyDictionary()
        )
        self._building: dict[tuple[int, str], threading.Lock] = {}
        self._without_folders = 0

    def get(
        self,
        key: str,
        client: Client,
        compile_program: Callable[[], Any],
        *,
        folder: str | None,
        describe: Callable[[], Mapping[str, Any]],
    ) -> tuple[Any, Origin]:
        """Return the executable of `key` and where it came from, compiling it at most once.

        A thread that asks for a key which another is compiling waits for it. `describe` gives what
        is stored beside the program to tell what it is, as a JSON object.

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
            program, origin = self._load_or_compile(key, client, compile_program, folder, describe)
            with self._lock:
                programs[key] = program
                self._building.pop((id(client), key), None)
            return program, origin

    @contextlib.contextmanager
    def without_folders(self) -> Iterator[None]:
        """Compile what is not in memory, whatever folders hold: for checks that count compiles."""
        with self._lock:
            self._without_folders += 1
        try:
            yield
        finally:
            with self._lock:
                self._without_folders -= 1

    def clear(self) -> None:
        """Forget every executable of this process; files stay."""
        with self._lock:
            self._programs.clear()

    def _load_or_compile(
        self,
        key: str,
        client: Client,
        compile_program: Callable[[], Any],
        folder: str | None,
        describe: Callable[[], Mapping[str, Any]],
    ) -> tuple[Any, Origin]:
        if folder is None or self._without_folders:
            return compile_program(), "compiled"
        path = stored_programs.path_of(folder, key)
        data = stored_programs.read(path)
        if data is not None:
            try:
                return client.deserialize(data), "disk"
            except CompilationError as error:
                logger.warning("ignoring the stored program %s: %s", path, error)
        program = compile_program()
        stored_programs.write(path, describe(), client.serialize(program))
        return program, "compiled"
