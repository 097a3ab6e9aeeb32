"""Random compositions of ops: padding shows in none, whatever comes after what."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.padding.checking import check
from tests.padding.programs import SIZES, Program, inputs, programs, size_at

# float64 leaves rounding far below what a wrong element would differ by.
TOLERANCE = 1e-9


def holds(program: Program, gradients: bool) -> None:
    check(
        program.function(),
        inputs,
        SIZES,
        gradients=gradients and program.has_gradients,
        rtol=TOLERANCE,
        atol=TOLERANCE,
    )


@pytest.mark.timeout(900)
@settings(
    derandomize=True,
    deadline=None,
    max_examples=25,
    suppress_health_check=list(HealthCheck),
)
@given(program=programs(), gradients=st.booleans())
def test_padding_does_not_show(program: Program, gradients: bool) -> None:
    holds(program, gradients)


@pytest.mark.full
@pytest.mark.timeout(7200)
@settings(
    derandomize=True,
    deadline=None,
    max_examples=600,
    suppress_health_check=list(HealthCheck),
)
@given(program=programs(most=10), gradients=st.booleans())
def test_padding_does_not_show_in_long_programs(program: Program, gradients: bool) -> None:
    holds(program, gradients)


def test_programs_run_in_eager_pytorch() -> None:
    """The generator's own check: shapes that it promises are those that eager PyTorch gives."""

    @settings(derandomize=True, deadline=None, max_examples=200, database=None)
    @given(program=programs())
    def runs(program: Program) -> None:
        for sizes in SIZES:
            outputs = program.function()(*inputs(*sizes))
            wanted = [tuple(size_at(n, sizes) for n in shape) for shape in program.shapes]
            assert [tuple(output.shape) for output in outputs] == wanted

    runs()
