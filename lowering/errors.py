"""The exception base and the two errors that lowering itself can raise.

They live at the bottom of the import order so that `lowering`, the run time and the public
API share one hierarchy; users import them from `tpu_compile`.
"""

from __future__ import annotations

from collections.abc import Sequence


class TpuCompileError(RuntimeError):
    """Base of every error that this project raises on purpose.

    The message has four parts, each optional but the first: *what* happened, *where* in the
    user's file, *why* (the rule that was broken), and the *ways out*.
    """

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        why: str | None = None,
        ways_out: Sequence[str] = (),
    ) -> None:
        self.what = what
        self.where = where
        self.why = why
        self.ways_out = tuple(ways_out)
        super().__init__(self._message())

    def at(self, where: str) -> TpuCompileError:
        """Return the same error placed at `where`, for a caller that knows the user's line."""
        return type(self)(self.what, where=where, why=self.why, ways_out=self.ways_out)

    def _message(self) -> str:
        what, where, why = self.what, self.where, self.why
        message = what if where is None else f"{what} ({where})"
        if why is not None:
            message = f"{message}: {why}"
        message = message.rstrip(".") + "."
        if self.ways_out:
            message += " Ways out: " + ", or ".join(self.ways_out) + "."
        return message


class UnsupportedOpError(TpuCompileError):
    """An ATen overload has no lowering for the dtypes or arguments that the graph gives it.

    Under `fallback="eager"` the op runs in eager PyTorch instead and nothing is raised.
    """

    node_name: str | None = None
    """Name of the FX node that was declined, for the partitioner."""


class LoweringError(TpuCompileError):
    """A graph that looked supported could not be turned into StableHLO: a fault of ours."""
