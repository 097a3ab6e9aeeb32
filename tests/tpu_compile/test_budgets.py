"""Budget files: what is read, what is refused, what is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tpu_compile import budgets
from tpu_compile.statistics import CompileRecord


def record(function: str) -> CompileRecord:
    return CompileRecord(function, "file.py:3", (), "first program of this graph", 0.0)


def test_counts_go_by_function_and_kind() -> None:
    names = ["step forward", "step backward", "step forward", "aten.add.Tensor eager"]
    found = budgets.counts(map(record, names))
    assert found == {"aten.add.Tensor eager": 1, "step backward": 1, "step forward": 2}
    assert list(found) == sorted(found)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        ("torch_dynamo_resume_in_step_at_41 forward", "step forward"),
        ("torch_dynamo_resume_in_torch_dynamo_resume_in_f_at_3_at_9 inference", "f inference"),
        ("<lambda> inference", "<lambda> inference"),
        ("look_at_3 forward", "look_at_3 forward"),
    ],
)
def test_names_have_no_lines(function: str, name: str) -> None:
    assert budgets.counts([record(function)]) == {name: 1}
    assert budgets.records_of(name, [record(function)]) == [record(function)]


def test_comparison() -> None:
    found = budgets.compare({"a": 1, "b": 2, "c": 3}, {"a": 2, "b": 2, "d": 1})
    assert [str(each) for each in found.over] == [
        "a may compile 1, compiled 2",
        "d is not in the budget, compiled 1",
    ]
    assert [str(each) for each in found.stale] == ["c may compile 3, compiled 0"]


def test_a_file_is_sorted_and_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "budget.json"
    written = {"z.py": {"b": 2, "a": 1}, "empty.py": {}, "a.py": {"c": 3}}
    budgets.write(path, written)
    assert budgets.read(path) == {"z.py": {"a": 1, "b": 2}, "a.py": {"c": 3}}
    text = path.read_text()
    assert text.index("a.py") < text.index("z.py")
    assert text.index('"a"') < text.index('"b"')
    assert text.endswith("}\n")
    budgets.write(path, written)
    assert path.read_text() == text
    assert [each.name for each in tmp_path.iterdir()] == ["budget.json"]


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    budgets.write(tmp_path / "link.json", {"a.py": {"f": 1}})
    assert (tmp_path / "link.json").is_symlink()
    assert budgets.read(tmp_path / "real.json") == {"a.py": {"f": 1}}


def test_names_of_scripts_are_relative_to_the_file(tmp_path: Path) -> None:
    budget = tmp_path / "ci" / "budget.json"
    assert budgets.unit_name(tmp_path / "ci" / "a.py", budget) == "a.py"
    assert budgets.unit_name(tmp_path / "src" / "a.py", budget) == "../src/a.py"


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[]", 'no "format"'),
        (json.dumps({"budgets": {}}), 'no "format"'),
        (json.dumps({"format": "tpu_compile-budget-9", "budgets": {}}), "budget-9"),
        (json.dumps({"format": budgets.FORMAT}), "no object"),
        (json.dumps({"format": budgets.FORMAT, "budgets": {"a.py": 3}}), "'a.py'"),
        (json.dumps({"format": budgets.FORMAT, "budgets": {"a.py": {"f": -1}}}), "'a.py'"),
        (json.dumps({"format": budgets.FORMAT, "budgets": {"a.py": {"f": True}}}), "'a.py'"),
        (b"\xff\xfe\x00", "not JSON"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, content: str | bytes, part: str) -> None:
    path = tmp_path / "budget.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(budgets.BudgetError, match="no budget file that can be used") as caught:
        budgets.read(path)
    assert part in str(caught.value)


def test_a_file_that_is_not_there_or_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(budgets.BudgetError, match="There is no budget file"):
        budgets.read(tmp_path / "budget.json")
    (tmp_path / "file").write_text("")
    with pytest.raises(budgets.BudgetError, match="Cannot write the budget file"):
        budgets.write(tmp_path / "file" / "budget.json", {})
    with pytest.raises(budgets.BudgetError, match="Cannot read the budget file"):
        budgets.read(tmp_path)
