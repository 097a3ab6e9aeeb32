from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from benchmarks import harness, runner
from benchmarks.peers import Contest, contest, make_each
from benchmarks.registry import Case, Settings, Suite, UnknownNameError, by_name, select
from benchmarks.results import OURS, Figure, Measured, Row, measured, verdict
from benchmarks.suites import SUITES


def test_a_figure_is_median_and_quartiles() -> None:
    assert Figure.of([5.0, 1.0, 3.0, 2.0, 4.0]) == Figure(3.0, 2.0, 4.0)
    assert Figure.of([5.0, 1.0, 3.0, 2.0, 4.0]).spread == 2.0
    assert Figure.of([7.0]) == Figure(7.0, 7.0, 7.0)


def test_ratios_are_taken_round_by_round() -> None:
    # The machine was ten times slower in the second round: no ratio shows it.
    found = measured({OURS: [1.0, 10.0, 1.0], "eager": [2.0, 20.0, 2.0]})
    assert found.ratios == {"eager": Figure(0.5, 0.5, 0.5)}
    assert found.figures["eager"].high == 11.0
    assert found.rounds == 3


def test_ratios_need_equal_rounds_and_a_divisor() -> None:
    with pytest.raises(ValueError, match="same number"):
        measured({OURS: [1.0], "eager": [1.0, 2.0]})
    assert measured({OURS: [1.0], "eager": [0.0]}).ratios == {}
    assert measured({"eager": [1.0]}).ratios == {}


def test_verdicts_follow_the_quartiles_and_skip_references() -> None:
    assert verdict(Figure(0.9, 0.8, 0.99)) == "win"
    assert verdict(Figure(0.9, 0.8, 1.01)) == "even"
    assert verdict(Figure(1.1, 1.01, 1.3)) == "loss"
    found = measured({OURS: [2.0], "eager": [1.0], "aot no-op": [1.0]})
    assert Row("s", "c", "t", found).verdicts() == {"eager": "loss"}


def test_competitors_take_turns_and_the_order_turns_too() -> None:
    order: list[str] = []

    def call(name: str) -> harness.Call:
        return lambda: order.append(name)

    samples = harness.interleave({"a": call("a"), "b": call("b")}, rounds=3, seconds=0.0)
    # Each was warmed by three calls before.
    assert "".join(order) == "aaabbb" + "ab" + "ab"[::-1] + "ab"
    assert [len(values) for values in samples.values()] == [3, 3]


@pytest.mark.parametrize(
    ("got", "told"),
    [
        ((torch.ones(3), 5), None),
        ((torch.ones(3) * 1.0001, 5), None),
        ((torch.ones(3) * 1.01, 5), "result 0 is off by 1.0e-02"),
        ((torch.ones(3), 6), "result 1 is off"),
        ((torch.ones(2), 5), "shape [2], eager's [3]"),
        ((torch.tensor([1, 1, float("nan")]), 5), "NaN"),
        (torch.ones(3), "1 results in place of 2"),
    ],
)
def test_difference(got: object, told: str | None) -> None:
    off = harness.difference((torch.ones(3), 5), got)
    assert off is None if told is None else told in (off or "")


def test_integers_have_to_be_equal() -> None:
    assert harness.difference(torch.tensor([50_000]), torch.tensor([50_000])) is None
    assert harness.difference(torch.tensor([50_000]), torch.tensor([50_001])) is not None


def test_whoever_is_wrong_or_missing_has_a_reason_and_no_time() -> None:
    def absent() -> harness.Call:
        raise ModuleNotFoundError("No module named 'jax'", name="jax")

    def refuses() -> harness.Call:
        raise ValueError("cannot\nmore")

    makers = {OURS: lambda: lambda: 1.0, "eager": lambda: lambda: 2.0}
    calls, left_out = make_each({**makers, "jax.jit": absent, "inductor": refuses})
    assert left_out == {"jax.jit": "jax is not installed", "inductor": "ValueError: cannot"}
    right, wrong = harness.agreeing(calls, 2.0)
    found = Contest(right, left_out, wrong).timed(rounds=1)
    assert set(found.figures) == {"eager"}
    gaps = Row("s", "c", "t", found).gaps()
    assert gaps[OURS].startswith("wrong result: result 0 is off by 5.0e-01")
    assert gaps["jax.jit"] == "jax is not installed"


def test_a_contest_compares_with_eager() -> None:
    with torch.no_grad():
        found = contest(torch.nn.Linear(2, 2), [torch.ones(1, 2)], [OURS, "eager"])
    assert set(found.calls) == {OURS, "eager"}
    assert not found.left_out
    assert not found.wrong


def test_names_of_the_registry_are_unique() -> None:
    assert {"overhead", "ops", "models", "compile-time", "memory", "device"} <= set(SUITES)
    chosen = select(SUITES, [])
    names = [f"{suite.name}/{case.name}" for suite, case in chosen]
    assert len(names) == len(set(names)) > 80
    assert all(case.title for _, case in chosen)


def test_a_name_that_is_taken_is_refused() -> None:
    case = Case("one", "t", lambda settings: Measured())
    with pytest.raises(ValueError, match="taken twice"):
        by_name([Suite("a", (case, case))])
    with pytest.raises(ValueError, match="taken twice"):
        by_name([Suite("a", (case,)), Suite("a", ())])


def test_suites_and_cases_are_selected_once() -> None:
    chosen = select(SUITES, ["device/op", "device"])
    assert [case.name for _, case in chosen] == ["op", "training"]
    with pytest.raises(UnknownNameError, match="models/bert-forward"):
        select(SUITES, ["models/bert-forwards"])


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import time; time.sleep(60)", "took longer than 0.5 s"),
        ("raise ValueError('broken')", "ValueError: broken"),
        ("import os; os.kill(os.getpid(), 9)", "signal 9"),
        ("pass", ""),
    ],
)
def test_a_case_that_ends_badly_has_a_reason(code: str, told: str, tmp_path: Path) -> None:
    limit = 0.5 if "sleep" in code else 30
    why = runner._failure_of([sys.executable, "-c", code], limit, tmp_path / "errors")
    assert told in why
    assert bool(why) == bool(told)


def test_rounds() -> None:
    assert Settings().rounds_or(11) == 11
    assert Settings(quick=True).rounds_or(11) == 2
    assert Settings(quick=True, rounds=5).rounds_or(11) == 5
