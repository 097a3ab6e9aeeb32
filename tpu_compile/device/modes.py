"""When device ops run: at once, at once and waited for, or fused with others at the first read."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator, Sequence

from tpu_compile.device.steps import Step
from tpu_compile.device.trace import LOCK, current_trace, flush, run_now
from tpu_compile.device.values import Value

# From so many ops on, a trace is run where it starts to repeat itself, so that a loop that reads
# nothing runs the same program again and again; at twice as many in any case.
LONG_TRACE = 2000


class Mode(enum.Enum):
    """When the ops of device tensors run.

    `EAGER`: each at once, as a program of its own; the call does not wait for the device.
    `DEBUG`: each at once, and the call waits: an error shows at the user's line.
    `FUSED`: all together, as one program, when a value is read (printing, `item`, `cpu`) and after
    each step of an optimizer.
    """

    EAGER = "eager"
    DEBUG = "debug"
    FUSED = "fused"


_mode = Mode.EAGER


def get_mode() -> Mode:
    """Return the mode in force."""
    return _mode


def set_mode(mode: Mode | str) -> None:
    """Choose when ops run from now on, in every thread; ops that wait run first.

    Raises:
        ValueError: `mode` is none.
    """
    global _mode
    chosen = Mode(mode)
    with LOCK:
        flush()
        _mode = chosen


@contextlib.contextmanager
def mode(chosen: Mode | str) -> Iterator[None]:
    """Run the block's ops in another mode; what it left to run is run at its end."""
    before = _mode
    set_mode(chosen)
    try:
        yield
    finally:
        set_mode(before)


def execute(
    step: Step, values: Sequence[Value], numbers: Sequence[float], keys: Sequence[bytes]
) -> list[Value]:
    """Run a step, now or later as the mode says; return the values that it makes."""
    if _mode is Mode.FUSED:
        trace = current_trace()
        length = len(trace)
        if length >= LONG_TRACE and (trace.starts_with(step) or length >= 2 * LONG_TRACE):
            flush()
            trace = current_trace()
        return trace.record(step, values, numbers, keys)
    made = run_now(step, values, numbers, keys)
    if _mode is Mode.DEBUG:
        for value in made:
            value.array.block_until_ready()
    return made
