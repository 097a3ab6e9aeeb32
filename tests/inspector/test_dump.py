from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.inspector import models_to_ask
from tpu_compile.inspector.cli import main
from tpu_compile.runtime.pjrt import plugin_path

# Dynamo inspects scripted modules on its way through torch.optim.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")

MODELS = "tests.inspector.models_to_ask"
FILE = str(Path(__file__).with_name("models_to_ask.py"))

needs_libtpu = pytest.mark.skipif(plugin_path("tpu") is None, reason="libtpu is not installed")


def dumped(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    code = main(["dump", *arguments])
    told = capsys.readouterr()
    assert code == 0, told.err
    return told.out


def test_stages(capsys: pytest.CaptureFixture[str]) -> None:
    model = f"{FILE}:made"
    assert "def forward(self" in dumped(capsys, model, "--stage", "dynamo")
    aten = dumped(capsys, model, "--stage", "aten")
    assert "float32[4, 32] = aten." in aten
    assert "# first (" in aten
    assert "models_to_ask.py:" in aten
    stablehlo = dumped(capsys, model)
    assert "stablehlo.dot_general" in stablehlo
    assert 'loc("first/aten.' in stablehlo
    hlo = dumped(capsys, model, "--stage", "hlo")
    assert "ENTRY" in hlo
    assert 'op_name="first/aten.' in hlo
    assert "models_to_ask.py" in hlo
    memory = dumped(capsys, model, "--stage", "memory", "--target", "cpu")
    assert "stay from call to call" in memory
    cost = dumped(capsys, model, "--stage", "cost", "--target", "cpu")
    assert "FLOP" in cost


def test_filters(capsys: pytest.CaptureFixture[str]) -> None:
    model = f"{MODELS}:made"
    relu = dumped(capsys, model, "--stage", "aten", "--op", "relu")
    assert relu.count("\n") == 1
    assert "aten.relu.default" in relu
    second = dumped(capsys, model, "--stage", "aten", "--module", "second")
    assert "# second (" in second
    assert "# first (" not in second
    products = dumped(capsys, model, "--op", "*dot_general*")
    assert products.count("stablehlo.dot_general") == products.count("\n") == 2
    instructions = dumped(capsys, model, "--stage", "hlo", "--op", "addmm")
    assert "# " in instructions
    assert "ENTRY" not in instructions


def test_inputs_sizes_and_training(capsys: pytest.CaptureFixture[str]) -> None:
    rows = ("--input", "bf16[rows,16]", "--size", "rows=7")
    text = dumped(capsys, f"{MODELS}:module", *rows, "--dtype", "bf16")
    assert "tensor<7x16xbf16>" in text
    assert next(models_to_ask.module.parameters()).dtype is torch.float32
    assert "tensor<3x5xi1>" in dumped(
        capsys, f"{MODELS}:with_keywords", "--size", "batch=3", "--size", "seq=5"
    )
    told = json.loads(dumped(capsys, f"{MODELS}:made", "--train", "sgd", "--format", "json"))
    kinds = [program["title"].split()[1] for program in told["programs"]]
    assert kinds == ["forward", "backward", "inference"]


def test_a_factory_may_read_values(capsys: pytest.CaptureFixture[str]) -> None:
    assert "tensor<4xf32>" in dumped(capsys, f"{MODELS}:rates_from_a_tensor")


def test_json_has_every_op(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--stage", "cost", "--target", "cpu", "--json")
    told = json.loads(dumped(capsys, f"{MODELS}:made", *arguments))
    assert told["format"] == 1
    assert told["target"] == "cpu"
    ops = [op["op"] for program in told["programs"] for op in program["ops"]]
    assert ops.count("aten.relu.default") == 1
    assert told["cost"]["flops"] > 0
    assert told["memory"]["peak"] > 0


def test_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "out"
    dumped(capsys, f"{MODELS}:two_graphs", "--output", f"{folder}/")
    assert [path.suffix for path in sorted(folder.iterdir())] == [".mlir", ".mlir"]
    one = tmp_path / "one.mlirbc"
    dumped(capsys, f"{MODELS}:made", "--format", "mlir-bytecode", "--output", str(one))
    assert one.read_bytes()[:4] == b"ML\xefR"
    assert main(["dump", f"{MODELS}:two_graphs", "--output", str(tmp_path / "x")]) == 2
    assert "--output is one file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nowhere:x"], 4, "nowhere cannot be imported: ModuleNotFoundError"),
        (["nowhere.py:x"], 4, "There is no file nowhere.py"),
        (["plain"], 4, "names no model"),
        ([f"{MODELS}:nothing"], 4, "has no attribute 'nothing'"),
        ([f"{MODELS}:raises"], 4, "ValueError: out of order"),
        ([f"{MODELS}:number"], 4, "is a int"),
        ([f"{MODELS}:gives_a_number"], 4, "(callable, args)"),
        ([f"{MODELS}:module"], 5, "has no inputs"),
        ([f"{MODELS}:needs_an_argument"], 5, "it takes x"),
        ([f"{MODELS}:made", "--size", "seq=3"], 5, "takes no argument 'seq'"),
        ([f"{MODELS}:made", "--size", "seq"], 5, "is no size"),
        ([f"{MODELS}:module", "--input", "f33[2]"], 5, "unknown dtype 'f33'"),
        ([f"{MODELS}:module", "--input", "f32"], 5, "is no input specification"),
        ([f"{MODELS}:module", "--input", "f32[-1]"], 5, "bad size '-1'"),
        ([f"{MODELS}:module", "--input", "f32[rows]"], 5, "--size rows=N"),
        ([f"{MODELS}:module", "--input", "f32[2,9]"], 4, "failed when it was called"),
        ([f"{MODELS}:needs_an_argument", "--input=f32[2]", "--train"], 5, "needs a module"),
        ([f"{MODELS}:reads_a_value"], 6, "needs the value of a tensor"),
        ([f"{MODELS}:made", "--target", "v66", "--stage", "cost"], 7, "did you mean 'v6e'"),
        ([f"{MODELS}:made", "--stage", "hlo", "--target", "v6e"], 2, "--stage tpu-hlo"),
        ([f"{MODELS}:made", "--stage", "dynamo", "--op", "x"], 2, "printed whole"),
        ([f"{MODELS}:made", "--output", "/dev/null/x"], 10, "/dev/null/x"),
        (["hf:bert2"], 4, "did you mean 'bert'"),
    ],
)
def test_bad_input_is_one_line_and_a_code(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, said: str
) -> None:
    assert main(["dump", *arguments]) == code
    told = capsys.readouterr()
    assert said in told.err
    assert told.err.startswith("error: ")
    assert told.err.count("\n") == 1
    assert told.out == ""


def test_a_missing_compiler_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tpu_compile.ahead import compiled
    from tpu_compile.runtime.pjrt import plugins

    monkeypatch.setattr(plugins, "plugin_path", lambda platform: None)
    monkeypatch.setattr(plugins.xc, "pjrt_plugin_loaded", lambda platform: False)
    compiled.compiler_for.cache_clear()
    assert main(["dump", f"{MODELS}:made", "--stage", "tpu-hlo"]) == 8
    assert "pip install tpu_compile[tpu]" in capsys.readouterr().err


@needs_libtpu
def test_the_hlo_of_a_chip(capsys: pytest.CaptureFixture[str]) -> None:
    text = dumped(capsys, f"{MODELS}:made", "--stage", "tpu-hlo", "--target", "v5e")
    assert "T(8,128)" in text
    assert "models_to_ask.py" in text
    cost = dumped(capsys, f"{MODELS}:made", "--stage", "cost", "--target", "v5e")
    assert "estimated cycles" in cost
    assert "first/aten." in cost
