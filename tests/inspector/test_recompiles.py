"""`recompiles`: what it lists, when it fails, and what it says of scripts that cannot run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from tpu_compile.inspector.cli import main

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "ci"
PER_SHAPE = str(EXAMPLES / "per_shape.py")
BUCKETED = str(EXAMPLES / "bucketed.py")
BUDGET = EXAMPLES / "compile_budget.json"
DOUBLE = """
import torch

@torch.compile(backend="tpu", dynamic=False)
def double(x):
    return x * 2

"""


def script(folder: Path, code: str, name: str = "script.py") -> str:
    path = folder / name
    path.write_text(code)
    return str(path)


def test_a_program_for_each_shape_fails_with_reason_and_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["recompiles", PER_SHAPE, "--at-most", "2"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "per_shape.py:13) for float32[4, 4]" in lines[1]
    assert lines[1].endswith("input 0 went from float32[3, 4] to float32[4, 4]")
    assert "6 programs compiled" in lines[6]
    assert "0 graph breaks" in lines[6]
    assert lines[7] == "over: 6 programs were compiled, at most 2 may be"


def test_buckets_pass(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recompiles", BUCKETED, "--at-most", "2", "--budget", str(BUDGET)]) == 0
    assert "over" not in capsys.readouterr().out


def test_json_has_the_records_and_nothing_of_the_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = DOUBLE + "print('from the script')\nfor n in (1, 2, 3):\n    double(torch.ones(n + 1))\n"
    assert main(["recompiles", script(tmp_path, code), "--json", "--at-most", "2"]) == 1
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert "from the script" in captured.err
    assert [record["inputs"] for record in found["compiles"]] == [
        ["float32[2]"],
        ["float32[3]"],
        ["float32[4]"],
    ]
    assert found["compiles"][0]["function"] == "double inference"
    assert found["over"] == ["3 programs were compiled, at most 2 may be"]
    assert found["graph_breaks"] == 0


def test_graph_breaks_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = """
import torch

@torch.compile(backend="tpu")
def broken(x):
    y = x * 2
    torch._dynamo.graph_break()
    return y + 1

broken(torch.ones(2))
"""
    budget = tmp_path / "budget.json"
    name = script(tmp_path, code)
    assert main(["recompiles", name, "--budget", str(budget), "--update-budget"]) == 0
    assert "2 programs compiled" in (out := capsys.readouterr().out)
    assert "1 graph breaks" in out
    # The part behind the break is called by its line in Dynamo, which an edit would move.
    assert json.loads(budget.read_text())["budgets"] == {"script.py": {"broken inference": 2}}


def test_a_device_program_is_a_compile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = """
import torch
import tpu_compile.device
print((torch.arange(7.0, device="tpu") * 3.25).cpu())
"""
    main(["recompiles", script(tmp_path, code), "--json"])
    functions = [each["function"] for each in json.loads(capsys.readouterr().out)["compiles"]]
    assert "aten.mul.Tensor eager" in functions


def test_persistent_caches_are_off_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPU_COMPILE_CACHE_DIR", str(tmp_path / "cache"))
    options = {"cache_dir": str(tmp_path / "own")}
    code = f"torch.compile(lambda x: x * 3, backend='tpu', options={options})(torch.ones(2))\n"
    name = script(tmp_path, DOUBLE + "double(torch.ones(2))\n" + code)
    for _ in range(2):
        assert main(["recompiles", name, "--at-most", "1"]) == 1
    assert [each.name for each in tmp_path.iterdir()] == ["script.py"]
    torch.compile(lambda x: x * 5, backend="tpu")(torch.ones(2))
    assert (tmp_path / "cache").is_dir()


def test_the_script_is_main_with_its_arguments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "import sys\nimport neighbour\nprint(__name__, sys.argv[1:], neighbour.VALUE)\n"
    (tmp_path / "neighbour.py").write_text("VALUE = 5\n")
    before = (list(sys.argv), list(sys.path))
    name = script(tmp_path, code)
    assert main(["recompiles", name, "a", "--at-most", "0", "--", "--at-most", "b"]) == 0
    assert "__main__ ['a', '--at-most', 'b'] 5" in capsys.readouterr().out
    assert (sys.argv, sys.path) == before
    sys.modules.pop("neighbour")


@pytest.mark.parametrize(
    ("code", "parts"),
    [
        (
            "def f():\n    raise ValueError('no good')\nf()\n",
            ["ValueError: no good", "script.py:2"],
        ),
        ("import sys\nsys.exit(3)\n", ["ended: with exit code 3", "script.py:2"]),
        ("raise SystemExit('not today')\n", ["ended: not today"]),
        ("x = (\n", ["SyntaxError", "script.py:1"]),
        ("import no_such_module_at_all\n", ["No module named", "script.py:1"]),
    ],
)
def test_a_script_that_fails_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], code: str, parts: list[str]
) -> None:
    assert main(["recompiles", script(tmp_path, code)]) == 9
    (line,) = capsys.readouterr().err.splitlines()
    assert all(part in line for part in parts), line
    assert "--traceback" in line


def test_traceback_shows_the_scripts_frames(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "def inner():\n    raise KeyError('x')\ninner()\n"
    assert main(["recompiles", script(tmp_path, code), "--traceback"]) == 9
    assert "in inner" in capsys.readouterr().err


def test_a_script_may_change_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
import os
os.mkdir("inner")
os.chdir("inner")
double(torch.ones(2))
"""
    monkeypatch.chdir(tmp_path)
    script(tmp_path, DOUBLE + code)
    options = ["--budget", "budget.json", "--update-budget"]
    assert main(["recompiles", "script.py", *options]) == 0
    found = json.loads((tmp_path / "budget.json").read_text())["budgets"]
    assert found == {"script.py": {"double inference": 1}}


@pytest.mark.parametrize("code", ["raise SystemExit(0)\n", "import sys\nsys.exit()\n"])
def test_a_script_may_exit_well(tmp_path: Path, code: str) -> None:
    assert main(["recompiles", script(tmp_path, code)]) == 0


def test_an_interrupt_is_an_interrupt(tmp_path: Path) -> None:
    assert main(["recompiles", script(tmp_path, "raise KeyboardInterrupt\n")]) == 130


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["no_such_script.py"], 10, "no_such_script.py"),
        (["no_such_test.py::test_x"], 10, "no_such_test.py"),
        ([BUCKETED, "--update-budget"], 2, "--budget FILE"),
        ([BUCKETED, "--budget", "no_such_budget.json"], 10, "There is no budget file"),
    ],
)
def test_wrong_arguments(
    arguments: list[str], code: int, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["recompiles", *arguments]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert part in line


@pytest.mark.parametrize("text", ["-1", "two", "1.5"])
def test_at_most_takes_a_count(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["recompiles", BUCKETED, f"--at-most={text}"])
    assert caught.value.code == 2
    assert "no whole number from 0 up" in capsys.readouterr().err


def test_over_a_budget_and_a_stale_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    budget = tmp_path / "budget.json"
    name = script(tmp_path, DOUBLE + "for n in (1, 2, 3):\n    double(torch.ones(n + 1))\n")
    allowed = {"script.py": {"double inference": 2, "gone forward": 1}}
    budget.write_text(json.dumps({"format": "tpu_compile-budget-1", "budgets": allowed}))
    assert main(["recompiles", name, "--budget", str(budget)]) == 1
    captured = capsys.readouterr()
    over = captured.out.split("over: ")[1].splitlines()
    assert over[0] == "double inference may compile 2, compiled 3"
    assert "script.py:6) for float32[4]: input 0 went from float32[2]" in over[3]
    assert "stale budget: gone forward may compile 1, compiled 0" in captured.err

    assert main(["recompiles", name, "--budget", str(budget), "--update-budget"]) == 0
    assert main(["recompiles", name, "--budget", str(budget)]) == 0
    assert "stale budget" not in capsys.readouterr().err


def test_a_script_that_is_not_in_the_budget_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = script(tmp_path, DOUBLE + "double(torch.ones(2))\n", "other.py")
    assert main(["recompiles", name, "--budget", str(BUDGET)]) == 1
    assert "double inference is not in the budget, compiled 1" in capsys.readouterr().out


def test_a_damaged_budget_is_told_before_the_script_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    budget = tmp_path / "budget.json"
    budget.write_text("{half")
    name = script(tmp_path, "raise ValueError\n")
    for options in ([], ["--update-budget"]):
        assert main(["recompiles", name, "--budget", str(budget), *options]) == 10
        (line,) = capsys.readouterr().err.splitlines()
        assert "budget.json is no budget file" in line
    assert budget.read_text() == "{half"


def test_a_budget_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    budget = tmp_path / "file" / "budget.json"
    name = script(tmp_path, "pass\n")
    assert main(["recompiles", name, "--budget", str(budget), "--update-budget"]) == 10
    assert "Cannot write the budget file" in capsys.readouterr().err.splitlines()[-1]


def test_a_test_is_run_by_pytest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = DOUBLE + (
        "def test_two():\n    double(torch.ones(2))\n    double(torch.ones(3))\n\n"
        "def test_bad():\n    assert False\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    budget = tmp_path / "budget.json"
    file = script(tmp_path, code, "test_of_recompiles.py")
    plain = ["--", "-p", "no:cacheprovider", "-p", "no:faulthandler"]
    update = ["--budget", str(budget), "--update-budget"]
    assert main(["recompiles", f"{file}::test_two", *update, *plain]) == 0
    assert json.loads(budget.read_text())["budgets"] == {
        "test_of_recompiles.py::test_two": {"double inference": 2}
    }
    assert main(["recompiles", f"{file}::test_two", "--at-most", "1", *plain]) == 1
    assert "float32[2] to float32[3]" in capsys.readouterr().out
    assert main(["recompiles", file, "--pytest", *plain]) == 9
    assert "tests failed" in capsys.readouterr().err
    assert main(["recompiles", f"{file}::test_none", *plain]) == 9
