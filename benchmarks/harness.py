"""Interleaved timing of several competitors on the same work, and its report.

A shared machine's speed drifts, so competitors take turns within each round, and only ratios taken
in one run mean anything. A figure is the median over rounds; the spread is the interquartile range.
"""

from __future__ import annotations

import gc
import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import torch

OURS = "tpu_compile"


@dataclass(frozen=True)
class Timing:
    """Seconds of one competitor: the median over rounds and the interquartile range."""

    median: float
    spread: float

    def divided_by(self, count: int) -> Timing:
        """Return the time of one of `count` equal parts."""
        return Timing(self.median / count, self.spread / count)


@dataclass(frozen=True)
class Result:
    """One piece of work, timed for each competitor that could do it."""

    name: str
    timings: Mapping[str, Timing]
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Why a competitor has no figure."""

    def ratios(self) -> dict[str, float]:
        """Return our time over each competitor's: below 1 we are faster."""
        ours = self.timings[OURS].median
        return {name: ours / timing.median for name, timing in self.timings.items()}


def interleave(
    calls: Mapping[str, Callable[[], object]], *, rounds: int, seconds: float = 0.05
) -> dict[str, Timing]:
    """Return the time of one call of each competitor.

    Each gets as many calls a round as fit in `seconds`; the order turns by one every round.
    """
    names = list(calls)
    repeats = {name: _calibrate(calls[name], seconds) for name in names}
    samples: dict[str, list[float]] = {name: [] for name in names}
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds):
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                call = calls[name]
                started = time.perf_counter()
                for _ in range(repeats[name]):
                    call()
                samples[name].append((time.perf_counter() - started) / repeats[name])
    finally:
        gc.enable()
    return {name: _summary(values) for name, values in samples.items()}


def _calibrate(call: Callable[[], object], seconds: float) -> int:
    for _ in range(3):
        call()
    started = time.perf_counter()
    call()
    return max(1, int(seconds / max(time.perf_counter() - started, 1e-9)))


def _summary(values: Sequence[float]) -> Timing:
    if len(values) < 2:
        return Timing(values[0], 0.0)
    low, middle, high = statistics.quantiles(values, n=4)
    return Timing(middle, high - low)


def versions() -> dict[str, str]:
    """Return the machine and the versions that a figure depends on."""
    found = {
        "machine": f"{_processor()}, {torch.get_num_threads()} threads",
        "python": platform.python_version(),
    }
    for package in ("torch", "jaxlib", "jax", "torch_xla2", "transformers"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def table(results: Sequence[Result]) -> str:
    """Return the results as text: time, spread, and our time over the competitor's."""
    lines = []
    for result in results:
        lines += [result.name, f"  {'':14}{'time':>12}{'spread':>12}{'ours / it':>11}"]
        ratios = result.ratios()
        for name, timing in sorted(result.timings.items(), key=lambda item: item[1].median):
            lines.append(
                f"  {name:14}{_seconds(timing.median):>12}{_seconds(timing.spread):>12}"
                f"{ratios[name]:>11.2f}"
            )
        lines += [f"  {name:14}left out: {why}" for name, why in result.left_out.items()]
    return "\n".join(lines)


def _seconds(value: float) -> str:
    if value < 1e-3:
        return f"{value * 1e6:.1f} us"
    return f"{value * 1e3:.2f} ms" if value < 1 else f"{value:.2f} s"


def to_json(results: Sequence[Result]) -> str:
    """Return results, machine and versions as JSON; times in seconds."""
    return json.dumps(
        {
            "versions": versions(),
            "results": [
                {
                    "name": result.name,
                    "seconds": {
                        name: {"median": timing.median, "spread": timing.spread}
                        for name, timing in result.timings.items()
                    },
                    "ours_over": result.ratios(),
                    "left_out": dict(result.left_out),
                }
                for result in results
            ],
        },
        indent=2,
    )
