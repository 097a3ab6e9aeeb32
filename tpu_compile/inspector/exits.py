"""Exit codes of `tpu-compile-inspect`, and the error that ends it with one."""

from __future__ import annotations

import enum
from collections.abc import Sequence

from tpu_compile.errors import TpuCompileError


class ExitCode(enum.IntEnum):
    """What a script may rely on; a meaning never moves to another number."""

    OK = 0
    FOUND = 1
    """The check failed: over a compile budget, dumps that differ, an op that is wrong."""
    USAGE = 2
    """Wrong arguments on the command line."""
    DOES_NOT_FIT = 3
    """The model needs more memory than the chip has; a result, not an error."""
    MODEL = 4
    """The model cannot be imported, found, built or called."""
    INPUT = 5
    """An input specification is wrong, or does not suit the model."""
    COMPILE = 6
    """A graph cannot be captured, lowered or compiled."""
    TARGET = 7
    """There is no such target."""
    NO_COMPILER = 8
    """The compiler of the target is not installed."""
    SCRIPT = 9
    """The script that was run failed."""
    FILE = 10
    """A file cannot be read, written, or is damaged."""
    INTERRUPTED = 130


class InspectorError(TpuCompileError):
    """What the user reads in one line, and the exit code that goes with it."""

    def __init__(
        self,
        what: str,
        code: ExitCode,
        *,
        where: str | None = None,
        why: str | None = None,
        ways_out: Sequence[str] = (),
    ) -> None:
        self.code = code
        super().__init__(what, where=where, why=why, ways_out=ways_out)
