"""`doctor`: each check finds what it is for."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.backends import registry

from tpu_compile import backend
from tpu_compile.inspector import doctor
from tpu_compile.inspector.cli import main
from tpu_compile.inspector.requirements import is_inside, ranges_of

Findings = dict[str, list[dict[str, Any]]]


def findings(capsys: pytest.CaptureFixture[str], code: int = 0) -> Findings:
    """Run the command, check its exit code, and return its findings by name."""
    assert main(["doctor", "--json"]) == code
    found: Findings = {}
    for finding in json.loads(capsys.readouterr().out)["findings"]:
        found.setdefault(finding["name"], []).append(finding)
    return found


def test_a_sound_environment(capsys: pytest.CaptureFixture[str]) -> None:
    found = findings(capsys)
    assert found["torch"][0]["text"].startswith(torch.__version__)
    assert ">=2.13" in found["torch"][0]["text"]
    assert ">=0.10.2" in found["jaxlib"][0]["text"]
    assert found["compile and run"][0]["text"] == "right on cpu"
    for name in ("backend 'tpu'", "backend 'tpu_compile'", 'device "tpu"', "python", "ml_dtypes"):
        assert found[name][0]["state"] == "ok", found[name]


def test_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "ok       compile and run: right on cpu" in lines


def test_it_registers_no_device() -> None:
    code = (
        "import sys, torch\nfrom tpu_compile.inspector import doctor\n"
        "print(list(doctor._device()))\nassert 'tpu_compile.device' not in sys.modules\n"
        "assert torch._C._get_privateuse1_backend_name() == 'privateuseone'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "state='ok'" in done.stdout


def test_a_version_out_of_range(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    version = metadata.version
    monkeypatch.setattr(
        metadata, "version", lambda name: "0.9.1" if name == "jaxlib" else version(name)
    )
    (finding,) = findings(capsys, code=1)["jaxlib"]
    assert finding["state"] == "problem"
    assert finding["text"].startswith("0.9.1, and ")
    assert "pip install 'jaxlib" in finding["way_out"]


def test_a_package_that_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    version = metadata.version

    def without_numpy(name: str) -> str:
        if name in ("numpy", "libtpu", "jax"):
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", without_numpy)
    found = findings(capsys, code=1)
    assert found["numpy"][0]["state"] == "problem"
    assert found["libtpu"][0]["state"] == "ok"
    assert "jax" not in found


def test_a_backend_name_of_somebody_else(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def foreign(*args: Any) -> None: ...

    monkeypatch.setitem(registry._COMPILER_FNS, "tpu", foreign)
    (finding,) = findings(capsys)["backend 'tpu'"]
    assert finding["state"] == "warning"
    assert f"{foreign.__module__}:foreign" in finding["text"]
    assert finding["way_out"] == 'backend="tpu_compile"'


def test_a_device_of_another_plugin(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch._C, "_get_privateuse1_backend_name", lambda: "other")
    (finding,) = (each for each in doctor._device())
    assert finding.state == "problem"
    assert "'other' is there already" in finding.text
    assert "does not import the other plugin" in str(finding.way_out)


def test_a_cache_that_others_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache"
    monkeypatch.setenv("TPU_COMPILE_CACHE_DIR", str(folder))
    assert "will be made" in next(iter(doctor._cache())).text
    folder.mkdir()
    folder.chmod(0o700)
    assert [each.state for each in doctor._cache()] == ["ok"]
    folder.chmod(0o777)
    (finding,) = doctor._cache()
    assert finding.state == "problem"
    assert f"chmod go-w {folder}" in finding.text
    folder.chmod(0o700)
    monkeypatch.setenv("TPU_COMPILE_CACHE_SIZE", "2GiB")
    (finding,) = doctor._cache()
    assert finding.text == f"{folder}: 0 programs, 0 B of 2.0 GiB"
    monkeypatch.setenv("TPU_COMPILE_CACHE_SIZE", "big")
    (finding,) = doctor._cache()
    assert finding.state == "problem"
    assert "TPU_COMPILE_CACHE_SIZE" in finding.text


def test_a_cache_that_is_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TPU_COMPILE_CACHE_DIR", str(tmp_path / "file"))
    assert findings(capsys, code=1)["cache"][0]["state"] == "problem"


def test_environment_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_COMPILE_PLATFORMS", "cpu")
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=x")
    found = {each.name: each for each in doctor._environment()}
    assert "did you mean 'TPU_COMPILE_PLATFORM'?" in str(found["TPU_COMPILE_PLATFORMS"].way_out)
    assert found["TPU_COMPILE_PLATFORMS"].state == "warning"
    assert found["TORCH_COMPILE_DISABLE"].state == "warning"
    assert found["XLA_FLAGS"].text == "--xla_dump_to=x"


def test_a_platform_that_nothing_provides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_COMPILE_PLATFORM", "npu")
    problems = [each for each in doctor._platforms() if each.state == "problem"]
    assert [each.name for each in problems] == ["TPU_COMPILE_PLATFORM"]
    assert "'npu'" in problems[0].text


def test_a_plugin_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PJRT_NAMES_AND_LIBRARY_PATHS", "npu:/lib/npu.so,other:/lib/other.so")
    monkeypatch.setenv("TPU_COMPILE_PLATFORM", "npu")
    found = {each.name: each for each in doctor._platforms()}
    assert "npu (/lib/npu.so)" in found["platforms"].text
    assert "TPU_COMPILE_PLATFORM" not in found


def test_a_program_that_does_not_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no\ncompiler")

    monkeypatch.setattr(backend, "tpu", refuse)
    (finding,) = findings(capsys, code=1)["compile and run"]
    assert "no compiler" in finding["text"]


@pytest.mark.parametrize(
    ("version", "wanted", "inside"),
    [
        ("2.13.0+cpu", ">=2.13,<2.15", True),
        ("2.15", ">=2.13,<2.15", False),
        ("2.9", ">=2.13", False),
        ("1.0", "==1.0.0", True),
        ("1.0", "!=1.0", False),
        ("1.0", "~=1.0", None),
        ("unknown", ">=1", None),
    ],
)
def test_ranges(version: str, wanted: str, inside: bool | None) -> None:
    assert is_inside(version, wanted) is inside


def test_ranges_of_this_project() -> None:
    ranges = ranges_of("tpu_compile")
    assert ranges["python"] == ">=3.11"
    assert ranges["ml_dtypes"] == ">=0.5"
    assert "libtpu" not in ranges
