"""The table of a run: how much of what aot_eager can do passes, by kind and dtype."""

from __future__ import annotations

from collections import defaultdict

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


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}" if whole else "-"
