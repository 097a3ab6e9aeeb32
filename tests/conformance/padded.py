"""Judges a call with dynamic sizes: whatever padding holds, results are bit-equal, and eager's.

Every size from 3 up of the tensors among the arguments is dynamic, each by itself: torch finds out
which of them must be equal. Smaller ones stay static, as torch treats 0 and 1 apart, and 2 is its
own bucket.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

import tpu_compile
from tests.conformance.cases import Case, Sample, dynamic_dims
from tests.conformance.judging import (
    STRICT,
    UNINITIALIZED,
    Observed,
    Outcome,
    difference,
    first_line,
    is_random,
    observe,
)
from tests.padding.checking import FILLS, bits_equal
from tpu_compile.backend import GraphReport
from tpu_compile.backend import observe as graphs_observed
from tpu_compile.framing import padding_filled


def judge_padded(case: Case, sample: Sample) -> Outcome:
    """Return how our backend does on `sample`; aot_eager's dynamic sizes say what can be asked."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = observe(sample, sample.function)
        except Exception as error:
            return Outcome("outside", f"eager itself: {first_line(error)}")
        with graphs_observed() as observer:
            fault = _fault_of(case, sample, expected)
            reports = observer.reports()
        reason = next((one.exact_reason for one in reports if one.exact_reason is not None), None)
        padded = _is_padded(reports)
        if fault is None:
            return Outcome("passed", exact_reason=reason, is_padded=padded)
        ceiling = _ceiling_fault(case, sample, expected)
        if ceiling is not None and not fault.startswith("leak"):
            return Outcome("outside", f"aot_eager: {ceiling} | ours: {fault}")
        return Outcome("failed", fault, exact_reason=reason, is_padded=padded)


def _is_padded(reports: tuple[GraphReport, ...]) -> bool:
    return any(report.buckets for report in reports)


def _fault_of(case: Case, sample: Sample, expected: Observed) -> str | None:
    """Return how ours differs from eager, or between two fillings of padding; None if nowhere."""
    tpu_compile.reset()
    options = {**STRICT, "buckets": "pow2"}
    compiled = torch.compile(sample.function, backend="tpu", fullgraph=True, options=options)
    first: Observed | None = None
    for name, fill in FILLS.items():
        try:
            with padding_filled(fill):
                actual = observe(sample, compiled, prepare=_mark)
        except Exception as error:
            return first_line(error)
        if first is None:
            first = actual
            fault = difference(case, sample, actual, expected)
            if fault is not None and is_random(sample, expected):
                fault = difference(case, sample, actual, expected, values=False)
            if fault is not None:
                return fault
        elif case.name not in UNINITIALIZED:
            where = _first_unequal(actual, first)
            if where is not None:
                return f"leak: padding of {name} shows in {where}"
    return None


def _first_unequal(actual: Observed, first: Observed) -> str | None:
    groups: tuple[tuple[str, list[Any], list[Any]], ...] = (
        ("output", actual.outputs, first.outputs),
        ("gradient", actual.gradients, first.gradients),
        ("input afterwards", actual.arguments, first.arguments),
    )
    for what, ours, others in groups:
        for index, (one, other) in enumerate(zip(ours, others, strict=True)):
            if not bits_equal(one, other):
                return f"{what} {index}"
    return None


def _ceiling_fault(case: Case, sample: Sample, expected: Observed) -> str | None:
    """Return what aot_eager does wrong with the same dynamic sizes; None if it does not."""
    torch._dynamo.reset()
    compiled: Callable[..., Any] = torch.compile(
        sample.function, backend="aot_eager", fullgraph=True
    )
    try:
        actual = observe(sample, compiled, prepare=_mark)
    except Exception as error:
        return first_line(error)
    fault = difference(case, sample, actual, expected)
    if fault is not None and is_random(sample, expected):
        return difference(case, sample, actual, expected, values=False)
    return fault


def _mark(sample: Sample) -> None:
    for tensor in sample.tensors():
        for dim in dynamic_dims(tensor):
            torch._dynamo.maybe_mark_dynamic(tensor, dim)
