"""The pytest plugin, in sessions of pytest within this process and, for xdist, in others.

Not with `pytester` in this process, which forgets the modules that a session imports: torch cannot
be imported twice.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

PLUGIN = "tpu_compile_pytest"
HEAD = """
import pytest
import torch
import tpu_compile

def double(*sizes):
    function = torch.compile(lambda x: x * 2, backend="tpu", dynamic=False)
    for size in sizes:
        function(torch.ones(size))

"""


class Project:
    """A folder with tests, and sessions of pytest in it."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys
        (folder / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers -ra\n")

    def write(self, code: str, name: str = "test_sample.py") -> None:
        (self.folder / name).write_text(HEAD + code)

    def run(self, *arguments: str) -> tuple[int, str]:
        """Run pytest here, and return its exit code and what it printed."""
        # These two have state of the process, which is the outer session's.
        plain = ["-p", "no:cacheprovider", "-p", "no:faulthandler", "-p", PLUGIN]
        place = [f"--rootdir={self.folder}", f"--confcutdir={self.folder}"]
        settings = ["-c", str(self.folder / "pytest.ini"), "--import-mode=importlib"]
        sys.modules.pop("test_sample", None)
        code = pytest.main([*plain, *place, *settings, *arguments, str(self.folder)])
        captured = self._capsys.readouterr()
        return int(code), captured.out + captured.err

    def run_apart(self, *arguments: str, plugin: bool = True) -> tuple[int, str]:
        """Run pytest in a process of its own."""
        loaded = ["-p", PLUGIN] if plugin else []
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *loaded, *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def budget(self) -> dict[str, Any]:
        return json.loads((self.folder / "budget.json").read_text())["budgets"]  # type: ignore[no-any-return]


@pytest.fixture
def project(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Project:
    return Project(tmp_path, capsys)


def test_max_compiles(project: Project) -> None:
    project.write("""
@pytest.mark.max_compiles(2)
def test_passes():
    double(2, 3)

@pytest.mark.max_compiles(n=1)
def test_fails():
    double(4, 5)

@pytest.mark.max_compiles(0)
def test_fails_for_its_own_reason():
    double(6)
    assert 1 == 2

@pytest.fixture
def warm():
    double(7)

@pytest.mark.max_compiles(0)
def test_a_fixture_may_compile(warm):
    double(7)
""")
    code, output = project.run()
    assert code == 1
    assert "2 passed, 2 failed" in output or "2 failed, 2 passed" in output
    assert "2 programs were compiled, max_compiles allows 1:" in output
    assert "2. <lambda> inference" in output
    assert "float32[5]: input 0 went from float32[2] to float32[5]" in output
    assert "test_sample.py:7" in output
    assert "assert 1 == 2" in output
    assert "max_compiles allows 0" not in output


@pytest.mark.parametrize("arguments", ["", "-1", "True", "'2'", "1, 2", "m=3", "n=None"])
def test_max_compiles_with_bad_arguments(project: Project, arguments: str) -> None:
    project.write(f"""
@pytest.mark.max_compiles({arguments})
def test_it():
    pass
""")
    code, output = project.run()
    assert code == 1
    assert f"max_compiles({arguments}): it takes one whole number from 0 up" in output


def test_the_nearest_marker_counts(project: Project) -> None:
    project.write("""
@pytest.mark.max_compiles(0)
class TestAll:
    @pytest.mark.max_compiles(1)
    def test_one(self):
        double(2)

    def test_none(self):
        double(3)
""")
    code, output = project.run()
    assert (code, "1 failed, 1 passed" in output) == (1, True)
    assert "test_sample.py::TestAll::test_none" in output


def test_compile_stats(project: Project) -> None:
    project.write("""
def test_counts_this_test(compile_stats):
    assert compile_stats.xla_compiles == 0
    double(2, 3)
    assert compile_stats.xla_compiles == 2
    assert compile_stats.executions == 2
    assert [record.inputs for record in compile_stats.records] == [("float32[2]",), ("float32[3]",)]
    before = compile_stats.now()
    tpu_compile.reset()
    double(2)
    assert (compile_stats.xla_compiles, before.xla_compiles) == (3, 2)
    assert compile_stats.compile_seconds > before.compile_seconds > 0
    assert dict(compile_stats.fallback_ops) == {}
    with pytest.raises(AttributeError):
        compile_stats.no_such_counter

@pytest.fixture
def warm(compile_stats):
    double(7)
    assert compile_stats.xla_compiles == 1

def test_starts_at_the_call(warm, compile_stats):
    assert compile_stats == compile_stats
    assert compile_stats.xla_compiles == 0
    assert compile_stats.records == ()
""")
    code, output = project.run()
    assert code == 0, output


def test_budget_is_written_checked_and_lowered(project: Project) -> None:
    body = """
def test_two():
    double({sizes})

def test_none():
    pass

def test_same_program():
    double(2)
"""
    project.write(body.format(sizes="2, 3"))
    options = [f"--compile-budget={project.folder / 'budget.json'}"]
    code, output = project.run(*options)
    assert code == 4
    assert "There is no budget file" in output
    code, output = project.run(*options, "--update-compile-budget")
    assert code == 0
    assert "3 tests compiled 3 programs" in output
    # The last test compiles what the first has compiled: order and selection must not matter.
    assert project.budget() == {
        "test_sample.py::test_same_program": {"<lambda> inference": 1},
        "test_sample.py::test_two": {"<lambda> inference": 2},
    }
    assert project.run(*options)[0] == 0
    assert project.run(*options, "-k", "same_program")[0] == 0

    project.write(body.format(sizes="2, 3, 4"))
    code, output = project.run(*options)
    assert code == 1
    assert "over the budget of budget.json" in output
    assert "<lambda> inference may compile 2, compiled 3:" in output
    assert "float32[4]: input 0 went from float32[2] to float32[4]" in output
    assert "over: test_sample.py::test_two" in output

    project.write(body.format(sizes="2"))
    code, output = project.run(*options)
    assert code == 0
    assert "stale: test_sample.py::test_two: <lambda> inference may compile 2, compiled 1" in output
    assert project.run(*options, "--update-compile-budget", "-k", "test_two")[0] == 0
    assert project.budget()["test_sample.py::test_two"] == {"<lambda> inference": 1}
    assert "test_sample.py::test_same_program" in project.budget()


def test_a_failing_test_keeps_its_budget(project: Project) -> None:
    options = [f"--compile-budget={project.folder / 'budget.json'}", "--update-compile-budget"]
    project.write("def test_it():\n    double(2)\n")
    assert project.run(*options)[0] == 0
    project.write("def test_it():\n    double(2, 3)\n    assert False\n")
    assert project.run(*options)[0] == 1
    assert project.budget() == {"test_sample.py::test_it": {"<lambda> inference": 1}}


def test_a_test_that_is_not_in_the_budget_fails(project: Project) -> None:
    (project.folder / "budget.json").write_text('{"format": "tpu_compile-budget-1", "budgets": {}}')
    project.write("def test_new():\n    double(2)\n")
    code, output = project.run(f"--compile-budget={project.folder / 'budget.json'}")
    assert code == 1
    assert "<lambda> inference is not in the budget, compiled 1" in output


def test_the_environments_cache_does_not_hide_compiles(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPU_COMPILE_CACHE_DIR", str(project.folder / "cache"))
    project.write("def test_it():\n    double(2)\n")
    options = [f"--compile-budget={project.folder / 'budget.json'}", "--update-compile-budget"]
    for _ in range(2):
        project.run(*options)
        assert project.budget() == {"test_sample.py::test_it": {"<lambda> inference": 1}}


def test_wrong_budgets(project: Project) -> None:
    project.write("def test_it():\n    pass\n")
    code, output = project.run("--update-compile-budget")
    assert (code, "needs --compile-budget=FILE" in output) == (4, True)
    (project.folder / "budget.json").write_text("{")
    code, output = project.run(f"--compile-budget={project.folder / 'budget.json'}")
    assert (code, "no budget file that can be used" in output) == (4, True)
    below_a_file = project.folder / "pytest.ini" / "budget.json"
    code, output = project.run(f"--compile-budget={below_a_file}", "--update-compile-budget")
    assert (code, "Cannot write the budget file" in output) == (4, True)


def test_workers_of_xdist_lose_nothing(project: Project) -> None:
    for name in ("test_a.py", "test_b.py"):
        project.write(
            "@pytest.mark.parametrize('size', [2, 3])\n"
            "def test_it(size):\n    double(size, size + 1)\n",
            name,
        )
    options = ["--compile-budget=budget.json", "--update-compile-budget"]
    code, output = project.run_apart("-n", "2", *options)
    assert code == 0, output
    assert "4 tests compiled 8 programs" in output
    tests = [f"test_{file}.py::test_it[{size}]" for file in "ab" for size in (2, 3)]
    assert project.budget() == {test: {"<lambda> inference": 2} for test in tests}


def test_unused_it_imports_no_torch(project: Project) -> None:
    (project.folder / "pytest.ini").write_text(
        "[pytest]\naddopts = --strict-markers\nfilterwarnings = error\n"
    )
    (project.folder / "test_sample.py").write_text(
        "import sys\n\ndef test_it(request):\n"
        f"    assert request.config.pluginmanager.has_plugin('{PLUGIN}')\n"
        "    assert not {'torch', 'tpu_compile', 'lowering'} & set(sys.modules)\n"
    )
    code, output = project.run_apart()
    assert code == 0, output


def test_it_is_an_entry_point() -> None:
    values = [point.value for point in entry_points(group="pytest11", name=PLUGIN)]
    assert values == [PLUGIN]
