from __future__ import annotations

import json

import pytest

from tpu_compile.inspector.cli import main
from tpu_compile.runtime.pjrt import plugin_path

# Dynamo inspects scripted modules on its way through torch.optim.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")

MODELS = "tests.inspector.models_to_ask"
needs_libtpu = pytest.mark.skipif(plugin_path("tpu") is None, reason="libtpu is not installed")


def test_the_cpu_has_no_limit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", f"{MODELS}:made", "--target", "cpu", "--batch", "1,8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("on cpu")
    assert [line.split()[0] for line in lines[2:5]] == ["batch", "1", "8"]


def test_a_model_without_a_program_has_no_memory(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", f"{MODELS}:computes_nothing", "--target", "cpu", "--batch", "1,2"]) == 6
    assert "runs no op in a compiled graph" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["0", "1,x", "", "-1", "1.5"])
def test_sizes_are_whole_numbers(capsys: pytest.CaptureFixture[str], text: str) -> None:
    assert main(["fit", f"{MODELS}:made", "--target", "cpu", f"--batch={text}"]) == 5
    assert "positive whole numbers" in capsys.readouterr().err


@needs_libtpu
def test_sizes_do_not_become_dynamic(capsys: pytest.CaptureFixture[str]) -> None:
    """Dynamo would make the batch dynamic at the second one, and it would be padded."""
    arguments = ["fit", f"{MODELS}:made", "--target", "v6e", "--batch", "1,65,66", "--no-search"]
    assert main([*arguments, "--json"]) == 0
    _, before, after = (row["flops"] for row in json.loads(capsys.readouterr().out)["rows"])
    assert after / before == pytest.approx(66 / 65, rel=1e-3)


@needs_libtpu
def test_the_largest_batch_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    """One array of 50,000 squared float32 is 9.3 GiB: a v6e holds the smaller ones."""
    arguments = ["fit", f"{MODELS}:too_large", "--target", "v6e", "--batch", "1,4", "--json"]
    assert main(arguments) == 3
    told = json.loads(capsys.readouterr().out)
    small, large = told["rows"]
    assert small["fits"]
    assert small["peak_bytes"] >= 3 * 4 * 50_000**2
    assert not large["fits"]
    assert large["excess_bytes"] > 0
    (largest,) = told["largest_batch"]
    assert largest == {"sizes": {}, "batch": 1, "is_limit": False}


@needs_libtpu
def test_the_table_says_by_how_much_it_is_too_large(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", f"{MODELS}:too_large", "--target", "v5e", "--no-search"]) == 3
    told = capsys.readouterr().out
    assert "more than there is" in told
    assert "exceeds available HBM" in told


@needs_libtpu
def test_a_training_step_has_state(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", f"{MODELS}:made", "--train", "--target", "v6e", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    parameters = 4 * (16 * 32 + 32 + 32 * 16 + 16)
    assert row["state_bytes"] >= 3 * parameters
    assert row["bound"] == "memory"
    assert 0 < row["peak_share"] < 1
