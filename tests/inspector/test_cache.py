"""`cache ls|why|gc`, and the files that the persistent cache writes."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import tpu_compile
from tests.tpu_compile.comparing import compiled
from tpu_compile.errors import TpuCompileWarning
from tpu_compile.inspector.cache import parse_age, parse_size
from tpu_compile.inspector.cli import main
from tpu_compile.runtime import stored_programs
from tpu_compile.runtime.stores import store_at

HOUR = 3600.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def store(folder: Path, factor: float, size: int = 2, **options: Any) -> Path:
    """Compile a small program into the cache and return its file."""
    # Dynamo would take `factor` or `size` as dynamic the second time.
    tpu_compile.reset()
    before = set(folder.glob("*.xla"))
    compiled(lambda x: x * factor, cache_dir=str(folder), **options)(torch.ones(size))
    (path,) = set(folder.glob("*.xla")) - before
    return path


def set_age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["cache", "ls", "--json", "--dir", str(folder)]) == 0
    return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]


def test_ls(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = store(folder, 3.5)
    set_age(path, 3 * HOUR)
    (folder / "notes.txt").write_text("not ours")
    (folder / f"{'0' * 64}.xla").mkdir()
    found = listed(folder, capsys)
    (program,) = found["programs"]
    assert program["key"] == path.stem
    assert program["size"] == found["size"] == path.stat().st_size
    assert program["age_seconds"] == pytest.approx(3 * HOUR, abs=60)
    assert program["state"] == "intact"
    assert program["parts"]["inputs"] == ["float32[2]"]
    assert program["parts"]["function"] == "<lambda> inference"
    assert program["parts"]["versions"]["platform"] == "cpu"
    assert main(["cache", "ls", "--dir", str(folder)]) == 0
    text = capsys.readouterr().out
    assert path.stem[:12] in text
    assert "3h ago" in text
    assert "<lambda> inference for float32[2]" in text


def test_a_stored_file_names_no_path(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store(folder, 3.75)
    (program,) = listed(folder, capsys)["programs"]
    assert str(Path(__file__).parent) not in json.dumps(program)
    assert Path(__file__).name not in json.dumps(program)


def test_states_of_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = store(folder, 4.5)
    data = bytearray(damaged.read_bytes())
    # Within the JSON that says what the program is: it is covered like the program itself.
    data[len(stored_programs.FORMAT) + 32 + 10] ^= 1
    damaged.write_bytes(data)
    (folder / f"{'a' * 64}.xla").write_bytes(b"tpu_compile-program-1\n" + bytes(40))
    other = store(folder, 4.25)
    (folder / f"{'c' * 64}.xla").write_bytes(other.read_bytes())
    (folder / f"{'d' * 64}.xla").write_bytes(b"")
    (folder / f"{'d' * 64}.xla").chmod(0o666)
    (folder / f"{'b' * 64}.xla").write_bytes(b"")
    states = {each["key"]: each["state"] for each in listed(folder, capsys)["programs"]}
    assert states == {
        damaged.stem: "damaged",
        other.stem: "intact",
        "a" * 64: "other format",
        "b" * 64: "damaged",
        "c" * 64: "under another key",
        "d" * 64: "refused",
    }
    tpu_compile.reset()
    with pytest.warns(TpuCompileWarning, match="is damaged"):
        compiled(lambda x: x * 4.5, cache_dir=str(folder))(torch.ones(2))
    assert tpu_compile.stats().disk_hits == 0
    states = {each["key"]: each["state"] for each in listed(folder, capsys)["programs"]}
    assert states[damaged.stem] == "intact"


def test_loading_is_a_use(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = store(folder, 5.5)
    set_age(path, 5 * HOUR)
    tpu_compile.reset()
    compiled(lambda x: x * 5.5, cache_dir=str(folder))(torch.ones(2))
    assert tpu_compile.stats().disk_hits == 1
    assert listed(folder, capsys)["programs"][0]["age_seconds"] < 60


def test_a_folder_that_cannot_be_written_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(folder, 6.5)
    tpu_compile.reset()

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise PermissionError("read-only file system")

    monkeypatch.setattr(os, "utime", refuse)
    compiled(lambda x: x * 6.5, cache_dir=str(folder))(torch.ones(2))
    assert tpu_compile.stats().disk_hits == 1


def why(folder: Path, first: Path, second: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert main(["cache", "why", first.stem[:12], second.stem[:12], "--dir", str(folder)]) == 0
    return capsys.readouterr().out.splitlines()


def test_why_names_what_differs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = store(folder, 7.5)
    wider = store(folder, 7.5, size=4)
    lines = why(folder, first, wider, capsys)
    assert [line.partition(":")[0] for line in lines] == ["module text", "input 0"]
    assert lines[1] == "input 0: float32[2] and float32[4]"
    fast = store(folder, 7.5, xla_options={"xla_cpu_enable_fast_math": True})
    assert why(folder, first, fast, capsys) == [
        "XLA option xla_cpu_enable_fast_math: (none) and True"
    ]
    assert why(folder, first, first, capsys) == ["the two are one program"]


def test_why_names_versions(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = store(folder, 8.5)
    cache = store_at(str(folder))
    parts = dict(stored_programs.stored_programs(cache)[0].parts or {})
    parts["versions"] = {**parts["versions"], "jaxlib": "0.9.9"}
    parts["compiler_flags"] = {"XLA_FLAGS": "--xla_x=1"}
    second = folder / stored_programs.name_of(stored_programs.key_of(parts))
    cache.write(second.name, stored_programs.packed(parts, b"program"))
    version, flags = why(folder, first, second, capsys)
    assert version.startswith("version of jaxlib: ")
    assert version.endswith("and 0.9.9")
    assert flags == "flags in XLA_FLAGS: (none) and --xla_x=1"


def test_why_needs_two_intact_programs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = store(folder, 9.5)
    (folder / f"{'a' * 64}.xla").write_bytes(b"tpu_compile-program-1\n")
    options = ["--dir", str(folder)]
    assert main(["cache", "why", path.stem, "aaaaaa", *options]) == 10
    assert "another version of tpu_compile" in capsys.readouterr().err
    assert main(["cache", "why", path.stem, "zzz", *options]) == 2
    assert "cache ls" in capsys.readouterr().err
    assert main(["cache", "why", path.stem, "", *options]) == 2
    assert "a longer beginning" in capsys.readouterr().err
    assert main(["cache", "why", path.stem, *options]) == 2
    assert "two keys" in capsys.readouterr().err


def test_gc_by_age_size_and_state(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    newest, middle, oldest = (store(folder, factor) for factor in (10.5, 11.5, 12.5))
    for path, hours in ((newest, 1), (middle, 2), (oldest, 50)):
        set_age(path, hours * HOUR)
    damaged = folder / f"{'d' * 64}.xla"
    damaged.write_bytes(b"half")
    stale, fresh = folder / f"{'e' * 64}x_1.tmp", folder / f"{'f' * 64}x_2.tmp"
    for path in (stale, fresh, folder / "other.tmp"):
        path.write_bytes(b"draft")
    # Somebody is storing: only what is an hour old is nobody's.
    lock = open(folder / "lock", "r+b")  # noqa: SIM115
    fcntl.flock(lock, fcntl.LOCK_EX)
    set_age(stale, 2 * HOUR)
    set_age(folder / "other.tmp", 2 * HOUR)
    before = sorted(folder.iterdir())

    options = ["--dir", str(folder), "--older-than", "1d"]
    assert main(["cache", "gc", *options, "--dry-run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    reasons = {each["file"]: each["reason"] for each in found["removed"]}
    assert reasons == {stale.name: "leftover", damaged.name: "damaged", oldest.name: "used 2d ago"}
    assert sorted(folder.iterdir()) == before

    lock.close()
    assert main(["cache", "gc", *options]) == 0
    assert "4 files removed" in capsys.readouterr().out
    assert sorted(folder.iterdir()) == sorted(
        [newest, middle, folder / "lock", folder / "other.tmp"]
    )

    limit = str(newest.stat().st_size + 1)
    assert main(["cache", "gc", "--dir", str(folder), "--max-size", limit]) == 0
    assert newest.exists()
    assert not middle.exists()


def test_gc_without_rules_keeps_every_program(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = store(folder, 13.5)
    set_age(path, 10000 * HOUR)
    assert main(["cache", "gc", "--dir", str(folder)]) == 0
    assert "0 files removed" in capsys.readouterr().out
    assert path.exists()


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["ls"], 2, "TPU_COMPILE_CACHE_DIR"),
        (["ls", "--dir", "no_such_folder"], 10, "no_such_folder is no folder"),
        (["ls", "3f"], 2, "it takes no argument"),
        (["ls", "--dry-run"], 2, "cache gc"),
        (["ls", "--dir", "nosuch://x"], 2, "Protocol not known"),
        (["gc", "3f"], 2, "it takes no argument"),
    ],
)
def test_wrong_arguments(
    arguments: list[str],
    code: int,
    part: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TPU_COMPILE_CACHE_DIR", raising=False)
    assert main(["cache", *arguments]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert part in line


def test_the_folder_of_the_environment(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store(folder, 14.5)
    monkeypatch.setenv("TPU_COMPILE_CACHE_DIR", str(folder))
    assert main(["cache", "ls"]) == 0
    assert f" of 10.0 GiB in {folder}" in capsys.readouterr().out
    monkeypatch.setenv("TPU_COMPILE_CACHE_SIZE", "5MiB")
    assert main(["cache", "ls"]) == 0
    assert f" of 5.0 MiB in {folder}" in capsys.readouterr().out
    folder.chmod(0o777)
    assert main(["cache", "ls"]) == 10
    assert f"chmod go-w {folder}" in capsys.readouterr().err


def test_sizes_and_ages() -> None:
    sizes = [parse_size(text) for text in ("7", "1k", "1.5MB", "2GiB", "1 TiB")]
    assert sizes == [7, 1024, 3 * 2**19, 2**31, 2**40]
    ages = [parse_age(text) for text in ("90m", "12h", "30d", "2w")]
    assert ages == [5400.0, 43200.0, 2592000.0, 1209600.0]


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_size, "big"),
        (parse_size, "-1"),
        (parse_size, "0"),
        (parse_age, "30"),
        (parse_age, ""),
    ],
)
def test_bad_sizes_and_ages(parse: Any, text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="such as"):
        parse(text)
