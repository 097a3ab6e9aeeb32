"""Grid sampling and its gradient against eager PyTorch."""

from __future__ import annotations

import pytest
import torch

from tests.lowering.running import check

aten = torch.ops.aten
BORDERS = [(padding, align) for padding in (0, 1, 2) for align in (False, True)]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize(
    ("mode", "border"),
    [
        *((0, border) for border in BORDERS),
        (1, (0, False)),
        (1, (2, True)),
        (2, (0, True)),
        (2, (1, False)),
        (2, (2, True)),
    ],
)
def test_two_dims(mode: int, border: tuple[int, bool]) -> None:
    check(
        lambda x, grid, grad: (
            aten.grid_sampler_2d(x, grid, mode, *border),
            aten.grid_sampler_2d_backward(grad, x, grid, mode, *border, [True, True]),
        ),
        torch.randn(2, 3, 4, 5),
        torch.rand(2, 6, 3, 2) * 4 - 2,
        torch.randn(2, 3, 6, 3),
        tolerance=1e-5,
    )


@pytest.mark.parametrize(("mode", "border"), [(0, (0, True)), (0, (2, False)), (1, (1, False))])
def test_three_dims(mode: int, border: tuple[int, bool]) -> None:
    check(
        lambda x, grid, grad: (
            aten.grid_sampler_3d(x, grid, mode, *border),
            aten.grid_sampler_3d_backward(grad, x, grid, mode, *border, [True, True]),
        ),
        torch.randn(2, 2, 3, 4, 5),
        torch.rand(2, 3, 2, 2, 3) * 4 - 2,
        torch.randn(2, 2, 3, 2, 2),
        tolerance=1e-5,
    )


def test_gradient_of_the_grid_alone() -> None:
    check(
        lambda grad, x, grid: aten.grid_sampler_2d_backward(
            grad, x, grid, 0, 0, False, [False, True]
        )[1],
        torch.randn(1, 2, 3, 3),
        torch.randn(1, 2, 4, 4),
        torch.rand(1, 3, 3, 2) * 2 - 1,
        tolerance=1e-5,
    )


def test_points_far_outside_and_a_single_position() -> None:
    grid = torch.tensor([[-1.0, 1.0], [1e30, 0.0], [-1e30, 1e30], [0.0, 0.0]])[None, None]
    check(
        lambda x, one, grid: (
            [aten.grid_sampler_2d(x, grid, mode, 0, True) for mode in (0, 1)],
            aten.grid_sampler_2d(one, grid, 0, 2, True),
            aten.grid_sampler_2d(one, grid, 0, 1, False),
        ),
        torch.randn(1, 2, 3, 3),
        torch.randn(1, 2, 1, 1),
        grid,
    )


def test_bfloat16_and_an_empty_batch() -> None:
    check(
        lambda x, grid, no_x, no_grid: (
            aten.grid_sampler_2d(x, grid, 1, 0, True),
            aten.grid_sampler_2d(no_x, no_grid, 0, 0, True),
        ),
        torch.randn(2, 3, 4, 5, dtype=torch.bfloat16),
        torch.tensor([[-1.0, 0.0], [0.5, 1.0], [0.0, 1.0]]).expand(2, 1, 3, 2).bfloat16(),
        torch.randn(0, 3, 4, 5),
        torch.randn(0, 1, 3, 2),
    )


@pytest.mark.parametrize("border", BORDERS)
def test_coordinates_that_are_not_finite(border: tuple[int, bool]) -> None:
    inf, nan = float("inf"), float("nan")
    grid = torch.tensor([[nan, 0.3], [-0.4, nan], [nan, nan], [inf, 0.1], [0.2, -inf], [0.1, 0.9]])
    check(
        lambda x, grid: [aten.grid_sampler_2d(x, grid, mode, *border) for mode in (0, 1)],
        torch.randn(1, 3, 4, 5),
        grid[None, None],
        tolerance=1e-5,
    )
