"""`bisect`: a wrong lowering is named, a right model passes, and what is not compared is said."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tpu_compile
from lowering import REGISTRY, hlo, lower_graph
from lowering.mlir import stablehlo
from tests.lowering.running import trace
from tpu_compile.inspector.bisection.interpreter import Interpreter, NoAnswerError
from tpu_compile.inspector.bisection.tolerances import compare
from tpu_compile.inspector.cli import main

MODELS = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)

    def forward(self, x):
        return torch.relu(self.second(torch.relu(self.first(x)))).softmax(-1)

def wrong(x):
    y = x.sin() + 2
    z = torch.ops.bisect_tests.twice(y)
    return z.relu(), z * z

def backward(x):
    x.requires_grad_()
    (torch.ops.bisect_tests.twice(x.sin()) * x).sum().backward()
    return x.grad

def ties(x):
    return torch.topk((x * 0).round(), 3)

def mixed(x):
    y = nn.functional.dropout(x, 0.5, True) + 1
    return y, y.mul(3), torch._aminmax(x)[0] + x, torch.cond(
        x.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (x,)
    )

def splits(x):
    first, second = x.split(2)
    return first, second

def writes(x):
    x.add_(1)
    return x.view(-1)[1:].sin()

def nothing(x):
    return x

def raises(x):
    raise ValueError("no such thing")
"""
pytestmark = pytest.mark.filterwarnings(
    "ignore::tpu_compile.FallbackWarning",
    "ignore:_aminmax is deprecated",
    "ignore:.*torch.jit.*:DeprecationWarning",
)


@torch.library.custom_op("bisect_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


twice.register_autograd(lambda ctx, gradient: gradient * 2)


@pytest.fixture
def lowered_as() -> Iterator[Callable[[Callable[..., Any]], None]]:
    overload = torch.ops.bisect_tests.twice.default

    def register(rule: Callable[..., Any]) -> None:
        tpu_compile.register_lowering(overload)(rule)

    yield register
    if overload in REGISTRY:
        REGISTRY.remove(overload)


@pytest.fixture
def models(tmp_path: Path) -> str:
    path = tmp_path / "bisect_models.py"
    path.write_text(MODELS)
    return str(path)


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(MODELS.splitlines(), 1) if text in line)


def off_by_a_hundredth(ctx: Any, x: Any) -> Any:
    return stablehlo.multiply(x, hlo.full_like(x, 2.02))


def test_a_wrong_lowering_is_named(
    models: str, lowered_as: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    lowered_as(off_by_a_hundredth)
    assert main(["bisect", f"{models}:wrong", "--input", "f32[4,8]"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("bisect_tests.twice.default")
    (verdict,) = [line for line in lines if line.startswith("wrong: ")]
    place = f"{models}:{line_of('torch.ops.bisect_tests.twice(y)')}"
    assert f"the first wrong op is bisect_tests.twice.default at {place}, node twice" in verdict
    assert "the lowering is wrong: the interpreter gives what XLA does" in verdict
    assert any("as one program" in line and "wrong" in line for line in lines[2:])


def test_only_the_wrong_op_is_wrong(
    models: str, lowered_as: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    lowered_as(off_by_a_hundredth)
    assert main(["bisect", f"{models}:wrong", "--input", "f32[4,8]", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    nodes = [each["op"] for each in found["wrong"] if each["node"] == "twice"]
    assert nodes == ["bisect_tests.twice.default"]
    others = [each for each in found["worst"] if each["node"] != "twice"]
    assert {each["op"] for each in others} >= {"aten.sin.default", "aten.relu.default"}
    assert not any(each["is_fault"] for each in others)
    difference = found["worst"][0]["difference"]
    assert difference["error"] == pytest.approx(0.06, rel=0.5)
    assert difference["ratio"] > 100


def test_a_right_lowering_passes(
    models: str, lowered_as: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    lowered_as(lambda ctx, x: stablehlo.add(x, x))
    assert main(["bisect", f"{models}:wrong", "--input", "f32[4,8]"]) == 0
    assert "5 nodes compared, 0 wrong, 0 not compared" in capsys.readouterr().out


def test_a_lowering_that_fails_is_named_and_the_rest_compared(
    models: str, lowered_as: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    lowered_as(lambda ctx, x: stablehlo.add(x, 3))
    assert main(["bisect", f"{models}:wrong", "--input", "f32[4,8]", "--json"]) == 1
    (wrong,) = json.loads(capsys.readouterr().out)["wrong"]
    assert wrong["op"] == "bisect_tests.twice.default"
    assert wrong["difference"]["note"] == "no program"
    assert "The lowering of bisect_tests.twice.default failed" in wrong["verdict"]


def test_a_function_that_runs_its_own_backward(
    models: str, lowered_as: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    lowered_as(off_by_a_hundredth)
    assert main(["bisect", f"{models}:backward", "--input", "f32[4]", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["wrong"][0]["op"] == "bisect_tests.twice.default"
    assert any(each["graph"].endswith("backward") for each in found["graphs"])


def test_a_training_step_passes(models: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--input", "f32[4,8]", "--train", "sgd", "--worst", "3", "--json"]
    assert main(["bisect", f"{models}:Block", *given]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["wrong"] == []
    assert len(found["worst"]) == 3
    kinds = {each["graph"].rpartition(" ")[2] for each in found["graphs"]}
    assert kinds == {"forward", "backward", "inference"}


def test_programs_of_like_nodes_are_compiled_once(
    models: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tpu_compile.inspector.bisection import walk

    compiled = []
    original = walk.compile_nodes

    def counting(graph_module: Any, *rest: Any) -> Any:
        nodes = [n.target for n in graph_module.graph.nodes if n.op == "call_function"]
        compiled.append(nodes)
        return original(graph_module, *rest)

    monkeypatch.setattr(walk, "compile_nodes", counting)
    assert main(["bisect", f"{models}:Block", "--input", "f32[4,8]", "--json"]) == 0
    assert compiled.count([torch.ops.aten.addmm.default]) == 1
    assert compiled.count([torch.ops.aten.relu.default]) == 1


def test_equal_elements_are_no_fault(models: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bisect", f"{models}:ties", "--input", "f32[64]"]) == 0
    out = capsys.readouterr().out
    assert "aten.topk.default" in out
    assert "another one of equal elements was chosen" in out
    assert "0 wrong" in out


def test_what_is_not_compared_is_said(models: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bisect", f"{models}:mixed", "--input", "f32[4,8]"]) == 0
    out = capsys.readouterr().out
    assert "not compared: it draws random numbers" in out
    assert "1 aten.native_dropout.default" in out
    assert "not compared: it falls back: it has no lowering (1 aten._aminmax.default)" in out
    assert "cond" in out
    assert "0 wrong, 2 not compared" in out


def test_mutations_and_views(models: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bisect", f"{models}:writes", "--input", "f32[4,8]", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    ops = {each["op"] for each in found["worst"]}
    assert {"aten.add.Tensor", "aten.view.default", "aten.slice.Tensor"} <= ops


def test_a_result_of_several_is_named_by_its_op(
    models: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bisect", f"{models}:splits", "--input", "f32[4]", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["op"] for each in found["graphs"]] == ["aten.split_with_sizes.default"]


@pytest.mark.parametrize(
    ("model", "given", "code", "text"),
    [
        ("Block", ["--input", "f32[4,9]"], 4, "got [4, 9] X [8, 8]"),
        ("raises", ["--input", "f32[4]"], 4, "no such thing"),
        ("nothing", ["--input", "f32[4]"], 6, "runs no op in a compiled graph"),
        ("Block", ["--input", "f32[4,8]", "--worst", "0"], 2, "--worst got 0"),
        ("Block", ["--input", "f32(4)"], 5, "no input specification"),
        ("None_", [], 4, "no attribute 'None_'"),
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
    assert main(["bisect", f"{models}:{model}", *given]) == code
    error = capsys.readouterr().err.strip()
    assert text in error
    assert "\n" not in error


def test_the_interpreter_survives_an_op_that_it_does_not_know() -> None:
    known = lower_graph(trace(lambda x: x.sin() + x, torch.ones(3)))
    # A call of LAPACK.
    unknown = lower_graph(trace(torch.linalg.qr, torch.ones(3, 3)))
    with Interpreter() as interpreter:
        with pytest.raises(NoAnswerError, match="interpreter"):
            interpreter.run(unknown, [torch.ones(3, 3)])
        (answer,) = interpreter.run(known, [torch.ones(3)])
    assert torch.allclose(answer, torch.ones(3).sin() + 1)


@pytest.mark.parametrize(
    ("ours", "expected", "is_beyond"),
    [
        ([1.0, math.nan], [1.0, math.nan], False),
        ([1.0, math.inf], [1.0, math.inf], False),
        ([1.0, -math.inf], [1.0, math.inf], True),
        ([1.0, 2.0], [1.0, math.nan], True),
        ([1.0, 1.00002], [1.0, 1.0], True),
        ([1.0, 1.00001], [1.0, 1.0], False),
        ([1.0, 1e-6], [1.0, 0.0], False),
        ([1e-9, 2e-9], [1e-9, 1e-9], True),
        ([1, 2], [1, 3], True),
        ([True, False], [True, False], False),
        ([], [], False),
    ],
)
def test_tolerances(ours: list[Any], expected: list[Any], is_beyond: bool) -> None:
    assert compare(torch.tensor(ours), torch.tensor(expected)).is_beyond is is_beyond


def test_another_shape_or_dtype_is_beyond() -> None:
    assert compare(torch.ones(2), torch.ones(3)).note == "shape (2,), expected (3,)"
    found = compare(torch.ones(2), torch.ones(2).double())
    assert found.is_beyond
    assert found.note == "dtype torch.float32, expected torch.float64"
