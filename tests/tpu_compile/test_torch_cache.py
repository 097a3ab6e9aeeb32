"""Compiled graphs in torch's own caches: a second process neither traces, lowers nor compiles."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import tpu_compile
from tests.tpu_compile.comparing import compiled
from tpu_compile import torch_cache
from tpu_compile.errors import TpuCompileWarning
from tpu_compile.loading import PROGRAMS


def run(folder: Path, *arguments: str, **environment: str) -> dict[str, int]:
    """Return what a process of its own counted; it shares caches in `folder` with others."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.tpu_compile.warm_start", *arguments],
        env={
            **os.environ,
            "TPU_COMPILE_CACHE_DIR": str(folder / "programs"),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "torch"),
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    counted: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return counted


@pytest.mark.parametrize(
    ("name", "programs"), [("training", 2), ("views_and_writes", 1), ("dropout", 1)]
)
def test_a_second_process_lowers_and_compiles_nothing(
    tmp_path: Path, name: str, programs: int
) -> None:
    cold, warm = run(tmp_path, name), run(tmp_path, name)
    assert (cold["lowered"], cold["compiled"], cold["stored"]) == (programs, programs, 1)
    assert (warm["lowered"], warm["compiled"], warm["hits"]) == (0, 0, 1)
    assert warm["from disk"] == programs


def test_a_lost_program_is_compiled_again(tmp_path: Path) -> None:
    run(tmp_path, "inference")
    for file in (tmp_path / "programs").iterdir():
        file.unlink()
    warm = run(tmp_path, "inference")
    assert (warm["lowered"], warm["compiled"], warm["hits"]) == (0, 1, 1)


def test_other_options_are_other_graphs(tmp_path: Path) -> None:
    run(tmp_path, "precision", "highest")
    assert run(tmp_path, "precision", "default")["hits"] == 0
    assert run(tmp_path, "precision", "highest")["hits"] == 1


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [("overlap", "apart", "shared"), ("offset", "0", "4"), ("custom_op", "2", "3")],
)
def test_what_torchs_own_key_leaves_out(tmp_path: Path, name: str, first: str, second: str) -> None:
    # Each process compares with eager PyTorch.
    run(tmp_path, name, first)
    assert run(tmp_path, name, second)["hits"] == 0


def test_programs_are_kept_where_the_process_that_finds_the_graph_says(tmp_path: Path) -> None:
    run(tmp_path, "inference")
    other = str(tmp_path / "other")
    warm = run(tmp_path, "inference", TPU_COMPILE_CACHE_DIR=other)
    assert (warm["hits"], warm["compiled"], warm["from disk"]) == (1, 1, 0)
    assert run(tmp_path, "inference", TPU_COMPILE_CACHE_DIR=other)["from disk"] == 1
    verified = run(tmp_path, "inference", TPU_COMPILE_CACHE_VERIFY="1")
    assert (verified["hits"], verified["compiled"]) == (1, 1)


def test_dynamic_graphs_are_traced_again(tmp_path: Path) -> None:
    cold, warm = run(tmp_path, "dynamic"), run(tmp_path, "dynamic")
    assert cold["stored"] == warm["hits"] == 0
    assert warm["lowered"] > 0
    assert warm["compiled"] == 0


def test_dynamos_own_work_is_kept_where_it_is_asked_to(tmp_path: Path) -> None:
    cold = run(tmp_path, "precompiled-inference")
    warm = run(tmp_path, "precompiled-inference")
    assert (cold["dynamo hits"], warm["dynamo hits"]) == (0, 1)
    assert (warm["lowered"], warm["compiled"], warm["from disk"]) == (0, 0, 1)


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders of this test's own for programs and for torch's cache."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "torch"))
    monkeypatch.setenv("TPU_COMPILE_CACHE_DIR", str(tmp_path / "programs"))
    return tmp_path


def stored(folder: Path) -> list[Path]:
    return [path for path in (folder / "torch").rglob("*") if path.is_file()]


def call() -> None:
    torch._dynamo.reset()
    assert torch.equal(compiled(lambda x: x + 1)(torch.ones(3)), torch.full((3,), 2.0))


def test_nothing_is_stored_without_a_persistent_cache(
    caches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TPU_COMPILE_CACHE_DIR")
    call()
    assert not stored(caches)


def test_nothing_is_stored_for_those_who_count_compiles(caches: Path) -> None:
    with PROGRAMS.without_folders():
        call()
    assert not stored(caches)
    call()
    assert len(stored(caches)) == 1
    assert tpu_compile.explain(lambda x: x + 1, torch.ones(3)).graphs


def test_a_folder_that_others_can_write_to_is_not_read(caches: Path) -> None:
    (caches / "torch").mkdir()
    (caches / "torch").chmod(0o777)
    with pytest.warns(TpuCompileWarning, match="other users can write to it"):
        call()
    assert not stored(caches)


def test_a_graph_of_another_platform_says_so(caches: Path) -> None:
    call()
    (file,) = stored(caches)
    entry = pickle.loads(file.read_bytes())
    graph: Any = entry.compiled_fw.result
    assert isinstance(graph, torch_cache.StoredGraph)
    object.__setattr__(graph.recipe, "platform", "tpu")
    with pytest.raises(tpu_compile.DeviceError, match="for the platform 'tpu'"):
        graph.post_compile()
