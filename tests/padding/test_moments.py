"""Padding rules of variances, norms and normalizations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.padding.checking import check

SIZES = [(3, 5), (6, 9), (8, 16), (17, 3)]

INF = float("inf")


def matrix(*shape: int) -> Callable[..., list[torch.Tensor]]:
    """Give a float tensor of the two dynamic sizes and then `shape`."""
    return lambda b, s: [torch.randn(b, s, *shape)]


def flat(x: torch.Tensor) -> torch.Tensor:
    """Merge both dynamic dims."""
    return x.reshape(-1, x.shape[-1])


CASES: dict[str, Callable[..., Any]] = {
    "var": lambda x: (x.var(), x.var(0), x.std(1, keepdim=True), x.var((0, 2), correction=0)),
    "var of a view": lambda x: (*torch.var_mean(flat(x), 0), flat(x).std(), flat(x).var(1)),
    "complex var": lambda x: torch.complex(x, x + x.square()).var((0, 1)),
    "norm": lambda x: (x.norm(), flat(x).norm(dim=0), x.norm(1, 1), x.norm(3, (0, 1))),
    "normalize": lambda x: (F.normalize(x, dim=1), F.normalize(flat(x), dim=0)),
    "layer norm": lambda x: F.layer_norm(x, x.shape[1:]),
    "rms norm": lambda x: F.rms_norm(x, (4,)),
    "standardize": lambda x: (x - x.mean((0, 1))) / x.std((0, 1)),
}


@pytest.mark.parametrize("name", CASES)
def test_moments(name: str) -> None:
    check(CASES[name], matrix(4), SIZES, gradients=True, rtol=1e-4, atol=1e-4)


def test_extreme_norms() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        norm = torch.linalg.vector_norm
        return (
            norm(x + 3, INF, 1),
            norm(flat(x) + 3, -INF, 0),
            norm((x > 0).float(), 0, (0, 1)),
            *(torch.dist(x, y, p) for p in (0, 1, 2, 3, INF, -INF)),
            torch.dist(flat(x), y[:1, 0]),
            torch.dist(x[:, :1], y + 1, -INF),
        )

    check(function, lambda b, s: [torch.randn(b, s, 4) for _ in range(2)], SIZES)


def rows_and_weights(b: int, s: int) -> list[torch.Tensor]:
    return [torch.randn(b, s, 4), torch.randn(4), torch.randn(4)]


def test_batch_norm_updates_running_statistics() -> None:
    def function(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
        mean, variance = torch.full((4,), 0.5), torch.full((4,), 2.0)
        first = F.batch_norm(x.transpose(1, 2), mean, variance, weight, bias, True)
        second = F.batch_norm(flat(x), mean, variance, weight, bias, True, 0.5)
        third = F.batch_norm(flat(x), mean, variance, weight, bias, False)
        return first, second, third, mean, variance

    check(function, rows_and_weights, SIZES, rtol=1e-4, atol=1e-4)


def test_batch_norm_of_padded_channels() -> None:
    def function(x: torch.Tensor) -> Any:
        mean = torch.zeros_like(x[0, :, 0])
        variance = torch.ones_like(mean)
        return F.batch_norm(x, mean, variance, training=True), F.batch_norm(x, mean, variance)

    check(function, matrix(4), SIZES, gradients=True, rtol=1e-3, atol=1e-4)


def test_gradients_of_batch_norm() -> None:
    def function(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
        return (
            F.batch_norm(x.transpose(1, 2), None, None, weight, bias, True),
            F.batch_norm(flat(x), torch.zeros(4), torch.ones(4), weight, bias, True),
            F.batch_norm(flat(x), torch.zeros(4), torch.ones(4), weight, bias, False),
        )

    check(function, rows_and_weights, SIZES, gradients=True, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("gradients", [False, True])
def test_group_norm(gradients: bool) -> None:
    def function(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
        images = x[:, None].expand(-1, 6, -1, -1) * weight[:, None, None]
        return (
            F.group_norm(images, 3, weight, bias),
            F.group_norm(images.transpose(2, 3), 2),
        )

    def inputs(b: int, s: int) -> list[torch.Tensor]:
        return [torch.randn(b, s, 4), torch.randn(6), torch.randn(6)]

    check(function, inputs, SIZES, gradients=gradients, rtol=1e-3, atol=1e-4)


def test_weight_norm() -> None:
    def function(v: torch.Tensor, g: torch.Tensor) -> Any:
        flat_v = v.reshape(v.shape[0], -1)
        return torch._weight_norm(v, g, 0), torch._weight_norm(flat_v, g[..., 0], 0)

    def inputs(b: int, s: int) -> list[torch.Tensor]:
        return [torch.randn(b, s, 4), torch.randn(b, 1, 1)]

    check(function, inputs, SIZES, gradients=True, rtol=1e-4, atol=1e-5)
