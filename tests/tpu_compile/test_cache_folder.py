"""The persistent cache's local folder: its bound, and who may write to it.

Programs are stand-ins, but for those that `run` compiles.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import tpu_compile
from tests.tpu_compile.caching import age, name, run
from tests.tpu_compile.comparing import compiled
from tpu_compile.errors import TpuCompileWarning
from tpu_compile.runtime import pjrt
from tpu_compile.runtime.stored_programs import (
    name_of,
    stored_programs,
)
from tpu_compile.runtime.stores import LocalStore, TooLargeError, UnsafeStoreError, local, store_at

IS_ROOT = os.geteuid() == 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def fresh_stores() -> None:
    store_at.cache_clear()


def total(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


# --- bound and order -----------------------------------------------------------------------------


def test_the_least_recently_used_goes_first(folder: Path) -> None:
    store = LocalStore(str(folder), 100)
    for number in range(4):
        store.write(name(number), bytes(25))
        age(folder / name(number), 100 - number)
    assert store.read(name(0)) == bytes(25)
    store.write(name(4), bytes(25))
    assert {file.name for file in store.programs()} == {name(n) for n in (0, 2, 3, 4)}
    store.write(name(5), bytes(60))
    assert {file.name for file in store.programs()} == {name(4), name(5)}


def test_looking_is_no_use(folder: Path) -> None:
    store = LocalStore(str(folder), 50)
    for number in (0, 1):
        store.write(name(number), bytes(25))
        age(folder / name(number), 100 - number)
    store.read(name(0), is_use=False)
    store.write(name(2), bytes(25))
    assert {file.name for file in store.programs()} == {name(1), name(2)}


def test_a_program_over_the_bound_is_not_stored_and_evicts_nothing(folder: Path) -> None:
    store = LocalStore(str(folder), 50)
    store.write(name(0), bytes(50))
    with pytest.raises(TooLargeError, match="larger `cache_size`"):
        store.write(name(1), bytes(51))
    assert [file.name for file in store.programs()] == [name(0)]
    store.write(name(0), b"y" * 50)
    assert store.read(name(0)) == b"y" * 50


def test_too_large_is_said_once(folder: Path) -> None:
    with pytest.warns(TpuCompileWarning, match="may take 1024 bytes") as said:
        assert run(folder, 3.5, cache_size="1KiB") == (1, 0)
    assert len(said) == 1
    assert not folder.exists()
    tpu_compile.reset()

    def compile_two() -> None:
        for size in (2, 3):
            torch._dynamo.reset()
            compiled(lambda x: x * 5.5, cache_dir=str(folder), cache_size=10)(torch.ones(size))

    with pytest.warns(TpuCompileWarning) as said:
        compile_two()
    assert len(said) == 1


def test_the_bound_of_compiles(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(folder, 3.5)
    one = total(folder)
    monkeypatch.setenv("TPU_COMPILE_CACHE_SIZE", str(2 * one + one // 2))
    for factor in (4.5, 5.5, 6.5):
        run(folder, factor)
    assert total(folder) <= 2 * one + one // 2
    assert run(folder, 6.5) == (0, 1)
    assert run(folder, 3.5) == (1, 0)
    # The option wins over the environment.
    run(folder, 7.5, cache_size=one + one // 2)
    assert len(list(folder.glob("*.xla"))) == 1
    monkeypatch.setenv("TPU_COMPILE_CACHE_SIZE", "much")
    with pytest.raises(tpu_compile.OptionError, match="TPU_COMPILE_CACHE_SIZE is 'much'"):
        run(folder, 8.5)


def test_drafts_of_dead_processes_count_and_go(folder: Path) -> None:
    store = LocalStore(str(folder), 100)
    store.write(name(0), bytes(40))
    draft = folder / f"{7:064x}_123_abc.tmp"
    draft.write_bytes(bytes(90))
    others = [folder / "notes.tmp", folder / "notes.txt"]
    for path in others:
        path.write_bytes(bytes(500))
    assert [left.name for left in store.leftovers()] == [draft.name]
    store.write(name(1), bytes(40))
    assert not draft.exists()
    assert all(path.exists() for path in others)
    assert len(store.programs()) == 2


def test_drafts_are_kept_while_another_process_stores(folder: Path) -> None:
    store = LocalStore(str(folder), 100)
    store.write(name(0), bytes(10))
    fresh, old = (folder / f"{n:064x}_1_a.tmp" for n in (8, 9))
    for path in (fresh, old):
        path.write_bytes(b"draft")
    age(old, 2 * 3600)
    with open(folder / "lock", "r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert [left.name for left in store.leftovers()] == [old.name]


def test_a_file_system_without_locks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    store = LocalStore(str(folder), 100)
    store.write(name(0), bytes(10))
    fresh, old = (folder / f"{n:064x}_1_a.tmp" for n in (8, 9))
    for path in (fresh, old):
        path.write_bytes(bytes(30))
    age(old, 2 * 3600)
    store.write(name(1), bytes(65))
    # The fresh draft may be another's: it counts, and stays.
    assert sorted(path.name for path in folder.iterdir()) == [name(1), fresh.name, "lock"]


def test_a_process_that_is_stopped_while_it_stores(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_LOCK_SECONDS", 0.2)
    run(folder, 3.5)
    with open(folder / "lock", "r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        numbers = random.getstate()
        with pytest.warns(TpuCompileWarning, match="held its lock"):
            assert run(folder, 4.5) == (1, 0)
        assert random.getstate() == numbers
        assert run(folder, 3.5) == (0, 1)
    # It is not waited for again at each program.
    with pytest.warns(TpuCompileWarning, match="held its lock"):
        assert run(folder, 4.5) == (1, 0)
    later = time.monotonic() + 301
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert run(folder, 4.5) == (1, 0)
    assert run(folder, 4.5) == (0, 1)


def test_two_threads(folder: Path) -> None:
    store = LocalStore(str(folder), 1000)
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for step in range(60):
                number = (seed * 7 + step) % 9
                data = store.read(name(number))
                assert data is None or data == bytes([number]) * 300
                store.write(name(number), bytes([number]) * 300)
                assert total(folder) <= 1000
        except FileNotFoundError:
            pass  # `total` met a file that the other thread removed.
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert total(folder) <= 1000
    assert not list(folder.glob("*.tmp"))


def test_a_clock_that_was_wrong(folder: Path) -> None:
    store = LocalStore(str(folder), 100)
    for number in range(3):
        store.write(name(number), bytes(30))
    age(folder / name(0), -1e6)
    age(folder / name(1), 10)
    age(folder / name(2), 20)
    store.write(name(3), bytes(30))
    # It was used at an unknown time: now, so far as anybody can tell, and it ages from here.
    assert (folder / name(0)).stat().st_mtime <= time.time()
    assert not (folder / name(2)).exists()


# --- who may write -------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o1777])
def test_a_folder_that_others_can_write_is_refused(folder: Path, mode: int) -> None:
    assert run(folder) == (1, 0)
    assert run(folder) == (0, 1)
    folder.chmod(mode)
    with pytest.warns(TpuCompileWarning, match=r"other users can write.*chmod go-w") as said:
        assert run(folder) == (1, 0)
    assert len(said) == 1
    folder.chmod(0o755)
    assert run(folder) == (0, 1)


def test_a_folder_is_made_for_its_user_alone(folder: Path) -> None:
    old = os.umask(0o000)
    try:
        run(folder)
    finally:
        os.umask(old)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


def test_a_folder_of_another_user(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(str(folder), 100)
    store.write(name(0), b"x")
    if IS_ROOT:
        os.chown(folder, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(UnsafeStoreError, match="belongs to another user"):
        store.read(name(0))
    with pytest.raises(UnsafeStoreError, match="belongs to another user"):
        store.write(name(1), b"y")


def make_link(path: Path) -> None:
    path.rename(path.parent / "elsewhere")
    path.symlink_to(path.parent / "elsewhere")


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda path: path.chmod(0o620), "other users can write"),
        (make_link, "symbolic link"),
        (make_pipe, "no file"),
    ],
)
def test_a_file_that_is_refused_is_replaced(folder: Path, change: Any, reason: str) -> None:
    run(folder)
    (path,) = folder.glob("*.xla")
    change(path)
    with pytest.warns(TpuCompileWarning, match=reason):
        assert run(folder) == (1, 0)
    assert run(folder) == (0, 1)
    assert path.is_file()
    assert not path.is_symlink()


@pytest.mark.skipif(not IS_ROOT, reason="only root gives files away")
def test_a_file_of_another_user(folder: Path) -> None:
    run(folder)
    (path,) = folder.glob("*.xla")
    os.chown(path, 12345, -1)
    (program,) = stored_programs(store_at(str(folder)))
    assert (program.state, program.parts) == ("refused", None)
    with pytest.warns(TpuCompileWarning, match="another user"):
        assert run(folder) == (1, 0)


def test_a_link_to_a_folder_is_that_folder(folder: Path, tmp_path: Path) -> None:
    run(folder)
    (tmp_path / "link").symlink_to(folder)
    assert run(tmp_path / "link") == (0, 1)
    folder.chmod(0o777)
    with pytest.warns(TpuCompileWarning, match="other users"):
        assert run(tmp_path / "link") == (1, 0)


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["Schöne Größe ☃", "with space", "a'b\"c", "x" * 200])
def test_names_of_folders(tmp_path: Path, given: str) -> None:
    assert run(tmp_path / given) == (1, 0)
    assert run(f"file://{tmp_path / given}") == (0, 1)


def test_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run("~/programs") == (1, 0)
    assert len(list((tmp_path / "programs").glob("*.xla"))) == 1
    monkeypatch.setenv("TPU_COMPILE_CACHE_DIR", "~/programs")
    tpu_compile.reset()
    compiled(lambda x: x * 3.5)(torch.ones(2))
    assert tpu_compile.stats().disk_hits == 1


def test_a_platform_that_cannot_serialize(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any, program: Any) -> bytes:
        raise tpu_compile.CompilationError("cannot store an executable")

    monkeypatch.setattr(pjrt.Client, "serialize", refuse)
    with pytest.warns(TpuCompileWarning, match="cannot store an executable"):
        assert run(folder) == (1, 0)
    assert not folder.exists()


def test_nothing_is_said_of_a_healthy_cache(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(folder) == (1, 0)
        assert run(folder) == (0, 1)
    assert name_of("k") == "k.xla"
