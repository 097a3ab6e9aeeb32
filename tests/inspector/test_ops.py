"""`ops`: what is listed, what falls back and why, and what a model that cannot run gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tpu_compile.inspector.cli import main

MODELS = """
import torch

class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 4)
        self.second = torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))

def falls(x):
    low = torch._aminmax(x)[0]
    return low + x

def branches(x):
    return torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (x,))

def breaks(x):
    y = x + 1
    torch._dynamo.graph_break()
    return y * 2

def writes(x):
    x.add_(1)
    return x * 2
"""
pytestmark = pytest.mark.filterwarnings(
    "ignore::tpu_compile.FallbackWarning",
    "ignore:_aminmax is deprecated",
    "ignore:.*torch.jit.*:DeprecationWarning",
)


@pytest.fixture
def models(tmp_path: Path) -> str:
    path = tmp_path / "ops_models.py"
    path.write_text(MODELS)
    return str(path)


def found(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_ops_with_family_padding_and_dtypes(
    models: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ops", f"{models}:Two", "--input", "f32[3,8]", "--json"]) == 0
    answer = found(capsys)
    by_name = {op["op"]: op for op in answer["ops"]}
    assert by_name["aten.addmm.default"]["count"] == 2
    assert by_name["aten.addmm.default"]["how"] == "native"
    assert by_name["aten.addmm.default"]["family"] == "matmul"
    assert by_name["aten.relu.default"]["padding"] == "flows"
    assert by_name["aten.relu.default"]["dtypes"] == ["float32"]
    assert answer["nodes"] == sum(op["count"] for op in answer["ops"])
    assert answer["fallback_nodes"] == 0
    counts = [op["count"] for op in answer["ops"]]
    assert counts == sorted(counts, reverse=True)


def test_a_training_step_has_backward_and_optimizer(
    models: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--input", "f32[3,8]", "--dtype", "bf16", "--train", "sgd", "--json"]
    assert main(["ops", f"{models}:Two", *given]) == 0
    by_name = {op["op"]: op for op in found(capsys)["ops"]}
    assert "aten.mm.default" in by_name
    assert by_name["aten.copy_.default"]["how"] == "store"
    assert by_name["aten.copy_.default"]["count"] == 4
    assert by_name["aten.addmm.default"]["dtypes"] == ["bfloat16"]


def test_fallback_with_reason_line_and_ways_out(
    models: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ops", f"{models}:falls", "--input", "f32[4]", "--fallbacks", "--strict"]) == 1
    out = capsys.readouterr().out
    line = MODELS.splitlines().index("    low = torch._aminmax(x)[0]") + 1
    assert f"fallback: aten._aminmax.default at {models}:{line}" in out
    assert "because it has no lowering" in out
    assert "tpu_compile.register_lowering(torch.ops.aten._aminmax.default)" in out
    assert 'options={"fallback": "error"}' in out
    assert "aten.add.Tensor" not in out
    assert "2 ops, 2 nodes, 1 fall back (50.0%), 0 graph breaks" in out


def test_strict_passes_without_a_fallback_and_is_needed_to_fail(models: str) -> None:
    assert main(["ops", f"{models}:Two", "--input", "f32[3,8]", "--strict"]) == 0
    assert main(["ops", f"{models}:falls", "--input", "f32[4]"]) == 0


def test_a_higher_order_op_and_what_it_holds(
    models: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ops", f"{models}:branches", "--input", "f32[4]", "--json"]) == 0
    by_name = {op["op"]: op for op in found(capsys)["ops"]}
    assert by_name["cond"]["family"] == "control_flow"
    assert {"aten.sin.default", "aten.cos.default"} <= by_name.keys()


def test_graph_breaks_have_their_reasons(models: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", f"{models}:breaks", "--input", "f32[4]"]) == 0
    out = capsys.readouterr().out
    assert "graph break: " in out
    assert "graph_break()" in out
    assert "0 fall back (0.0%), 1 graph breaks" in out


@pytest.mark.parametrize(
    ("model", "given", "code", "text"),
    [
        ("Two", ["--input", "f32[3,9]"], 4, "got [3, 9] X [8, 4]"),
        ("Two", ["--input", "f33[3,9]"], 5, "unknown dtype 'f33'"),
        ("Two", [], 5, "has no inputs"),
        ("Three", [], 4, "no attribute 'Three'"),
    ],
)
def test_bad_input_is_one_line(
    models: str,
    capsys: pytest.CaptureFixture[str],
    model: str,
    given: list[str],
    code: int,
    text: str,
) -> None:
    assert main(["ops", f"{models}:{model}", *given]) == code
    error = capsys.readouterr().err.strip()
    assert error.startswith("error: ")
    assert text in error
    assert "\n" not in error
