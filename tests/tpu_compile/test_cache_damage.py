"""Damaged files of the persistent cache, and file systems that fail."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from tests.tpu_compile.caching import name, run
from tpu_compile.errors import TpuCompileWarning
from tpu_compile.runtime.stored_programs import (
    FORMAT,
    key_of,
    packed,
    stored_programs,
    unpacked,
)
from tpu_compile.runtime.stores import LocalStore, local, store_at


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def fresh_stores() -> None:
    store_at.cache_clear()


# --- damage --------------------------------------------------------------------------------------

PARTS = {"module": "m", "versions": {"jaxlib": "0"}, "xla_options": {}, "compiler_flags": {}}


def test_every_truncation_and_every_flipped_bit_is_damage() -> None:
    key, data = key_of(PARTS), packed({**PARTS, "function": "f"}, b"program" * 3)
    found = unpacked(data, key)
    assert (found.state, found.program) == ("intact", b"program" * 3)
    assert {unpacked(data[:length], key).state for length in range(len(data))} == {"damaged"}
    for position in range(len(FORMAT), len(data)):
        changed = bytearray(data)
        changed[position] ^= 1
        assert unpacked(bytes(changed), key).state == "damaged"
    assert unpacked(data + b"x", key).state == "damaged"
    other = FORMAT.replace(b"-3", b"-2")
    assert unpacked(data.replace(FORMAT, other), key).state == "other format"


@pytest.mark.parametrize("body", [b"[]", b"\xff", b"{", b'{"a":' * 100_000])
def test_a_right_digest_over_nonsense_is_damage(body: bytes) -> None:
    rest = len(body).to_bytes(4, "little") + body
    data = FORMAT + hashlib.sha256(rest).digest() + rest
    assert unpacked(data, "0" * 64).state == "damaged"


def test_a_program_under_the_key_of_another(folder: Path) -> None:
    run(folder, 3.5)
    (first,) = folder.glob("*.xla")
    run(folder, 4.5)
    (second,) = set(folder.glob("*.xla")) - {first}
    second.write_bytes(first.read_bytes())
    states = {program.name: program.state for program in stored_programs(store_at(str(folder)))}
    assert states == {first.name: "intact", second.name: "under another key"}
    with pytest.warns(TpuCompileWarning, match="under another key"):
        assert run(folder, 4.5) == (1, 0)
    assert run(folder, 4.5) == (0, 1)


def test_an_executable_that_does_not_load(folder: Path) -> None:
    run(folder)
    (path,) = folder.glob("*.xla")
    parts = unpacked(path.read_bytes(), path.stem).parts
    path.write_bytes(packed(parts or {}, b"no executable"))
    with pytest.warns(TpuCompileWarning, match=f"{path.name}.*not loaded"):
        assert run(folder) == (1, 0)
    assert run(folder) == (0, 1)


# --- the file system -----------------------------------------------------------------------------


def test_a_full_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(folder, 3.5)

    class Full:
        def __init__(self, handle: int, mode: str) -> None:
            self.file = open(handle, mode)  # noqa: SIM115

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *error: object) -> None:
            self.file.close()

        def write(self, data: bytes) -> None:
            self.file.write(data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")

    def full_open(file: int, mode: str, **options: Any) -> Any:
        return Full(file, mode) if "w" in mode else open(file, mode, **options)

    monkeypatch.setattr(local, "open", full_open, raising=False)
    with pytest.warns(TpuCompileWarning, match="No space left"):
        assert run(folder, 4.5) == (1, 0)
    assert not list(folder.glob("*.tmp"))
    monkeypatch.undo()
    assert run(folder, 3.5) == (0, 1)
    assert run(folder, 4.5) == (1, 0)


def test_a_folder_that_can_only_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(folder, 3.5)
    real_open = os.open

    def refuse(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, "Read-only file system")
        return real_open(path, flags, *args, **kwargs)

    def refuse_utime(*args: Any, **kwargs: Any) -> None:
        raise PermissionError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(os, "utime", refuse_utime)
    assert run(folder, 3.5) == (0, 1)
    with pytest.warns(TpuCompileWarning, match="Read-only file system"):
        assert run(folder, 4.5) == (1, 0)


def test_a_folder_that_is_removed_meanwhile(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(str(folder), 100)
    store.write(name(0), b"x")
    make_room = LocalStore._make_room
    calls = []

    def removed(self: LocalStore, *args: Any, **kwargs: Any) -> None:
        make_room(self, *args, **kwargs)
        if not calls:
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()
        calls.append(1)

    monkeypatch.setattr(LocalStore, "_make_room", removed)
    store.write(name(1), b"y")
    assert store.read(name(1)) == b"y"
    assert store.read(name(0)) is None
    assert len(calls) == 2


def test_a_folder_that_becomes_a_file(folder: Path) -> None:
    run(folder, 3.5)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    folder.write_text("no folder")
    with pytest.warns(TpuCompileWarning, match="Not a directory"):
        assert run(folder, 3.5) == (1, 0)
    assert folder.read_text() == "no folder"


def test_a_folder_under_the_name_of_a_program(folder: Path) -> None:
    run(folder, 3.5)
    (path,) = folder.glob("*.xla")
    path.unlink()
    path.mkdir()
    with pytest.warns(TpuCompileWarning) as said:
        assert run(folder, 3.5) == (1, 0)
    assert len(said) == 2
    assert not list(folder.glob("*.tmp"))


def test_a_lock_that_is_removed_meanwhile(folder: Path) -> None:
    store = LocalStore(str(folder), 100)
    store.write(name(0), b"x")
    with store._folder() as handle, store._lock(handle):
        (folder / "lock").unlink()
    store.write(name(1), b"y")
    assert (folder / "lock").exists()
    assert store.read(name(1)) == b"y"
