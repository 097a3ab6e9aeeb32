"""Interleaved timing of several competitors on the same work, and the check of their results.

A shared machine's speed drifts, so competitors take turns within each round, and a ratio is taken
within a round before the median over rounds is. That is why neither pyperf nor pytest-benchmark is
underneath: both time one function to its end before the next, and compare the two figures
afterwards, so that drift between them becomes part of the ratio. What they would add (calibration,
warm-up, quartiles) is short.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch.utils import _pytree as pytree

Call = Callable[[], object]

TOLERANCE = 1e-3
"""Largest difference from eager's result, over the largest magnitude in it: float32 with sums in
another order, through a whole model."""


def interleave(
    calls: Mapping[str, Call], *, rounds: int, seconds: float = 0.05, parts: int = 1
) -> dict[str, list[float]]:
    """Return the seconds of one call of each competitor, by round.

    Each gets as many calls a round as fit in `seconds`; the order turns by one every round. A call
    that consists of `parts` equal parts is given as the time of one.
    """
    names = list(calls)
    repeats = {name: _calibrate(calls[name], seconds) for name in names}
    samples: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        # Between rounds, not within: a collection would fall to whoever has its turn.
        gc.collect()
        gc.disable()
        try:
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                call = calls[name]
                started = time.perf_counter()
                for _ in range(repeats[name]):
                    call()
                taken = time.perf_counter() - started
                samples[name].append(taken / repeats[name] / parts)
        finally:
            gc.enable()
    return samples


def _calibrate(call: Call, seconds: float) -> int:
    begin = time.perf_counter()
    for _ in range(3):
        started = time.perf_counter()
        call()
        now = time.perf_counter()
        # Work that takes long needs no more warming than its own repetition.
        if now - begin > 1:
            break
    return max(1, int(seconds / max(now - started, 1e-9)))


def difference(expected: object, got: object, tolerance: float = TOLERANCE) -> str | None:
    """Return how two results differ beyond `tolerance`, or None.

    Results are trees of torch tensors, jax arrays and numbers. Integers of other widths are equal
    by value, since jax has 32 bits unless told otherwise.
    """
    wanted, found = _tensors(expected), _tensors(got)
    if len(wanted) != len(found):
        return f"{len(found)} results in place of {len(wanted)}"
    for index, (one, other) in enumerate(zip(wanted, found, strict=True)):
        if one.shape != other.shape:
            return f"result {index} has shape {list(other.shape)}, eager's {list(one.shape)}"
        if one.numel() == 0:
            continue
        allowed = tolerance if one.is_floating_point() else 0.0
        one, other = one.double(), other.double()
        if not torch.equal(one.isnan(), other.isnan()):
            return f"result {index} has NaN elsewhere than eager's"
        scale = max(one.nan_to_num().abs().max().item(), 1e-6)
        off = (one - other).nan_to_num().abs().max().item() / scale
        if off > allowed:
            return f"result {index} is off by {off:.1e} of its largest value, {allowed:.0e} may be"
    return None


def _tensors(result: object) -> list[torch.Tensor]:
    return [_tensor(leaf) for leaf in pytree.tree_leaves(result) if leaf is not None]


def _tensor(leaf: object) -> torch.Tensor:
    if isinstance(leaf, torch.Tensor):
        return leaf.detach().cpu()
    if isinstance(leaf, bool | int | float):
        return torch.tensor(leaf, dtype=torch.float64)
    import numpy

    # jax's arrays give numpy a view that cannot be written to.
    return torch.from_numpy(numpy.array(leaf))


def agreeing(
    calls: Mapping[str, Call], expected: object, *, tolerance: float = TOLERANCE
) -> tuple[dict[str, Call], dict[str, str]]:
    """Return the calls whose result is `expected`, and how those of the others differ."""
    right, wrong = {}, {}
    for name, call in calls.items():
        off = difference(expected, call(), tolerance)
        if off is None:
            right[name] = call
        else:
            wrong[name] = off
    return right, wrong


def first_line(error: BaseException) -> str:
    """Return an error in one line of at most 160 characters."""
    text: Sequence[str] = str(error).strip().splitlines() or [repr(error)]
    return f"{type(error).__name__}: {text[0]}"[:160]
