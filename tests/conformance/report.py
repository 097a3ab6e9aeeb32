"""The table of a run: how much passes of what aot_eager (the CPU, for the device) can do."""

from __future__ import annotations

import re
from collections import defaultdict

from tests.conformance.cases import ON_DEVICE, PADDED
from tests.conformance.pool import Result

_FORWARD_BARS = {
    "float32": 98.0,
    "bfloat16": 96.0,
    "float16": 96.0,
    "int64": 98.0,
    "int32": 98.0,
    "uint8": 98.0,
    "bool": 98.0,
    "complex64": 92.0,
    "float64": 98.0,
}

# What has to pass at least, in percent of the entries that count.
BARS = {
    **{("forward", dtype): bar for dtype, bar in _FORWARD_BARS.items()},
    **{("device", dtype): bar for dtype, bar in _FORWARD_BARS.items()},
    ("backward", "float32"): 97.0,
    ("device-backward", "float32"): 97.0,
}


def table(results: list[Result]) -> str:
    """Return the Markdown table.

    An entry counts when aot_eager (the CPU, for the kinds on the device) passes at least one of its
    samples, and passes when ours passes every sample that it passes.
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


def fallback_table(results: list[Result]) -> str:
    """Return how many entries that pass ran an op on the CPU; empty if nothing ran on the device.

    Ops that read data to tell a size or a number, such as `nonzero`, are not among them.
    """
    groups: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in results:
        if result.case.kind in ON_DEVICE and result.counts and result.ok:
            groups[result.case.kind, result.case.dtype].append(result)
    if not groups:
        return ""
    lines = ["| kind | dtype | pass | with a fallback | % |", "|---|---|--:|--:|--:|"]
    ops: dict[str, set[str]] = defaultdict(set)
    for (kind, dtype), group in groups.items():
        fell_back = [result for result in group if result.fallbacks]
        share = _percent(len(fell_back), len(group))
        lines.append(f"| {kind} | {dtype} | {len(group)} | {len(fell_back)} | {share} |")
        for result in fell_back:
            for op in result.fallbacks:
                ops[op].add(result.case.name)
    lines += ["", "| op on the CPU | entries |", "|---|---|"]
    for op, names in sorted(ops.items(), key=lambda item: (-len(item[1]), item[0])):
        lines.append(f"| {op} | {', '.join(sorted(names)[:8])} |")
    return "\n".join(lines)


def _without_place(reason: str) -> str:
    """Return a reason without the line of the user's program that it names."""
    return re.sub(r"^(\S+) at .*?: ", r"\1: ", " ".join(reason.split()))[:240]


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}" if whole else "-"
