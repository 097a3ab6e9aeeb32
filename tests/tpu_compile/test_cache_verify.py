"""`cache_verify`: what is stored is compiled again and compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tpu_compile
from tests.tpu_compile.comparing import compiled
from tpu_compile.errors import TpuCompileWarning
from tpu_compile.runtime.platforms import current_client
from tpu_compile.runtime.stored_programs import packed, unpacked


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def run(folder: Path, factor: float, **options: Any) -> tuple[int, int, int]:
    """Return compiles, disk hits and mismatches of a small function, whose result is checked."""
    tpu_compile.reset()
    result = compiled(lambda x: x * factor, cache_dir=str(folder), **options)(torch.ones(2))
    assert torch.equal(result, torch.full((2,), factor))
    stats = tpu_compile.stats()
    return stats.xla_compiles, stats.disk_hits, stats.cache_mismatches


def forge(folder: Path) -> tuple[Path, bytes]:
    """Put the program of one key under the key of another, with the right digest and parts."""
    run(folder, 3.5)
    (first,) = folder.glob("*.xla")
    run(folder, 4.5)
    (second,) = set(folder.glob("*.xla")) - {first}
    parts = unpacked(second.read_bytes(), second.stem).parts
    right = second.read_bytes()
    second.write_bytes(packed(parts or {}, unpacked(first.read_bytes(), first.stem).program))
    return second, right


def test_a_right_program_is_confirmed(folder: Path) -> None:
    assert run(folder, 3.5, cache_verify=True) == (1, 0, 0)
    (path,) = folder.glob("*.xla")
    stored = path.read_bytes()
    assert run(folder, 3.5, cache_verify=True) == (1, 1, 0)
    assert path.read_bytes() == stored
    assert run(folder, 3.5) == (0, 1, 0)


def test_another_program_is_found_out_and_replaced(folder: Path) -> None:
    path, right = forge(folder)
    with pytest.warns(TpuCompileWarning, match=f"{path.name}.*optimized HLO differs.*replaced"):
        assert run(folder, 4.5, cache_verify=True) == (1, 0, 1)
    parts = unpacked(right, path.stem).parts
    assert unpacked(path.read_bytes(), path.stem).parts == parts
    assert run(folder, 4.5) == (0, 1, 0)


def test_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forge(folder)
    monkeypatch.setenv("TPU_COMPILE_CACHE_VERIFY", "1")
    with pytest.warns(TpuCompileWarning, match="differs"):
        assert run(folder, 4.5) == (1, 0, 1)
    # The option wins.
    assert run(folder, 4.5, cache_verify=False) == (0, 1, 0)
    monkeypatch.setenv("TPU_COMPILE_CACHE_VERIFY", "0")
    assert run(folder, 4.5) == (0, 1, 0)
    monkeypatch.setenv("TPU_COMPILE_CACHE_VERIFY", "yes")
    with pytest.raises(tpu_compile.OptionError, match="TPU_COMPILE_CACHE_VERIFY is 'yes'"):
        run(folder, 4.5)


def test_what_is_compared() -> None:
    """Lines, names and constants: only what changes the program is a difference."""

    def module(constant: float, name: str, line: int, rows: int = 2) -> bytes:
        kind = f"tensor<{rows}xf32>"
        return f"""
module @program {{
  func.func public @main(%{name}: {kind}) -> {kind} {{
    %c = stablehlo.constant dense<{constant}> : {kind}
    %0 = stablehlo.add %{name}, %c : {kind} loc("{name}.py":{line}:1)
    return %0 : {kind}
  }}
}}
""".encode()

    client = current_client()
    first = client.compile(module(1.5, "a", 1))
    assert client.difference(first, client.compile(module(1.5, "other", 70))) is None
    assert client.difference(first, client.deserialize(client.serialize(first))) is None
    assert client.difference(first, client.compile(module(2.5, "a", 1))) is not None
    assert client.difference(first, client.compile(module(1.5, "a", 1, rows=3))) is not None


def test_large_constants_are_compared() -> None:
    def program(last: float) -> Any:
        values = ", ".join(["1.0"] * 63 + [str(last)])
        return current_client().compile(
            f"""
module @m {{
  func.func public @main(%x: tensor<64xf32>) -> tensor<64xf32> {{
    %c = stablehlo.constant dense<[{values}]> : tensor<64xf32>
    %0 = stablehlo.add %x, %c : tensor<64xf32>
    return %0 : tensor<64xf32>
  }}
}}
""".encode()
        )

    assert current_client().difference(program(1.25), program(1.25)) is None
    assert current_client().difference(program(1.25), program(1.5)) is not None
