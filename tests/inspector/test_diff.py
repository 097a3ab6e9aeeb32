"""`diff`: ops, cost and memory of two dumps, tolerances, and files that are none."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tpu_compile.inspector.cli import main


def dump() -> dict[str, Any]:
    ops = [
        {"name": name, "op": op, "dtype": "f32", "shape": [4], "where": "m.py:1", "module": ""}
        for name, op in (("add", "aten.add.Tensor"), ("add_1", "aten.add.Tensor"))
    ]
    return {
        "format": 1,
        "target": "v6e:1x1",
        "programs": [
            {
                "title": "Model.forward inference",
                "where": "m.py:1",
                "calls": 1,
                "ops": ops,
                "cost": {"flops": 1000.0, "bytes_accessed": 64.0},
                "memory": {"arguments": 2048, "outputs": 16},
            }
        ],
        "cost": {"flops": 1000.0},
        "memory": None,
    }


def written(path: Path, value: Any) -> str:
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return str(path)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "old.json", tmp_path / "new.json"


def test_equal_dumps(pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", *[written(path, dump()) for path in pair]]) == 0
    assert capsys.readouterr().out == "no difference\n"


def test_ops_cost_and_memory(pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    new = dump()
    program = new["programs"][0]
    program["ops"][1]["op"] = "aten.mul.Tensor"
    program["cost"]["flops"] = 1500.0
    program["memory"]["arguments"] = 4096
    assert main(["diff", written(pair[0], dump()), written(pair[1], new)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "- 1 aten.add.Tensor  (2 became 1) in Model.forward inference"
    assert lines[1] == "+ 1 aten.mul.Tensor  (0 became 1) in Model.forward inference"
    cells = [line.split("  ") for line in lines[3:]]
    shown = [[cell.strip() for cell in row if cell.strip()] for row in cells]
    assert shown == [
        ["Model.forward inference", "cost flops", "1.0 kFLOP", "1.5 kFLOP", "1.500"],
        ["Model.forward inference", "memory arguments", "2.0 KiB", "4.0 KiB", "2.000"],
    ]


@pytest.mark.parametrize(("tolerance", "code"), [("0", 1), ("0.019", 1), ("0.02", 0)])
def test_tolerance(pair: tuple[Path, Path], tolerance: str, code: int) -> None:
    new = dump()
    new["cost"]["flops"] = 1020.0
    files = [written(pair[0], dump()), written(pair[1], new)]
    assert main(["diff", *files, "--tolerance", tolerance]) == code


def test_tolerance_is_not_for_ops_or_missing_figures(pair: tuple[Path, Path]) -> None:
    for change in ("ops", "cost"):
        new = dump()
        if change == "ops":
            new["programs"][0]["ops"].pop()
        else:
            new["programs"][0]["cost"] = None
        files = [written(pair[0], dump()), written(pair[1], new)]
        assert main(["diff", *files, "--tolerance", "9"]) == 1, change


def test_programs_that_come_and_go_and_json(
    pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = dump(), dump()
    new["target"] = None
    new["programs"][0]["title"] = "Model.forward forward"
    files = [written(pair[0], old), written(pair[1], new)]
    assert main(["diff", *files]) == 1
    out = capsys.readouterr().out
    assert "target: v6e:1x1 became none" in out
    assert "- program Model.forward inference" in out
    assert "+ program Model.forward forward" in out
    assert main(["diff", *files, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["equal"] is False
    assert found["dumps"][""]["removed"] == ["Model.forward inference"]
    assert found["dumps"][""]["target"] == {"old": "v6e:1x1", "new": None}


def test_two_programs_of_one_title_are_told_apart(
    pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    old = dump()
    old["programs"].append(copy.deepcopy(old["programs"][0]))
    new = copy.deepcopy(old)
    new["programs"][1]["calls"] = 3
    assert main(["diff", written(pair[0], old), written(pair[1], new)]) == 1
    assert capsys.readouterr().out == "Model.forward inference (2): 1 calls became 3\n"


def test_folders_are_matched_by_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder, names in (("a", ("x", "y")), ("b", ("y", "z"))):
        (tmp_path / folder).mkdir()
        for name in names:
            written(tmp_path / folder / f"{name}.json", dump())
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    assert capsys.readouterr().out.splitlines() == ["- dump x.json", "+ dump z.json"]


def _without(key: str, *, of_program: bool = False) -> dict[str, Any]:
    value = dump()
    del (value["programs"][0] if of_program else value)[key]
    return value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("{", "it is no JSON"),
        ("[]", "it has no key 'format'"),
        ({**dump(), "format": 2}, "its format is 2, and this version reads 1"),
        (_without("programs"), "the dump has no key 'programs'"),
        (_without("memory"), "the dump has no key 'memory'"),
        (_without("ops", of_program=True), "programs[0] has no key 'ops'"),
        (_without("cost", of_program=True), "programs[0] has no key 'cost'"),
        ({**dump(), "programs": [3]}, "programs[0] is no object"),
        ({**dump(), "cost": 3}, "the dump has int for 'cost'"),
    ],
)
def test_files_that_are_no_dump(
    pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str], value: Any, text: str
) -> None:
    assert main(["diff", written(pair[0], dump()), written(pair[1], value)]) == 10
    error = capsys.readouterr().err.strip()
    assert f"{pair[1]} is no dump: {text}" in error
    assert "\n" not in error


def test_no_file_and_an_empty_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", str(tmp_path / "none.json"), str(tmp_path)]) == 10
    assert "none.json" in capsys.readouterr().err
    assert main(["diff", str(tmp_path), str(tmp_path)]) == 10
    assert "holds no dump" in capsys.readouterr().err


def test_a_tolerance_is_a_share(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["diff", "a", "b", "--tolerance", "-1"])
    assert raised.value.code == 2
    assert "'-1' is no share" in capsys.readouterr().err
