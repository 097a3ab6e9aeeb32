"""Padding rules of convolutions and pooling, with a dynamic batch and dynamic space."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.padding.checking import check

SIZES = [(3, 9, 11), (6, 10, 16), (5, 17, 9)]


def images(b: int, h: int, w: int) -> list[torch.Tensor]:
    """Give an image of distinct values and a weight."""
    count = b * 4 * h * w
    x = torch.randperm(count).reshape(b, 4, h, w) / count - 0.5
    return [x, torch.randn(6, 2, 3, 3)]


def convolutions(x: torch.Tensor, weight: torch.Tensor) -> Any:
    """Convolve with strides, dilation, groups and a composite batch."""
    first = F.conv2d(x, weight, torch.ones(6), stride=2, padding=1, groups=2)
    second = F.conv_transpose2d(first, weight, stride=2, padding=1, output_padding=1)
    rows = x.permute(0, 2, 1, 3).reshape(-1, 4, x.shape[3])
    return first, second, F.conv1d(rows, weight[..., 0].repeat(1, 2, 1), dilation=2)


def averages(x: torch.Tensor, weight: torch.Tensor) -> Any:
    """Pool with and without what lies beyond the edge."""
    return (
        F.avg_pool2d(x, 2),
        F.avg_pool2d(x, 3, 2, 1),
        F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        F.avg_pool2d(x, 3, 2, ceil_mode=True),
        F.avg_pool2d(x.mean(3, keepdim=True), (5, 1)),
    )


def maxima(x: torch.Tensor, weight: torch.Tensor) -> Any:
    """Pool overlapping and separate windows."""
    return (
        F.max_pool2d(x, 2),
        F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
        F.max_pool2d(x.sum(2, keepdim=True).transpose(0, 3), (1, 3)),
    )


@pytest.mark.parametrize("function", [convolutions, averages, maxima], ids=lambda f: f.__name__)
def test_windows(function: Callable[..., Any]) -> None:
    check(function, images, SIZES, gradients=True, rtol=1e-3, atol=1e-3)


def test_places_of_maxima() -> None:
    def function(x: torch.Tensor, weight: torch.Tensor) -> Any:
        return (
            F.max_pool2d(x, 2, return_indices=True),
            F.max_pool2d(x, 3, 2, 1, return_indices=True),
            F.max_pool3d(x, (1, 2, 3), return_indices=True),
        )

    check(function, images, SIZES)
