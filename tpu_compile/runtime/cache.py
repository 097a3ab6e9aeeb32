"""Compiled programs by key, in memory and in a store.

The key is a digest of the canonical module, the XLA options, the compiler's flags and every version
that the program depends on; it is equal in two processes. `stored_programs.py` owns what is in a
file, `stores` where it lies. Whatever goes wrong with a store is warned about once, and the program
is compiled: a cache never fails a compile.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tpu_compile.errors import CompilationError, TpuCompileWarning
from tpu_compile.runtime.pjrt import Client
from tpu_compile.runtime.stored_programs import key_of, name_of, packed, unpacked
from tpu_compile.runtime.stores import ProgramStore, StoreError, store_at

Origin = Literal["compiled", "memory", "disk", "mismatch"]
"""`"mismatch"`: compiled, as what was stored is another program (see `Persistence.verify`)."""

_NOT_READ = "cannot be read, and programs are compiled"


@dataclass(frozen=True)
class Persistence:
    """Where programs are kept for other processes, and how far what is found there is trusted."""

    location: str
    """A folder, or a URL that fsspec understands."""
    size: int | None = None
    """Bytes that it may take; None: see `store_at`."""
    verify: bool = False
    """Whether a program that is found is compiled all the same, and compared.

    Compared are the optimized HLO without metadata and the sizes of its buffers, as XLA gives them
    for both. XLA's own machine code differs between two compiles of a module, so it cannot be.
    """


def key_parts(text: str, options: Sequence[tuple[str, Any]], client: Client) -> dict[str, Any]:
    """Return what makes the key of a module's canonical text (no locations) for `client`."""
    return {
        "compiler_flags": client.compiler_flags,
        "module": hashlib.sha256(text.encode()).hexdigest(),
        "versions": client.versions,
        "xla_options": dict(options),
    }


class ProgramCache:
    """Loaded executables of this process, backed by a store where one is given."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By client, so that the programs of a closed one go with it.
        self._programs: weakref.WeakKeyDictionary[Client, dict[str, Any]] = (
            weakref.WeakKeyDictionary()
        )
        self._building: dict[tuple[int, str], threading.Lock] = {}
        self._without_folders = 0
        self._said: set[tuple[str, str]] = set()

    def get(
        self,
        parts: Mapping[str, Any],
        client: Client,
        compile_program: Callable[[], Any],
        *,
        persistence: Persistence | None,
        describe: Callable[[], Mapping[str, Any]] = dict,
    ) -> tuple[Any, Origin]:
        """Return the executable that `parts` (see `key_parts`) make and where it came from.

        It is compiled at most once: a thread that asks for a key which another is compiling waits
        for it. `describe` gives what is stored beside the program to tell what it is, as JSON.

        Raises:
            CompilationError: `compile_program` does; nothing is kept then.
            OptionError: the store's URL cannot be understood here.
        """
        key = key_of(parts)
        with self._lock:
            programs = self._programs.setdefault(client, {})
            if key in programs:
                return programs[key], "memory"
            building = self._building.setdefault((id(client), key), threading.Lock())
        with building:
            if key in programs:
                return programs[key], "memory"
            if persistence is None or self._without_folders:
                origin: Origin = "compiled"
                program = compile_program()
            else:

                def contents(program: Any) -> bytes:
                    return packed({**describe(), **parts}, client.serialize(program))

                program, origin = self._load_or_compile(
                    key, client, compile_program, persistence, contents
                )
            with self._lock:
                programs[key] = program
                self._building.pop((id(client), key), None)
            return program, origin

    @contextlib.contextmanager
    def without_folders(self) -> Iterator[None]:
        """Compile what is not in memory, whatever stores hold: for checks that count compiles."""
        with self._lock:
            self._without_folders += 1
        try:
            yield
        finally:
            with self._lock:
                self._without_folders -= 1

    @property
    def uses_folders(self) -> bool:
        """Whether programs are looked for in folders."""
        return not self._without_folders

    def clear(self) -> None:
        """Forget every executable of this process, and what was warned about; files stay."""
        with self._lock:
            self._programs.clear()
            self._said.clear()

    def _load_or_compile(
        self,
        key: str,
        client: Client,
        compile_program: Callable[[], Any],
        persistence: Persistence,
        contents: Callable[[Any], bytes],
    ) -> tuple[Any, Origin]:
        location, name = persistence.location, name_of(key)
        try:
            store = store_at(location, persistence.size)
        except StoreError as error:
            self._warn(location, _NOT_READ, error)
            return compile_program(), "compiled"
        stored = self._load(store, key, client)
        if stored is not None and not persistence.verify:
            return stored, "disk"
        program = compile_program()
        origin: Origin = "compiled"
        if stored is not None:
            difference = client.difference(stored, program)
            if difference is None:
                return program, "disk"
            self._say(
                f"The stored program {name} in {location} is not what XLA compiles now: "
                f"{difference}. It is replaced.",
                key=(location, name),
            )
            origin = "mismatch"
        try:
            store.write(name, contents(program))
        except (OSError, StoreError, CompilationError) as error:
            self._warn(location, "did not store a program", error)
        return program, origin

    def _load(self, store: ProgramStore, key: str, client: Client) -> Any | None:
        """Return the stored executable; None if there is none, with a warning if it is no good."""
        name = name_of(key)
        try:
            data = store.read(name)
        except (OSError, StoreError) as error:
            self._warn(store.location, _NOT_READ, error)
            return None
        if data is None:
            return None
        found = unpacked(data, key)
        why = f"it is {found.state}"
        if found.state == "intact":
            try:
                return client.deserialize(found.program)
            except CompilationError as error:
                why = str(error)
        self._say(
            f"The stored program {name} in {store.location} is not loaded: {why}. It is compiled "
            "anew and replaced.",
            key=(store.location, name),
        )
        return None

    def _warn(self, location: str, effect: str, error: Exception) -> None:
        """Say that a store fails: once for each kind of failure."""
        kind = f"{type(error).__name__} {getattr(error, 'errno', '')}"
        self._say(f"The persistent cache {location} {effect}: {error}", key=(location, kind))

    def _say(self, message: str, key: tuple[str, str]) -> None:
        with self._lock:
            if key in self._said:
                return
            self._said.add(key)
        # The user's line is far up, behind Dynamo's frames.
        warnings.warn(message, TpuCompileWarning, stacklevel=2)
