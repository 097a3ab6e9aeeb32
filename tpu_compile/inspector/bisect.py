"""`bisect`: which op of a model gives other numbers than eager PyTorch."""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import asdict
from typing import Any

import torch
from tqdm import tqdm  # type: ignore[import-untyped]

from tpu_compile import backend
from tpu_compile.ahead.recording import as_the_first_call, compiled_anew
from tpu_compile.inspector.bisection.findings import Comparison, Findings
from tpu_compile.inspector.bisection.interpreter import Interpreter
from tpu_compile.inspector.bisection.walk import Bisection
from tpu_compile.inspector.exits import ExitCode, InspectorError
from tpu_compile.inspector.models import Subject, add_model_arguments, model_errors, subject_of
from tpu_compile.inspector.output import line_of, print_json, styled, table
from tpu_compile.runtime import pjrt

NAME = "bisect"
HELP = "find the op whose numbers differ from eager PyTorch"
EXAMPLES = (
    "tpu-compile-inspect bisect model.py:Model --input f32[8,128]",
    "tpu-compile-inspect bisect model.py:Model --input f32[8,128] --train sgd --worst 20",
)

HEADER = ("op", "error", "tolerance", "times", "line", "node", "graph")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_model_arguments(parser)
    parser.add_argument(
        "--worst", type=int, default=10, metavar="N", help="how many nodes to show (default: 10)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of weights and inputs (default: 0)")


def run(arguments: argparse.Namespace) -> int:
    """Run the model once, print the worst nodes, and return whether one is wrong."""
    if arguments.worst < 1:
        raise InspectorError(
            f"--worst got {arguments.worst}", ExitCode.USAGE, why="it takes a number from 1 up"
        )
    findings = bisect(subject_of(arguments), arguments.seed)
    faults = findings.faults
    if arguments.json:
        print_json(_as_json(findings, arguments.worst))
    else:
        _print(findings, arguments.worst)
    return ExitCode.FOUND if faults else ExitCode.OK


def bisect(subject: Subject, seed: int = 0) -> Findings:
    """Return how every op of one call of a model compares with eager, on the CPU client."""
    client = pjrt.open_client("cpu")
    bar = tqdm(desc="comparing", unit="node", disable=not sys.stderr.isatty(), leave=False)
    with bar, Interpreter() as interpreter, as_the_first_call():
        bisection = Bisection(client, interpreter, bar.update)
        torch.manual_seed(seed)
        with backend.compiling_by(bisection.with_options), model_errors(subject.spec):
            function, args, kwargs = subject.make()
            compiled_anew(function)(*args, **kwargs)
    if not bisection.findings.nodes and not bisection.findings.skipped:
        raise InspectorError(
            f"{subject.spec} runs no op in a compiled graph",
            ExitCode.COMPILE,
            why="there is nothing to compare",
        )
    return bisection.findings


# --- results -------------------------------------------------------------------------------------


def _print(findings: Findings, worst: int) -> None:
    ranked = findings.worst_nodes[:worst]
    if ranked:
        print(table(HEADER, [_row(each) for each in ranked]))
        print()
    for each in findings.graphs:
        print(
            f"{each.graph} as one program: worst result {each.node} ({each.op}), "
            f"error {each.difference.error:.1e}, tolerance {each.difference.tolerance:.1e}"
            + (f"; {each.verdict}" if each.verdict else "")
        )
    for node in (each for each in ranked if each.verdict and not each.is_fault):
        print(f"{node.op} at {line_of(node.where)}: {node.verdict}")
    for why, ops in _reasons(findings).items():
        print(f"not compared: {why} ({ops})")
    faults = findings.faults
    if faults:
        first = faults[0]
        what = "the first wrong op is" if first in findings.nodes else "no op alone is wrong, but"
        note = f" ({first.difference.note})" if first.difference.note else ""
        place = f"at {line_of(first.where)}, node {first.node} of {first.graph}{note}"
        print(f"{styled('wrong:', 'red')} {what} {first.op} {place}: {first.verdict}")
    count = len(findings.nodes)
    print(f"{count} nodes compared, {len(faults)} wrong, {len(findings.skipped)} not compared")


def _row(each: Comparison) -> tuple[Any, ...]:
    difference = each.difference
    return (
        each.op,
        f"{difference.error:.1e}",
        f"{difference.tolerance:.1e}",
        f"{difference.ratio:.3g}",
        line_of(each.where),
        each.node,
        each.graph,
    )


def _reasons(findings: Findings) -> dict[str, str]:
    """Return why nodes were not compared, and how many of which ops."""
    found: dict[str, dict[str, int]] = {}
    for each in findings.skipped:
        ops = found.setdefault(each.why, {})
        ops[each.op] = ops.get(each.op, 0) + 1
    return {
        why: ", ".join(f"{count} {op}" for op, count in ops.items()) for why, ops in found.items()
    }


def _as_json(findings: Findings, worst: int) -> dict[str, Any]:
    faults = findings.faults
    return {
        "wrong": [_comparison(each) for each in faults],
        "worst": [_comparison(each) for each in findings.worst_nodes[:worst]],
        "graphs": [_comparison(each) for each in findings.graphs],
        "skipped": [asdict(each) for each in findings.skipped],
        "compared": len(findings.nodes),
    }


def _comparison(each: Comparison) -> dict[str, Any]:
    """Return a comparison for JSON, which has neither NaN nor infinity."""
    numbers = asdict(each.difference)
    return {
        **asdict(each),
        "difference": {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in numbers.items()
        },
    }
