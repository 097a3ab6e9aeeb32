"""The key of a program: what is in it, what is not, and that it is the same everywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import tpu_compile
from tests.tpu_compile.comparing import compiled
from tpu_compile.runtime.cache import key_parts
from tpu_compile.runtime.pjrt import Client
from tpu_compile.runtime.pjrt.identity import compiler_flags, library_digest
from tpu_compile.runtime.platforms import current_client
from tpu_compile.runtime.stored_programs import KEY_PARTS, key_of, stored_programs
from tpu_compile.runtime.stores import store_at

ROOT = Path(__file__).parent.parent.parent

SCRIPT = """
import sys
import torch
{blank_lines}
def function(x, y):
    z = torch.relu(x @ y)
    x.add_(1)
    return {{"b": z, "a": z.sum()}}
options = {{"cache_dir": sys.argv[1], "xla_options": {xla_options}}}
torch.compile(function, backend="tpu", options=options)(torch.ones(2, 3), torch.ones(3, 2))
"""


def keys_of_process(
    place: Path, seed: int, blank_lines: int = 0, xla_options: str = "{}", **environment: str
) -> dict[str, Any]:
    """Return key and parts of what a script in the folder `place` compiles."""
    place.mkdir()
    script = place / f"script_{seed}.py"
    script.write_text(SCRIPT.format(blank_lines="\n" * blank_lines, xla_options=xla_options))
    done = subprocess.run(
        [sys.executable, str(script), str(place / "cache")],
        cwd=place,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTHONHASHSEED": str(seed),
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    programs = stored_programs(store_at(str(place / "cache")))
    return {program.key: program.parts for program in programs}


def test_equal_in_two_processes_folders_and_hash_seeds(tmp_path: Path) -> None:
    one = "{'xla_cpu_enable_fast_math': True, 'xla_cpu_enable_fast_min_max': True}"
    other = "{'xla_cpu_enable_fast_min_max': True, 'xla_cpu_enable_fast_math': True}"
    first = keys_of_process(tmp_path / "first", 1, 0, one)
    dumps = f"--xla_dump_to={tmp_path / 'dumps'}"
    second = keys_of_process(tmp_path / "other place", 2, 30, other, XLA_FLAGS=dumps)
    assert len(first) == 1
    assert first == second
    text = json.dumps(first)
    assert str(tmp_path) not in text
    assert "script_1" not in text
    assert (tmp_path / "dumps").is_dir()


def test_flags_of_the_environment_make_another_key(tmp_path: Path) -> None:
    flags = "--xla_cpu_enable_fast_math=true"
    (plain,) = keys_of_process(tmp_path / "plain", 0).items()
    (fast,) = keys_of_process(tmp_path / "fast", 0, XLA_FLAGS=flags).items()
    assert plain[0] != fast[0]
    assert fast[1]["compiler_flags"] == {"XLA_FLAGS": flags}
    assert {name for name in plain[1] if plain[1][name] != fast[1][name]} == {"compiler_flags"}


@pytest.mark.parametrize(
    ("options", "same"),
    [
        ({"matmul_precision": "default"}, False),
        ({"xla_options": {"xla_cpu_enable_fast_math": True}}, False),
        ({"cache_size": "1GiB"}, True),
        ({"cache_verify": True}, True),
        ({"max_padding": 0.25}, True),
    ],
)
def test_options(options: dict[str, Any], same: bool, tmp_path: Path) -> None:
    keys = []
    for index, given in enumerate(({"matmul_precision": "highest"}, options)):
        tpu_compile.reset()
        folder = tmp_path / str(index)
        given = {"matmul_precision": "highest", **given}
        compiled(lambda x: x @ x, cache_dir=str(folder), **given)(torch.ones(2, 2))
        keys += [path.name for path in folder.glob("*.xla")]
    assert len(keys) == 2
    assert (keys[0] == keys[1]) is same


def test_every_part_of_the_key_counts() -> None:
    client = current_client()
    parts = key_parts("module", (("a", 1),), client)
    assert set(parts) == set(KEY_PARTS)
    assert {"platform", "plugin", "jaxlib", "device", "processor"} == set(parts["versions"])
    keys = {key_of(parts)}
    for changed in (
        key_parts("module2", (("a", 1),), client),
        key_parts("module", (("a", True),), client),
        key_parts("module", (("a", 1.0),), client),
        key_parts("module", (("a", "1"),), client),
        key_parts("module", (("b", 1),), client),
        key_parts("module", (), client),
        {**parts, "compiler_flags": {"XLA_FLAGS": "--a"}},
        *({**parts, "versions": {**parts["versions"], name: "x"}} for name in parts["versions"]),
    ):
        keys.add(key_of(changed))
    assert len(keys) == 13
    assert key_of({**parts, "function": "f", "settings": {}}) == key_of(parts)
    assert key_of(json.loads(json.dumps(parts))) == key_of(parts)


class FakeDevice:
    device_kind = "TPU v9"

    def __init__(self, *coords: int) -> None:
        self.coords = coords


class FakeTpu:
    platform_version = "libtpu 1"

    def __init__(self, *devices: FakeDevice) -> None:
        self.all = devices

    def local_devices(self) -> list[FakeDevice]:
        return list(self.all)

    devices = local_devices


def test_versions_of_a_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "libtpu.so"
    library.write_bytes(b"a build")
    monkeypatch.setenv("PJRT_NAMES_AND_LIBRARY_PATHS", f"tpu:{library}")
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_x=1")
    monkeypatch.setattr("tpu_compile.runtime.pjrt.client._jax.DeviceList", lambda devices: devices)
    monkeypatch.setattr("tpu_compile.runtime.pjrt.client._Sharding", lambda device: device)
    client = Client(
        "tpu", FakeTpu(FakeDevice(0, 0, 0), FakeDevice(1, 0, 0)), aliases_host_memory=False
    )
    assert client.versions["topology"] == "2 devices in 2x1x1"
    assert client.versions["device"] == "TPU v9"
    assert client.versions["plugin"] == "libtpu 1"
    assert client.versions["library"] == library_digest(str(library))
    assert str(tmp_path) not in client.version
    assert client.compiler_flags == {"LIBTPU_INIT_ARGS": "--xla_tpu_x=1"}


def test_builds_of_a_library(tmp_path: Path) -> None:
    path = tmp_path / "plugin.so"
    digests = set()
    for data in (b"a", b"b", bytes(5 * 2**20), bytes(5 * 2**20 + 1), bytes(5 * 2**20 - 1) + b"x"):
        path.write_bytes(data)
        library_digest.cache_clear()
        digests.add(library_digest(str(path)))
    assert len(digests) == 5


def test_flags(tmp_path: Path) -> None:
    def flags(platform: str = "tpu", **environment: str) -> dict[str, str]:
        return compiler_flags(platform, environment)

    assert flags() == flags(XLA_FLAGS="  ") == flags(XLA_FLAGS="--xla_dump_to=/home/me") == {}
    assert flags(XLA_FLAGS=" --b=1   --a=2 ") == {"XLA_FLAGS": "--b=1 --a=2"}
    assert flags(XLA_FLAGS="--b=1 --b=2") != flags(XLA_FLAGS="--b=2 --b=1")
    assert flags("cpu", LIBTPU_INIT_ARGS="--x=1") == {}
    assert flags(LIBTPU_INIT_ARGS="--x=1") == {"LIBTPU_INIT_ARGS": "--x=1"}
    # XLA reads a value without a dash as the name of a file of flags.
    file = tmp_path / "flags"
    file.write_text("--a=2\n--xla_dump_to=/tmp/x\n")
    assert flags(XLA_FLAGS=str(file)) == {"XLA_FLAGS": "--a=2"}
    assert flags(XLA_FLAGS="no_such_file") == {"XLA_FLAGS": "no_such_file"}
