"""Bad input gets its exception class with what, where, why and a way out, and harms nothing."""

from __future__ import annotations

import copy
import gc
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import tpu_compile
from tpu_compile.runtime import pjrt, platforms


def run(inputs: torch.Tensor, **settings: Any) -> torch.Tensor:
    """Call a function that mutates its input through the backend."""
    return torch.compile(lambda x: x.add_(1) * 2, backend="tpu", **settings)(inputs)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fallbak": "error"}, ["fallbak", "'fallback'"]),
        ({"fallback": "cpu"}, ["fallback", "'cpu'", "'eager' or 'error'"]),
        ({"buckets": "pow3"}, ["buckets", "'pow3'"]),
        ({"buckets": 0}, ["buckets", "0"]),
        ({"buckets": []}, ["buckets"]),
        ({"buckets": True}, ["buckets", "True"]),
        ({"max_padding": 2}, ["max_padding", "between 0 and 1"]),
        ({"matmul_precision": "low"}, ["matmul_precision", "'low'", "'highest'"]),
        ({"donate": 1}, ["donate", "True or False"]),
        ({"cache_dir": 3}, ["cache_dir"]),
        ({"cache_dir": "a\0b"}, ["cache_dir"]),
        ({"cache_size": "2 parsecs"}, ["cache_size", "2 parsecs", "2GiB"]),
        ({"cache_size": 0}, ["cache_size", "positive"]),
        ({"cache_size": True}, ["cache_size", "True"]),
        ({"cache_size": 1.5}, ["cache_size", "1.5"]),
        ({"cache_verify": "yes"}, ["cache_verify", "'yes'", "True, False or None"]),
        ({"xla_options": {"xla_cpu_enable_fast_math": "maybe"}}, ["fast_math", "'maybe'"]),
        ({"xla_options": ["a"]}, ["xla_options"]),
        ({"xla_options": {"xla_no_such_flag": 1}}, ["xla_no_such_flag"]),
    ],
)
def test_options(options: dict[str, Any], words: list[str]) -> None:
    inputs = torch.zeros(3)
    with pytest.raises(tpu_compile.OptionError) as caught:
        run(inputs, options=options)
    for word in words:
        assert word in str(caught.value)
    assert torch.equal(inputs, torch.zeros(3))


def test_an_options_object_is_taken_copied_and_pickled() -> None:
    options = tpu_compile.CompileOptions(
        buckets=[8, 4], xla_options={"xla_cpu_enable_fast_math": False}, cache_size="2GiB"
    )
    assert copy.deepcopy(options) == options == pickle.loads(pickle.dumps(options))
    plain = tpu_compile.CompileOptions(fallback="error")
    assert torch.equal(run(torch.zeros(3), options=plain), torch.full((3,), 2.0))


def test_a_program_that_fails_while_it_runs_raises() -> None:
    inputs = torch.ones(20000)
    function = torch.compile(
        lambda x: (x[:, None, None] * x[None, :, None] * x[None, None, :]).cumsum(0),
        backend="tpu",
    )
    with pytest.raises(tpu_compile.DeviceError) as caught:
        function(inputs)
    assert "test_bad_input.py" in str(caught.value)
    assert torch.equal(torch.compile(lambda x: x + 1, backend="tpu")(inputs), inputs + 1)


def test_arguments_of_the_public_functions() -> None:
    with pytest.raises(tpu_compile.OptionError, match="set_platform got 3"):
        tpu_compile.set_platform(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="invalidate takes"):
        tpu_compile.invalidate(3)  # type: ignore[arg-type]
    for wrong in (-1, "a", True):
        with pytest.raises(tpu_compile.OptionError), tpu_compile.expect_compiles(wrong):  # type: ignore[arg-type]
            pass
    with pytest.raises(tpu_compile.DeviceError, match="did you mean 'cpu'"):
        pjrt.open_client("CPU")


def test_switching_platforms_never_serves_another_clients_program() -> None:
    function = torch.compile(lambda x: x.sin() * 3, backend="tpu")
    for _ in range(25):
        platforms.set_platform("elsewhere")
        platforms.set_platform("cpu")
        torch._dynamo.reset()
        gc.collect()
        assert torch.equal(function(torch.zeros(2)), torch.zeros(2))


def test_modes() -> None:
    for mode in ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"):
        assert torch.equal(run(torch.zeros(3), mode=mode), torch.full((3,), 2.0))
    with pytest.raises(tpu_compile.OptionError, match="did you mean 'max-autotune'"):
        run(torch.zeros(3), mode="max-autotun")


def test_failing_xla_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = torch.zeros(3)
    client = platforms.current_client()
    original = client.compile
    monkeypatch.setattr(
        client, "compile", lambda module, options=(): original(b"module {", options)
    )
    with pytest.raises(tpu_compile.CompilationError) as caught:
        run(inputs)
    assert "test_bad_input.py" in str(caught.value)
    assert torch.equal(inputs, torch.zeros(3))
    monkeypatch.undo()
    assert torch.equal(run(inputs), torch.full((3,), 2.0))
    assert torch.equal(inputs, torch.ones(3))


def test_missing_and_closed_plugin() -> None:
    inputs = torch.zeros(3)
    function = torch.compile(lambda x: x.add_(1) * 2, backend="tpu")
    function(inputs.clone())
    try:
        platforms.set_platform("no_such_chip")
        with pytest.raises(tpu_compile.DeviceError, match="was closed"):
            function(inputs)
        torch._dynamo.reset()
        with pytest.raises(tpu_compile.DeviceError) as caught:
            function(inputs)
        assert "no_such_chip" in str(caught.value)
        assert 'set_platform("cpu")' in str(caught.value)
    finally:
        platforms.set_platform("cpu")
    assert torch.equal(inputs, torch.zeros(3))
    torch._dynamo.reset()
    assert torch.equal(function(inputs), torch.full((3,), 2.0))


def test_no_tpu_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pjrt.client, "tpu_is_attached", lambda: False)
    with pytest.raises(tpu_compile.DeviceError, match="no TPU in this machine"):
        pjrt.open_client("tpu")


def test_plugin_that_is_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "plugin.so"
    library.write_text("not a library")
    monkeypatch.setenv("PJRT_NAMES_AND_LIBRARY_PATHS", f"broken:{library}")
    with pytest.raises(tpu_compile.DeviceError, match="broken"):
        pjrt.open_client("broken")


def test_tensors_on_another_device() -> None:
    function = torch.compile(lambda x, y: (x + 1, y + 1), backend="tpu")
    inputs = torch.zeros(3)
    with pytest.raises(tpu_compile.DeviceError) as caught:
        function(inputs, torch.zeros(3, device="meta"))
    assert "'meta'" in str(caught.value)
    assert ".cpu()" in str(caught.value)


def test_message_has_what_where_why_and_ways_out() -> None:
    error = tpu_compile.UnsupportedOpError("Op x failed", where="a.py:3", why="r", ways_out=("w",))
    assert str(error) == "Op x failed (a.py:3): r. Ways out: w."
    for kind in ("CompilationError", "DeviceError", "LoweringError", "OptionError"):
        assert issubclass(getattr(tpu_compile, kind), tpu_compile.TpuCompileError)


def test_an_error_reaches_the_user_with_its_own_class_and_no_traceback_of_ours(
    tmp_path: Path,
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "torch.compile(lambda x: x + 1, backend='tpu', options={'nope': 1})(torch.ones(2))\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert re.search(r"OptionError: The option 'nope'", done.stderr)
