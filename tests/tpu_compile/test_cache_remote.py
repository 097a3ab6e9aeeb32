"""The persistent cache behind a URL: fsspec's own memory, and file systems that fail."""

from __future__ import annotations

import datetime
import importlib.util
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

import tpu_compile
from tests.tpu_compile.caching import name, run
from tpu_compile.errors import OptionError, TpuCompileWarning
from tpu_compile.runtime.stores import StoreError, TooLargeError, store_at
from tpu_compile.runtime.stores.remote import RemoteStore, _time_of

URL = "memory://bucket/programs"


class FolderFiles(LocalFileSystem):
    """Files that are moved into place, under a protocol of their own; fails if told to."""

    protocol = "folderfiles"
    failure: Exception | None = None
    calls = 0

    def cat_file(self, path: str, *args: Any, **kwargs: Any) -> Any:
        type(self).calls += 1
        if self.failure is not None:
            raise self.failure
        return super().cat_file(path, *args, **kwargs)

    def mv(self, *args: Any, **kwargs: Any) -> None:
        type(self).calls += 1
        super().mv(*args, **kwargs)


@pytest.fixture(autouse=True)
def fresh_stores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    store_at.cache_clear()
    fsspec.register_implementation("folderfiles", FolderFiles, clobber=True)
    FolderFiles.clear_instance_cache()
    monkeypatch.setattr(FolderFiles, "failure", None)
    monkeypatch.setattr(FolderFiles, "calls", 0)
    files = fsspec.filesystem("memory")
    yield
    if files.exists("/bucket"):
        files.rm("/bucket", recursive=True)


def test_programs_are_found_again() -> None:
    assert run(URL) == (1, 0)
    assert run(URL) == (0, 1)
    assert run(URL, 4.5) == (1, 0)
    files = fsspec.filesystem("memory").ls("/bucket/programs", detail=False)
    assert len(files) == 2
    assert not [path for path in files if not path.endswith(".xla")]


def test_a_damaged_program_is_replaced() -> None:
    run(URL)
    files = fsspec.filesystem("memory")
    (path,) = files.ls("/bucket/programs", detail=False)
    files.pipe_file(path, files.cat_file(path)[:-1])
    with pytest.warns(TpuCompileWarning, match=f"{URL} is not loaded: it is damaged"):
        assert run(URL) == (1, 0)
    assert run(URL) == (0, 1)


def test_without_a_size_there_is_no_bound_and_nothing_is_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = RemoteStore(URL, None)
    monkeypatch.setattr(store._files, "ls", None)
    for number in range(3):
        store.write(name(number), bytes(1000))
    monkeypatch.undo()
    assert len(store.programs()) == 3
    assert store.limit is None


def test_with_a_size_the_oldest_go_first() -> None:
    store = RemoteStore(URL, 100)
    for number in (2, 0, 1):
        store.write(name(number), bytes(30))
        time.sleep(0.002)
    assert store.read(name(2)) == bytes(30)
    store.write(name(3), bytes(30))
    # Reading did not touch it.
    assert {file.name for file in store.programs()} == {name(0), name(1), name(3)}
    with pytest.raises(TooLargeError):
        store.write(name(4), bytes(101))
    assert len(store.programs()) == 3


def test_files_are_moved_into_place(tmp_path: Path) -> None:
    store = RemoteStore(f"folderfiles://{tmp_path}/deep/folder", 100)
    assert store.programs() == store.leftovers() == []
    assert store.read(name(0)) is None
    store.write(name(0), b"one")
    store.write(name(0), b"two")
    assert FolderFiles.calls == 3
    assert [path.name for path in (tmp_path / "deep/folder").iterdir()] == [name(0)]
    assert store.read(name(0)) == b"two"
    store.remove([name(0), name(1)])
    assert store.programs() == []


def test_old_drafts_go(tmp_path: Path) -> None:
    store = RemoteStore(f"folderfiles://{tmp_path}", 100)
    old, fresh = (tmp_path / f"{number:064x}_1_a.tmp" for number in (1, 2))
    for path in (old, fresh):
        path.write_bytes(b"draft")
    os.utime(old, (time.time() - 7200,) * 2)
    assert [left.name for left in store.leftovers()] == [old.name]
    store.write(name(3), b"x")
    assert sorted(path.name for path in tmp_path.iterdir()) == [fresh.name, name(3)]


def test_a_failed_move_leaves_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise PermissionError("forbidden")

    store = RemoteStore(f"folderfiles://{tmp_path}", None)
    monkeypatch.setattr(FolderFiles, "mv", refuse)
    with pytest.raises(StoreError, match="cannot be written: PermissionError: forbidden"):
        store.write(name(0), b"x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("failure", [OSError("no route"), TimeoutError("slow"), KeyError("odd")])
def test_a_failing_network_is_said_once_and_left_alone(
    tmp_path: Path, failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"folderfiles://{tmp_path}"
    run(url, 3.5)
    FolderFiles.calls = 0
    FolderFiles.failure = failure
    with pytest.warns(TpuCompileWarning, match=str(failure.args[0])) as said:
        assert run(url, 3.5) == (1, 0)
    assert len(said) == 1
    assert FolderFiles.calls == 1
    with pytest.warns(TpuCompileWarning, match="less than 60 seconds ago"):
        assert run(url, 3.5) == (1, 0)
    assert FolderFiles.calls == 1
    FolderFiles.failure = None
    later = time.monotonic() + 61
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert run(url, 3.5) == (0, 1)


def test_a_driver_that_refuses_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError("no credentials")

    monkeypatch.setattr(FolderFiles, "__init__", refuse)
    with pytest.warns(TpuCompileWarning, match="no credentials"):
        assert run("folderfiles:///nowhere") == (1, 0)


def test_an_unknown_protocol() -> None:
    with pytest.raises(OptionError, match="Protocol not known: nosuch"):
        run("nosuch://bucket")


@pytest.fixture
def no_fsspec(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda module, *args: None if module == "fsspec" else find_spec(module, *args),
    )
    monkeypatch.setitem(sys.modules, "fsspec", None)


@pytest.mark.usefixtures("no_fsspec")
def test_without_fsspec(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match=r"tpu_compile\[remote\]"):
        tpu_compile.CompileOptions(cache_dir="gs://bucket/x")
    with pytest.raises(OptionError, match=r"tpu_compile\[remote\]"):
        RemoteStore("gs://bucket/x", None)
    monkeypatch.setenv("TPU_COMPILE_CACHE_DIR", "gs://bucket/x")
    with pytest.raises(OptionError, match="TPU_COMPILE_CACHE_DIR"):
        tpu_compile.CompileOptions().resolved_cache_dir()


@pytest.mark.usefixtures("no_fsspec")
def test_a_file_url_needs_no_fsspec(tmp_path: Path) -> None:
    assert run(f"file://{tmp_path}/cache") == (1, 0)
    assert run(f"{tmp_path}/cache") == (0, 1)


def test_times_of_drivers() -> None:
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    seconds = moment.timestamp()
    entries: list[dict[str, Any]] = [
        {"mtime": seconds},
        {"LastModified": moment},
        {"last_modified": moment.replace(tzinfo=None)},
        {"updated": "2026-01-02T03:04:05Z"},
        {"created": moment, "mtime": None},
        {"created": moment, "updated": "yesterday"},
    ]
    assert [_time_of(entry) for entry in entries] == [seconds] * len(entries)
    assert _time_of({"name": "x"}) == 0.0
