"""The sample of PyTorch's test databases that CI runs; `make conformance` runs all of it.

Cases are chosen by a hash of their names, so that the same ones run everywhere until torch's
databases change.
"""

from __future__ import annotations

import dataclasses
import hashlib
from unittest import mock

import pytest
import torch

from lowering import REGISTRY, hlo
from lowering.bucketing.atoms import Layout
from lowering.bucketing.call import Call
from lowering.bucketing.call import Outcome as PaddedOutcome
from lowering.bucketing.rules import results as results_of
from lowering.mlir import stablehlo
from lowering.registry import Padding
from tests.conformance.cases import ON_DEVICE, PADDED, Case, Sample, all_cases, samples_of
from tests.conformance.declared import DECLARED, surprises, unknown_kinds
from tests.conformance.interpret import verdict
from tests.conformance.judging import Outcome, judge
from tests.conformance.padded import judge_padded
from tests.conformance.pool import Result, decode, encode, run_case
from tests.conformance.report import padding_table

CHUNKS = 24
SEED = "1"

# One case in so many is run.
ONE_IN = {
    ("forward", "float32"): 4,
    ("forward", "int64"): 12,
    ("backward", "float32"): 6,
    ("module", "float32"): 12,
    ("dynamic", "float32"): 24,
    ("dynamic", "int64"): 60,
    ("dynamic-backward", "float32"): 40,
    ("device", "float32"): 30,
    ("device-backward", "float32"): 40,
}
ONE_IN_OTHERS = 24
ONE_IN_OTHERS_ON_DEVICE = 100


def number_of(case: Case) -> int:
    return int(hashlib.sha256(" ".join((SEED, *case)).encode()).hexdigest()[:12], 16)


def is_chosen(case: Case) -> bool:
    others = ONE_IN_OTHERS_ON_DEVICE if case.kind in ON_DEVICE else ONE_IN_OTHERS
    return number_of(case) % ONE_IN.get((case.kind, case.dtype), others) == 0


@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.timeout(900)
def test_sample_of_the_databases(chunk: int) -> None:
    chosen = [case for case in all_cases() if is_chosen(case)][chunk::CHUNKS]
    assert chosen
    results = [run_case(case, most=1 if case.kind in PADDED | ON_DEVICE else 2) for case in chosen]
    assert list(surprises(results)) == []


def test_every_declaration_is_about_something() -> None:
    assert unknown_kinds() == []
    cases = list(all_cases())
    unused = [entry.names for entry in DECLARED if not any(map(entry.covers, cases))]
    assert unused == []


def test_a_wrong_rule_is_noticed() -> None:
    """The harness itself: a sine that is lowered to something else must not pass."""
    sine = torch.ops.aten.sin.default
    wrong = dataclasses.replace(REGISTRY.get(sine), function=lambda ctx, x: stablehlo.cosine(x))
    case = Case("forward", "sin", "float32")
    _, sample = samples_of(case, 1)[0]
    with mock.patch.dict(REGISTRY._rules, {sine: wrong}):
        outcome = judge(case, sample)
        assert verdict(case, sample).startswith("the lowering is wrong")
    assert outcome.status == "failed"
    assert "output 0" in outcome.detail


def test_padding_that_shows_is_noticed() -> None:
    """The harness itself: a sum that hides nothing but NaN must not pass."""
    total = torch.ops.aten.sum.dim_IntList

    def hides_nan(call: Call) -> PaddedOutcome:
        operand = call.value("self")
        is_number = hlo.compare(operand, operand, "EQ")
        call.replace("self", hlo.select(is_number, operand, hlo.full_like(operand, 0)))
        return results_of(call, call.run(), Layout(()))

    wrong = dataclasses.replace(REGISTRY.get(total), padding=hides_nan)
    sample = Sample(torch.sum, (torch.randn(5, 7),), {})
    with mock.patch.dict(REGISTRY._rules, {total: wrong}):
        outcome = judge_padded(Case("dynamic", "sum", "float32"), sample)
    assert outcome.status == "failed"
    assert outcome.detail == "leak: padding of inf shows in output 0"


def test_exact_shapes_are_told() -> None:
    total = torch.ops.aten.sum.dim_IntList
    without_rule = dataclasses.replace(REGISTRY.get(total), padding=Padding.EXACT)
    sample = Sample(torch.sum, (torch.randn(5, 7),), {})
    case = Case("dynamic", "sum", "float32")
    assert judge_padded(case, sample) == Outcome("passed", is_padded=True)
    with mock.patch.dict(REGISTRY._rules, {total: without_rule}):
        outcome = judge_padded(case, sample)
    assert outcome.status == "passed"
    assert not outcome.is_padded
    result = Result(case, passed=1, exact={0: outcome.exact_reason or ""})
    report = padding_table([result])
    assert "| dynamic | float32 | 1 | 1 | 100.0 |" in report
    assert "| 1 | aten.sum.dim_IntList: it has no padding rule | sum |" in report


def test_results_survive_the_file() -> None:
    padded = run_case(Case("dynamic", "sin", "float32"), most=1)
    assert padded.padded == 1
    assert decode(encode(padded)) == padded
    exact = dataclasses.replace(padded, exact={3: "why"})
    assert decode(encode(exact)) == exact
    result = run_case(Case("forward", "t", "float32"), most=1)
    assert result.passed == 1
    assert result.overloads
    assert decode(encode(result)) == result
