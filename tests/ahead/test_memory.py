"""Memory of several programs, and the search for the largest size: plain numbers, no compiler."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tpu_compile.ahead.compiled import ProgramMemory
from tpu_compile.ahead.fitting import Fit, largest_size
from tpu_compile.ahead.hlo_text import Shape
from tpu_compile.ahead.live_memory import CallMemory, MemoryUse, StepMemory, memory_over_calls
from tpu_compile.ahead.recording import Tensor


def bytes_shape(count: int) -> Shape:
    return Shape("u8", (count,), (0,), (), 0)


def call(
    title: str, inputs: dict[int, int], outputs: dict[int, int], memory: ProgramMemory | int
) -> CallMemory:
    def tensors(sizes: dict[int, int]) -> tuple[Tensor, ...]:
        return tuple(Tensor(number, size, persists=False) for number, size in sizes.items())

    run: Any = SimpleNamespace(
        program=SimpleNamespace(title=title), inputs=tensors(inputs), outputs=tensors(outputs)
    )
    arguments, results = (tuple(map(bytes_shape, sizes.values())) for sizes in (inputs, outputs))
    return CallMemory(run, memory, arguments, results)


def test_what_lies_between_programs_is_counted() -> None:
    # Parameter 0, optimizer state 1; the forward saves 2 for the backward, which gives gradient 3.
    calls = [
        call("forward", {0: 100}, {2: 40, 4: 1}, ProgramMemory(100, 41, 0, 5, 7)),
        call("backward", {0: 100, 2: 40}, {3: 100}, ProgramMemory(140, 100, 0, 6, 7)),
        call("update", {0: 100, 1: 200, 3: 100}, {}, ProgramMemory(400, 0, 0, 0, 7)),
    ]
    use = memory_over_calls(calls, code=21, available=1000)
    assert [step.others for step in use.steps] == [200, 200 + 1, 1]
    assert [step.total for step in use.steps] == [
        200 + 100 + 41 + 5 + 21,
        201 + 140 + 100 + 6 + 21,
        1 + 400 + 21,
    ]
    assert use.peak == 468
    assert use.state == 300
    assert use.fits


def test_donated_outputs_take_no_room_of_their_own() -> None:
    use = memory_over_calls(
        [call("update", {0: 100}, {0: 100}, ProgramMemory(100, 100, 100, 0, 0))],
        code=0,
        available=99,
    )
    assert use.peak == 100
    assert use.excess == 1
    assert not use.fits


def test_a_refused_program_counts_what_it_needs() -> None:
    use = memory_over_calls(
        [
            call("forward", {0: 10}, {1: 5}, ProgramMemory(10, 5, 0, 0, 0)),
            call("backward", {1: 5}, {}, 500),
        ],
        code=0,
        available=400,
    )
    assert use.peak == 510
    assert use.excess == 110


def fit_by(needed: float, available: int = 1000) -> Fit:
    step = StepMemory("step", 0, round(needed), 0, 0, 0)
    return Fit(MemoryUse((step,), 0, available), (), None)


@pytest.mark.parametrize(
    ("grow", "largest"),
    [
        (lambda n: 100 + 10 * n, 90),
        (lambda n: 100 + 8 * (-(-n // 8)) * 10, 88),  # tiles of 8
        (lambda n: 0.001 * n * n + n, 618),
        (lambda n: 2000, None),
        (lambda n: 100 + 900 * (n > 3) + n, 3),  # a step
        (lambda n: 0.0001 * n + 900, 1_005_000),
    ],
)
@pytest.mark.parametrize("known", [(1,), (1, 8, 64), (1, 100_000_000)])
def test_the_largest_size_fits_and_the_next_does_not(
    grow: Any, largest: int | None, known: tuple[int, ...]
) -> None:
    asked: list[int] = []

    def at(size: int) -> Fit:
        asked.append(size)
        return fit_by(grow(size))

    found = largest_size(at, {size: at(size) for size in known}, limit=10_000_000)
    if largest is not None:
        assert found.size == largest
        assert not found.tried[largest + 1].fits
    else:
        assert found.size is None
    assert not found.is_limit
    assert len(asked) == len(set(asked))
    assert len(asked) < 60


def test_the_search_ends_at_its_limit() -> None:
    found = largest_size(lambda size: fit_by(1), {1: fit_by(1)}, limit=100)
    assert found.size is not None
    assert found.is_limit
