"""A run with a win, a loss, an even, a wrong result, a left-out competitor and a failed case."""

from __future__ import annotations

from benchmarks.results import OURS, Measured, Row, Run, measured

ROWS = (
    Row("ops", "fast", "a <won> case", measured({OURS: [1e-3, 1e-3], "eager": [2e-3, 2e-3]})),
    Row(
        "ops",
        "slow",
        "a lost | case",
        measured(
            {OURS: [3e-3, 3e-3], "eager": [1e-3, 2e-3], "aot no-op": [1e-3, 1e-3]},
            wrong={"inductor": "result 0 is off by 0.5"},
            left_out={"jax.jit": "jax is not installed"},
            facts={"programs": "2"},
        ),
    ),
    Row("ops", "tied", "an even case", measured({OURS: [1.0, 2.0], "eager": [2.0, 1.0]})),
    Row("ops", "wrong", "ours is wrong", Measured(wrong={OURS: "result 0 has NaN"})),
    Row("memory", "dead", "a case that crashed", failure="killed by signal 11"),
    Row(
        "memory",
        "peak",
        "a case with variants",
        measured({OURS: [2**21], "eager": [2**20]}, unit="bytes", variant="later call"),
    ),
)
RUN = Run("2026-01-02T03:04:05+00:00", "abc", False, {"machine": "M", "torch": "2"}, ROWS)
