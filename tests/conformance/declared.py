"""What is known not to pass, by kind, entry and dtype, each with its reason.

The run is strict: an undeclared failure fails it, and so does a declared one all of whose samples
pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tests.conformance.cases import KINDS, Case
from tests.conformance.pool import Result


@dataclass(frozen=True)
class Declared:
    """A known failure. `names`, `kinds` and `dtypes` are separated by spaces; `*` is any."""

    names: str
    reason: str
    kinds: str = "*"
    dtypes: str = "*"

    def covers(self, case: Case) -> bool:
        """Whether `case` is declared here."""
        return (
            any(fnmatchcase(case.name, name) for name in self.names.split())
            and any(fnmatchcase(case.kind, kind) for kind in self.kinds.split())
            and any(fnmatchcase(case.dtype, dtype) for dtype in self.dtypes.split())
        )


DECLARED: tuple[Declared, ...] = (
    Declared("chalf", "StableHLO has no complex numbers of two halves"),
    Declared(
        "complex view_as_complex",
        "StableHLO has no complex numbers of two halves",
        dtypes="float16",
    ),
    Declared(
        "linalg.matrix_exp matrix_exp",
        "eager (torch 2.13) gives NaN, ours gives the float64 result rounded",
        kinds="forward device",
        dtypes="bfloat16 float16",
    ),
    Declared(
        "gather multinomial scatter scatter_add",
        "a compiled program cannot raise for what it finds in the data (docs/troubleshooting.md)",
        kinds="error device-error",
    ),
    Declared(
        "bucketize index_add uniform",
        "eager refuses when it runs what fake tensors let pass; we do not check it yet",
        kinds="error device-error",
    ),
    Declared(
        "aminmax complex histogramdd",
        "the CPU refuses when it runs what fake tensors let pass; we do not check it yet",
        kinds="device-error",
    ),
    Declared(
        "sparse.mm.reduce sparse.sampled_addmm to_sparse",
        "the device has no sparse tensors",
        kinds="device device-backward device-out",
    ),
    Declared(
        "native_batch_norm",
        "its overload updates the running statistics that it is given, which its schema hides",
        kinds="out",
    ),
    Declared(
        "_upsample_bilinear2d_aa",
        "eager interpolates integers in fixed point, with roundings of its own; declined",
        dtypes="uint8",
    ),
    Declared(
        "unique_consecutive",
        "torch 2.13 promises a wrong shape for a negative dim, and asserts of sizes that never are",
    ),
)


def reason_for(case: Case) -> str | None:
    """Return why `case` is known not to pass; None if it is expected to."""
    return next((entry.reason for entry in DECLARED if entry.covers(case)), None)


def surprises(results: list[Result]) -> Iterator[str]:
    """Yield a line for each undeclared failure, and for each declared one that passes."""
    for result in results:
        reason = reason_for(result.case)
        if reason is None and not result.ok:
            index, why = next(iter(result.failures.items()))
            yield f"{' '.join(result.case)}: {len(result.failures)} failed; sample {index}: {why}"
        elif reason is not None and result.ok and result.counts and result.all_samples:
            yield f"{' '.join(result.case)} passes, but is declared: {reason}"


def unknown_kinds() -> list[str]:
    """Return the kinds that a declaration names and that do not exist."""
    named = {kind for entry in DECLARED for kind in entry.kinds.split()}
    return sorted(named - KINDS.keys() - {"*"})
