"""A progress bar for what takes long: on a terminal's standard error only."""

from __future__ import annotations

import sys
from collections.abc import Callable

from tqdm import tqdm  # type: ignore[import-untyped]

from tpu_compile.ahead.lowered import Lowered, LoweredProgram


class CompileProgress:
    """Counts the programs of one or several compiles."""

    def __init__(self, what: str = "compiling") -> None:
        self._bar = tqdm(
            total=0, desc=what, unit="program", leave=False, disable=not sys.stderr.isatty()
        )

    def expect(self, lowered: Lowered) -> Callable[[LoweredProgram], None]:
        """Return what is called before each program of `lowered` is compiled."""
        self._bar.total += len(lowered.programs)
        started = False

        def before(program: LoweredProgram) -> None:
            nonlocal started
            if started:
                self._bar.update()
            started = True
            self._bar.set_postfix_str(program.title[:40])

        return before

    def close(self) -> None:
        """Remove the bar."""
        self._bar.close()
