"""Stored programs as one file, and files that pretend to be one."""

from __future__ import annotations

import io
import json
import os
import random
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import tpu_compile
from tests.tpu_compile.comparing import compiled
from tpu_compile.inspector.cli import main
from tpu_compile.runtime import archive
from tpu_compile.runtime.archive import ArchiveError, export_programs, import_programs
from tpu_compile.runtime.stored_programs import key_of, name_of, packed, stored_programs
from tpu_compile.runtime.stores import LocalStore


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """Three programs, the first of them the least recently used."""
    store = LocalStore(str(tmp_path / "cache"), 10**6)
    for number in range(3):
        key, data = program(number)
        store.write(name_of(key), data)
        then = time.time() - 100 + number
        os.utime(tmp_path / "cache" / name_of(key), (then, then))
    return store


def program(number: int) -> tuple[str, bytes]:
    parts = {"module": f"{number}", "versions": {}, "xla_options": {}, "compiler_flags": {}}
    return key_of(parts), packed(parts, bytes([number]) * 1000)


def keys(store: LocalStore) -> set[str]:
    return {each.key for each in stored_programs(store)}


def member(name: str, data: bytes, **fields: Any) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    return info.tobuf(tarfile.USTAR_FORMAT) + data + bytes(-len(data) % 512)


END = bytes(1024)


def test_there_and_back(store: LocalStore, tmp_path: Path) -> None:
    target = tmp_path / "programs.tar"
    report = export_programs(store, target)
    assert set(report.done) == keys(store)
    assert report.size == sum(file.size for file in store.programs())
    assert target.stat().st_mode & 0o777 == 0o600
    with tarfile.open(target) as tar:
        assert tar.getnames() == [name_of(program(number)[0]) for number in range(3)]
    other = LocalStore(str(tmp_path / "other"), 10**6)
    assert set(import_programs(target, other).done) == keys(store) == keys(other)
    assert all(other.read(name_of(key)) == data for key, data in map(program, range(3)))
    again = import_programs(target, other)
    assert (again.done, again.present, again.passed_over) == ([], 3, 0)
    # Equal programs and times of last use, equal archives.
    os.rename(target, tmp_path / "first.tar")
    export_programs(store, target)
    assert target.read_bytes() == (tmp_path / "first.tar").read_bytes()


def test_some_programs(store: LocalStore, tmp_path: Path) -> None:
    chosen = program(1)[0]
    assert export_programs(store, tmp_path / "one.tar", [chosen]).done == [chosen]


def test_a_smaller_store_keeps_the_last_used(store: LocalStore, tmp_path: Path) -> None:
    export_programs(store, tmp_path / "programs.tar")
    size = len(program(0)[1])
    small = LocalStore(str(tmp_path / "small"), size + size // 2)
    assert len(import_programs(tmp_path / "programs.tar", small).done) == 3
    assert keys(small) == {program(2)[0]}
    tiny = LocalStore(str(tmp_path / "tiny"), 10)
    report = import_programs(tmp_path / "programs.tar", tiny)
    assert (report.done, report.passed_over) == ([], 3)
    assert "may take 10 bytes" in report.reasons[0][1]


def test_damaged_programs_are_not_exported(store: LocalStore, tmp_path: Path) -> None:
    path = tmp_path / "cache" / name_of(program(0)[0])
    path.write_bytes(path.read_bytes()[:-1])
    path.chmod(0o600)
    (tmp_path / "cache" / name_of(program(1)[0])).chmod(0o666)
    report = export_programs(store, tmp_path / "programs.tar")
    assert report.done == [program(2)[0]]
    reasons = sorted(reason for _, reason in report.reasons)
    assert reasons[0] == "it is damaged"
    assert "other users can write" in reasons[1]


def test_foreign_members_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("safe")
    key, data = program(0)
    other_key = program(1)[0]
    tar = tmp_path / "programs.tar"
    tar.write_bytes(
        member("../victim", b"evil")
        + member(str(tmp_path / "victim"), b"evil")
        + member(f"../{name_of(key)}", data)
        + member(f"x/{name_of(key)}", data)
        + member(name_of(other_key), data)
        + member(name_of(key), b"", type=tarfile.SYMTYPE, linkname="/etc/passwd")
        + member(name_of(key), b"", type=tarfile.LNKTYPE, linkname="victim")
        + member("./@PaxHeader", b"30 path=../../victim\n", type=tarfile.XHDTYPE)
        + member(name_of(key), data[:-1])
        + member(name_of(key).upper(), data)
        + member(name_of(key), data)
        + END
    )
    store = LocalStore(str(tmp_path / "cache"), 10**6)
    report = import_programs(tar, store)
    assert report.done == [key]
    assert report.passed_over == 10
    reasons = [reason for _, reason in report.reasons]
    assert reasons.count("it is no file of a program") == 8
    assert "it is under another key" in reasons
    assert "it is damaged" in reasons
    assert (tmp_path / "victim").read_text() == "safe"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cache", "programs.tar", "victim"]


def test_what_is_passed_over_takes_no_memory(tmp_path: Path) -> None:
    tar = tmp_path / "programs.tar"
    tar.write_bytes(member("x" * 90, b"") * 5000 + END)
    report = import_programs(tar, LocalStore(str(tmp_path / "cache"), 100))
    assert report.passed_over == 5000
    assert len(report.reasons) == 20


def test_a_huge_member_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "LARGEST_PROGRAM", 10_000)
    tar = tmp_path / "programs.tar"
    key, data = program(0)
    tar.write_bytes(member(name_of(key), bytes(20_480)) + member(name_of(key), data) + END)
    reads: list[int] = []
    real_open = open

    class Watched(io.FileIO):
        def read(self, size: int = -1) -> bytes:
            reads.append(size)
            return super().read(size)

    monkeypatch.setattr(
        archive,
        "open",
        lambda path, mode: Watched(path) if path == tar else real_open(path, mode),
        raising=False,
    )
    report = import_programs(tar, LocalStore(str(tmp_path / "cache"), 10**6))
    assert report.done == [key]
    assert "larger than a program can be" in report.reasons[0][1]
    assert max(reads) < 10_000
    assert min(reads) >= 0


@pytest.mark.parametrize("size", [2**40, 2**62, 2**80])
def test_a_member_that_is_longer_than_the_file(tmp_path: Path, size: int) -> None:
    info = tarfile.TarInfo(name_of("0" * 64))
    info.size = size
    tar = tmp_path / "programs.tar"
    tar.write_bytes(info.tobuf(tarfile.GNU_FORMAT) + b"little")
    with pytest.raises(ArchiveError, match="ends early"):
        import_programs(tar, LocalStore(str(tmp_path / "cache"), 100))


def test_a_negative_size(tmp_path: Path) -> None:
    info = tarfile.TarInfo(name_of("0" * 64))
    info.size = -512
    tar = tmp_path / "programs.tar"
    tar.write_bytes(info.tobuf(tarfile.GNU_FORMAT) + END)
    with pytest.raises(ArchiveError, match="negative"):
        import_programs(tar, LocalStore(str(tmp_path / "cache"), 100))


def test_truncation_is_an_error_and_what_came_before_is_stored(
    store: LocalStore, tmp_path: Path
) -> None:
    tar = tmp_path / "programs.tar"
    export_programs(store, tar)
    whole = tar.read_bytes()
    for length in (0, 1, 511, 512, 600, 1800, 2048, len(whole) - 1024):
        tar.write_bytes(whole[:length])
        other = LocalStore(str(tmp_path / f"other{length}"), 10**6)
        with pytest.raises(ArchiveError):
            import_programs(tar, other)
    assert keys(other) == keys(store)


def test_noise_never_stores_anything_wrong(store: LocalStore, tmp_path: Path) -> None:
    tar = tmp_path / "programs.tar"
    export_programs(store, tar)
    whole = tar.read_bytes()
    chance = random.Random(0)
    other = LocalStore(str(tmp_path / "other"), 10**6)
    errors = 0
    for _ in range(300):
        changed = bytearray(whole)
        for _ in range(chance.randrange(1, 4)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        tar.write_bytes(changed)
        try:
            import_programs(tar, other)
        except ArchiveError:
            errors += 1
        assert all(each.state == "intact" for each in stored_programs(other))
        other.remove(file.name for file in other.programs())
    assert 0 < errors < 300


def test_a_full_disk_leaves_the_earlier_archive(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "programs.tar"
    target.write_text("earlier")

    def refuse(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archive, "_add", refuse)
    with pytest.raises(OSError, match="No space"):
        export_programs(store, target)
    assert target.read_text() == "earlier"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "programs.tar"]


# --- the command line ----------------------------------------------------------------------------


def run(folder: Path, factor: float) -> int:
    tpu_compile.reset()
    result = compiled(lambda x: x * factor, cache_dir=str(folder))(torch.ones(2))
    assert torch.equal(result, torch.full((2,), factor))
    return tpu_compile.stats().disk_hits


def test_programs_of_compiles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here, there, tar = tmp_path / "here", tmp_path / "there", str(tmp_path / "programs.tar")
    run(here, 3.5)
    (first,) = here.glob("*.xla")
    run(here, 4.5)
    chosen = first.stem[:8]
    assert main(["cache", "export", tar, chosen, "--dir", str(here), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["programs"] == [first.stem]
    assert main(["cache", "import", tar, "--dir", str(there)]) == 0
    assert "1 programs" in capsys.readouterr().out
    assert run(there, 3.5) == 1
    assert run(there, 4.5) == 0
    assert main(["cache", "export", tar, "--dir", str(here)]) == 0
    assert main(["cache", "import", tar, "--dir", str(there)]) == 0
    assert "0 programs, 0 B stored" in capsys.readouterr().out
    assert main(["cache", "export", tar, "--dir", "memory://import/x"]) == 0
    assert main(["cache", "export", tar, "--dir", str(here)]) == 0
    assert main(["cache", "import", tar, "--dir", "memory://import/x"]) == 0
    assert "2 programs" in capsys.readouterr().out


def test_errors_of_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = ["--dir", str(tmp_path)]
    assert main(["cache", "import", str(tmp_path / "none.tar"), *folder]) == 10
    (tmp_path / "text").write_text("no archive " * 100)
    assert main(["cache", "import", str(tmp_path / "text"), *folder]) == 10
    assert "no archive of compiled programs" in capsys.readouterr().err
    (tmp_path / "foreign.tar").write_bytes(member("a.txt", b"text") + END)
    assert main(["cache", "import", str(tmp_path / "foreign.tar"), *folder]) == 1
    assert "passed over 'a.txt'" in capsys.readouterr().err
    assert main(["cache", "export", str(tmp_path / "x.tar"), "zzz", *folder]) == 2
    assert main(["cache", "export", str(tmp_path / "none" / "x.tar"), *folder]) == 10
    assert main(["cache", "export", *folder]) == 2
    assert "a file, and then keys" in capsys.readouterr().err
    assert main(["cache", "import", "a", "b", *folder]) == 2
    tmp_path.chmod(0o777)
    assert main(["cache", "export", str(tmp_path / "x.tar"), *folder]) == 10
    assert "chmod go-w" in capsys.readouterr().err
