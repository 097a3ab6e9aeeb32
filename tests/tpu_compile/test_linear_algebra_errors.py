"""Checks of linear algebra results: the error of eager PyTorch, after the compiled program ran."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import tpu_compile

STRICT = {"fallback": "error"}


def solve_with_itself(matrix: torch.Tensor) -> torch.Tensor:
    """Return the identity, if `matrix` is regular."""
    return torch.linalg.solve(matrix, matrix)


@pytest.mark.parametrize(
    ("function", "bad"),
    [
        (torch.linalg.cholesky, -torch.eye(3)),
        (torch.linalg.inv, torch.zeros(2, 3, 3)),
        (solve_with_itself, torch.ones(3, 3)),
    ],
)
def test_singular_input_raises_as_in_eager(
    function: Callable[[torch.Tensor], torch.Tensor], bad: torch.Tensor
) -> None:
    tpu_compile.reset()
    run = torch.compile(function, backend="tpu", fullgraph=True, options=STRICT)
    good = torch.eye(3).expand_as(bad) + 0.0
    torch.testing.assert_close(run(good), function(good))
    with pytest.raises(torch.linalg.LinAlgError) as expected:
        function(bad)
    with pytest.raises(torch.linalg.LinAlgError) as raised:
        run(bad)
    assert str(raised.value).splitlines()[0] == str(expected.value).splitlines()[0]
    torch.testing.assert_close(run(good), function(good))
    statistics = tpu_compile.stats()
    assert statistics.xla_compiles == 1
    assert not statistics.fallback_ops


def test_checks_keep_one_program_forward_and_one_backward() -> None:
    def function(matrix: torch.Tensor) -> torch.Tensor:
        return torch.linalg.cholesky(matrix) @ torch.linalg.inv(matrix)

    tpu_compile.reset()
    matrix = torch.randn(4, 4)
    matrix = (matrix @ matrix.mT + torch.eye(4)).requires_grad_()
    run = torch.compile(function, backend="tpu", fullgraph=True, options=STRICT)
    expected, actual = function(matrix), run(matrix)
    torch.testing.assert_close(actual, expected)
    (wanted,) = torch.autograd.grad(expected.sum(), matrix)
    (gradient,) = torch.autograd.grad(actual.sum(), matrix)
    torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-4)
    assert tpu_compile.stats().xla_compiles == 2
