"""The table of a run: how much of what aot_eager can do passes, by kind and dtype."""

from __future__ import annotations

import re
from collections import defaultdict

from tests.conformance.cases import PADDED
from tests.conformance.pool import Result

# What has to pass at least, in percent of the entries that count.
BARS = {
    ("forward", "float32"): 98.0,
    ("backward", "float32"): 97.0,
    ("forward", "bfloat16"): 96.0,
    ("forward", "float16"): 96.0,
    ("forward", "int64"): 98.0,
    ("forward", "int32"): 98.0,
    ("forward", "uint8"): 98.0,
    ("forward", "bool"): 98.0,
    ("forward", "complex64"): 92.0,
    ("forward", "float64"): 98.0,
}


def table(results: list[Result]) -> str:
    """Return the Markdown table.

    An entry counts when aot_eager passes at least one of its samples, and passes when ours passes
    every sample that aot_eager passes.
    """
    groups: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in results:
        groups[result.case.kind, result.case.dtype].append(result)
    lines = [
        "| kind | dtype | entries | pass | % | bar | samples | pass | % | crashes |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for (kind, dtype), group in groups.items():
        counted = [result for result in group if result.counts]
        good = sum(result.ok for result in counted)
        passed = sum(result.passed for result in counted)
        samples = passed + sum(len(result.failures) for result in counted)
        crashes = sum(-1 in result.failures for result in counted)
        bar = BARS.get((kind, dtype))
        lines.append(
            f"| {kind} | {dtype} | {len(counted)} | {good} | {_percent(good, len(counted))} "
            f"| {'' if bar is None else bar} | {samples} | {passed} | {_percent(passed, samples)} "
            f"| {crashes} |"
        )
    return "\n".join(lines)


def padding_table(results: list[Result]) -> str:
    """Return how many entries ran padded, and why the others did not; empty if none was dynamic.

    An entry is dynamic if a graph of it had dynamic sizes, exact if one of those graphs ran at
    exact shapes.
    """
    groups: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in results:
        if result.case.kind in PADDED and (result.padded or result.exact):
            groups[result.case.kind, result.case.dtype].append(result)
    if not groups:
        return ""
    lines = ["| kind | dtype | dynamic entries | exact | % |", "|---|---|--:|--:|--:|"]
    reasons: dict[str, set[str]] = defaultdict(set)
    for (kind, dtype), group in groups.items():
        exact = [result for result in group if result.exact]
        share = _percent(len(exact), len(group))
        lines.append(f"| {kind} | {dtype} | {len(group)} | {len(exact)} | {share} |")
        for result in exact:
            for reason in result.exact.values():
                reasons[_without_place(reason)].add(result.case.name)
    lines += ["", "| exact entries | reason | such as |", "|--:|---|---|"]
    for reason, names in sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0])):
        lines.append(f"| {len(names)} | {reason} | {', '.join(sorted(names)[:8])} |")
    return "\n".join(lines)


def _without_place(reason: str) -> str:
    """Return a reason without the line of the user's program that it names."""
    return re.sub(r"^(\S+) at .*?: ", r"\1: ", " ".join(reason.split()))[:240]


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}" if whole else "-"
