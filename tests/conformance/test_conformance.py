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

from lowering import REGISTRY
from lowering.mlir import stablehlo
from tests.conformance.cases import Case, all_cases, samples_of
from tests.conformance.declared import DECLARED, surprises, unknown_kinds
from tests.conformance.interpret import verdict
from tests.conformance.judging import judge
from tests.conformance.pool import decode, encode, run_case

CHUNKS = 24
SEED = "1"

# One case in so many is run.
ONE_IN = {
    ("forward", "float32"): 4,
    ("forward", "int64"): 12,
    ("backward", "float32"): 6,
    ("module", "float32"): 12,
}
ONE_IN_OTHERS = 24


def number_of(case: Case) -> int:
    return int(hashlib.sha256(" ".join((SEED, *case)).encode()).hexdigest()[:12], 16)


def is_chosen(case: Case) -> bool:
    return number_of(case) % ONE_IN.get((case.kind, case.dtype), ONE_IN_OTHERS) == 0


@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.timeout(900)
def test_sample_of_the_databases(chunk: int) -> None:
    chosen = [case for case in all_cases() if is_chosen(case)][chunk::CHUNKS]
    assert chosen
    assert list(surprises([run_case(case, most=2) for case in chosen])) == []


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


def test_results_survive_the_file() -> None:
    result = run_case(Case("forward", "t", "float32"), most=1)
    assert result.passed == 1
    assert result.overloads
    assert decode(encode(result)) == result
