"""Every suite, in the order in which they run and are shown."""

from __future__ import annotations

from benchmarks.registry import by_name
from benchmarks.suites import (
    compile_time,
    device,
    lowering,
    memory,
    models,
    ops,
    overhead,
    padding,
)

SUITES = by_name(
    module.SUITE
    for module in (overhead, ops, models, compile_time, memory, padding, lowering, device)
)
