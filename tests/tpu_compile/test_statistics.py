"""Counters, records, `expect_compiles`, `explain`, caches and threads."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

import tpu_compile
from tests.tpu_compile.comparing import compiled
from tpu_compile.statistics import RECORDER


def test_counters_of_one_function() -> None:
    function = compiled(lambda x: x + 1)
    for _ in range(3):
        function(torch.ones(2))
    stats = tpu_compile.stats()
    assert (stats.graphs, stats.lowered, stats.xla_compiles, stats.executions) == (1, 1, 1, 3)
    assert stats.compile_seconds > 0
    assert stats.lowering_seconds > 0
    assert dict(stats.fallback_ops) == {}
    (record,) = stats.records
    assert "test_statistics.py:" in record.where
    assert record.inputs == ("float32[2]",)
    assert record.reason == "first program of this graph"
    tpu_compile.reset_stats()
    assert tpu_compile.stats() == tpu_compile.CompileStats()
    function(torch.ones(2))
    assert tpu_compile.stats().xla_compiles == 0


def test_records_say_what_changed() -> None:
    function = torch.compile(lambda x, y: x + y, backend="tpu", dynamic=False)
    function(torch.ones(2), torch.ones(2))
    function(torch.ones(3), torch.ones(3))
    reasons = [record.reason for record in tpu_compile.stats().records]
    assert reasons[1] == (
        "input 0 went from float32[2] to float32[3]; input 1 went from float32[2] to float32[3]"
    )


def test_equal_graphs_share_a_program() -> None:
    first, second = compiled(lambda x: x + 1), compiled(lambda y: y + 1)
    first(torch.ones(2))
    second(torch.ones(2))
    stats = tpu_compile.stats()
    assert (stats.xla_compiles, stats.memory_hits) == (1, 1)


def test_expect_compiles() -> None:
    function = torch.compile(lambda x: x * 2, backend="tpu", dynamic=False)
    with tpu_compile.expect_compiles(at_most=1):
        function(torch.ones(2))
    with tpu_compile.expect_compiles(0):
        function(torch.ones(2))
    with (
        pytest.raises(tpu_compile.RecompileError, match=r"float32\[2\] to float32\[5\]"),
        tpu_compile.expect_compiles(0),
    ):
        function(torch.ones(5))
    with pytest.raises(ZeroDivisionError), tpu_compile.expect_compiles(0):
        function(torch.ones(6)).fill_(1 / 0)


def test_expect_compiles_sees_through_a_reset() -> None:
    def compile_and_reset() -> None:
        torch.compile(lambda x: x * 7, backend="tpu")(torch.ones(2))
        tpu_compile.reset_stats()

    with pytest.raises(tpu_compile.RecompileError), tpu_compile.expect_compiles(0):
        compile_and_reset()


def test_a_watch_sees_through_a_reset() -> None:
    function = torch.compile(lambda x: x * 11, backend="tpu", dynamic=False)
    function(torch.ones(2))
    with RECORDER.watch() as watch:
        assert watch.stats() == tpu_compile.CompileStats()
        function(torch.ones(2))
        function(torch.ones(3))
        tpu_compile.reset_stats()
        function(torch.ones(4))
        found = watch.stats()
        assert (found.xla_compiles, found.executions, len(found.records)) == (2, 3, 2)
        assert found.compile_seconds > tpu_compile.stats().compile_seconds > 0
        watch.restart()
        assert watch.stats() == tpu_compile.CompileStats()


def test_explain_tells_breaks_fallbacks_and_compiles() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        torch._dynamo.graph_break()
        return x * 2

    torch.compile(function, backend="tpu")(torch.ones(2))
    explanation = tpu_compile.explain(function, torch.ones(2))
    assert len(explanation.graphs) == 2
    assert len(explanation.graph_breaks) == 1
    assert "test_statistics.py:" in explanation.graph_breaks[0]
    assert "2 graphs, 1 graph breaks, 0 fallbacks" in str(explanation)
    loaded = json.loads(explanation.to_json())
    assert loaded["graphs"][0]["inputs"] == ["float32[2]"]
    module = nn.Linear(2, 3)
    assert "Linear.forward" in str(
        tpu_compile.explain(torch.compile(module, backend="tpu"), torch.ones(1, 2))
    )


def test_disk_cache_serves_another_process_state(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    options = {"cache_dir": str(folder)}
    expected = compiled(lambda x: x * 3, **options)(torch.ones(2))
    (stored,) = folder.glob("*.xla")
    tpu_compile.reset()
    assert torch.equal(compiled(lambda x: x * 3, **options)(torch.ones(2)), expected)
    stats = tpu_compile.stats()
    assert (stats.xla_compiles, stats.disk_hits) == (0, 1)

    stored.write_bytes(stored.read_bytes()[:-7])
    tpu_compile.reset()
    function = compiled(lambda x: x * 3, **options)
    with pytest.warns(tpu_compile.TpuCompileWarning, match="is damaged"):
        assert torch.equal(function(torch.ones(2)), expected)
    assert tpu_compile.stats().xla_compiles == 1

    tpu_compile.reset()
    compiled(lambda x: x * 3, **options)(torch.ones(2))
    assert tpu_compile.stats().disk_hits == 1


def test_disk_cache_follows_the_environment_and_survives_a_bad_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPU_COMPILE_CACHE_DIR", str(tmp_path / "env"))
    compiled(lambda x: x * 5)(torch.ones(2))
    assert len(list((tmp_path / "env").glob("*.xla"))) == 1
    (tmp_path / "file").write_text("no folder")
    tpu_compile.reset()
    function = compiled(lambda x: x * 5, cache_dir=str(tmp_path / "file"))
    with pytest.warns(tpu_compile.TpuCompileWarning, match="Not a directory"):
        result = function(torch.ones(2))
    assert torch.equal(result, torch.full((2,), 5.0))


def test_matmul_precision_is_part_of_the_program() -> None:
    inputs = torch.randn(3, 3)
    compiled(lambda x: x @ x)(inputs)
    compiled(lambda x: x @ x, matmul_precision="default")(inputs)
    assert tpu_compile.stats().xla_compiles == 2


def test_threads_run_and_compile_together() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    function = torch.compile(model, backend="tpu", dynamic=False)
    failures: list[BaseException] = []

    def work(size: int) -> None:
        try:
            for _ in range(20):
                inputs = torch.randn(size, 8)
                with torch.no_grad():
                    torch.testing.assert_close(function(inputs), model(inputs))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(2 + number % 3,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert tpu_compile.stats().executions == 120
    assert tpu_compile.stats().xla_compiles == 3
