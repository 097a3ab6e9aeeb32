"""Distances between points against eager PyTorch."""

from __future__ import annotations

import math

import pytest
import torch

from tests.lowering.running import check

aten = torch.ops.aten
NORMS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, math.inf)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def points(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Return points some of which coincide or share a coordinate."""
    return torch.randint(-2, 3, shape).to(dtype) / 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_distances_and_gradients(dtype: torch.dtype) -> None:
    left, right, own = (points(*s, dtype=dtype) for s in ((2, 1, 4, 3), (3, 5, 3), (6, 3)))
    own[1] = own[0]
    gradient, own_gradient = torch.randn(2, 3, 4, 5, dtype=dtype), torch.randn(15, dtype=dtype)
    wide, other = left.expand(2, 3, 4, 3).contiguous(), right.expand(2, 3, 5, 3).contiguous()
    known = {p: torch.cdist(wide, other, p=p) for p in NORMS}
    pairs = {p: torch.nn.functional.pdist(own, p=p) for p in NORMS}
    check(
        lambda left, right, wide, other, own, gradient, own_gradient, known, pairs: [
            result
            for p in NORMS
            for result in (
                aten._cdist_forward(left, right, p, 2),
                aten._pdist_forward(own, p),
                aten._cdist_backward(gradient, wide, other, p, known[p]),
                aten._pdist_backward(own_gradient, own, p, pairs[p]),
            )
        ],
        left,
        right,
        wide,
        other,
        own,
        gradient,
        own_gradient,
        known,
        pairs,
    )


def test_hard_values() -> None:
    """Two NaN differences come from inf - inf; a count of entries takes an infinity once."""
    left = torch.tensor([[0.0, 0.0], [math.inf, 1.0], [-0.0, math.nan]])
    right = torch.tensor([[0.0, math.inf], [math.inf, 1.0], [3.0, 4.0]])
    norms = (0.0, 0.5, 1.0, 2.0, 3.0)
    check(lambda a, b: [aten._cdist_forward(a, b, p, 2) for p in norms], left, right)


def test_many_points_go_through_a_product() -> None:
    left, right = torch.randn(2, 30, 4), torch.randn(2, 5, 4) + 3
    check(
        lambda a, b: (
            aten._cdist_forward(a, b, 2.0, None),
            aten._cdist_forward(a, b, 2.0, 2),
            aten._cdist_forward(b, b + 5, 2.0, 1),
        ),
        left,
        right,
        tolerance=1e-5,
    )


def test_empty_sets() -> None:
    check(
        lambda none, flat, three: (
            aten._cdist_forward(none, three, 2.0, None),
            aten._cdist_forward(three, none, 1.0, None),
            aten._cdist_forward(flat, flat, 3.0, None),
            aten._pdist_forward(three[:1], 2.0),
            aten._pdist_forward(none, 2.0),
            aten._pdist_forward(flat, 2.0),
        ),
        torch.randn(0, 3),
        torch.randn(4, 0),
        torch.randn(4, 3),
    )
