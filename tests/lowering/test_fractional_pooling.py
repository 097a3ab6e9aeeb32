"""Fractional max pooling: places of the windows, ties, NaN, gradients."""

from __future__ import annotations

import torch

from tests.lowering.running import check

aten = torch.ops.aten


def test_windows_ties_and_nan_are_eagers() -> None:
    planes = torch.randint(-3, 3, (2, 3, 11, 9)).float()
    planes[0, 1, 4:6, 2:7] = float("nan")
    planes[1, 2] = float("-inf")
    samples = torch.rand(2, 3, 2)
    samples[0, 0] = 0
    samples[1, 1] = 0.9999
    volume, volume_samples = torch.randn(2, 6, 7, 5), torch.rand(1, 2, 3)
    empty, no_samples = torch.randn(0, 1, 4, 5, 4), torch.rand(0, 1, 3)

    def pools(planes, samples, volume, volume_samples, *empty):  # type: ignore[no-untyped-def]
        return [
            aten.fractional_max_pool2d(planes, [3, 2], [4, 5], samples),
            aten.fractional_max_pool2d(planes[1], [2, 2], [1, 7], samples[1:]),
            aten.fractional_max_pool2d(planes[1], [2, 2], [1, 7], samples),
            aten.fractional_max_pool2d(planes.double(), [1, 9], [10, 1], samples.double()),
            aten.fractional_max_pool3d(volume, [2, 3, 1], [3, 2, 4], volume_samples),
            aten.fractional_max_pool3d(empty[0], [2, 2, 1], [2, 2, 2], empty[1]),
        ]

    check(pools, planes, samples, volume, volume_samples, empty, no_samples)


def test_gradients_go_where_the_maxima_were() -> None:
    planes, samples = torch.randn(2, 3, 8, 8), torch.rand(2, 3, 2)
    volume, volume_samples = torch.randn(1, 2, 6, 6, 6), torch.rand(1, 2, 3)
    _, indices = aten.fractional_max_pool2d(planes, [3, 3], [5, 5], samples)
    _, volume_indices = aten.fractional_max_pool3d(volume, [2, 2, 2], [4, 4, 4], volume_samples)
    grad, volume_grad = torch.randn(2, 3, 5, 5), torch.randn(1, 2, 4, 4, 4)

    def backward(planes, volume, indices, volume_indices, grad, volume_grad):  # type: ignore[no-untyped-def]
        return [
            aten.fractional_max_pool2d_backward(grad, planes, [3, 3], [5, 5], indices),
            aten.fractional_max_pool3d_backward(
                volume_grad, volume, [2, 2, 2], [4, 4, 4], volume_indices
            ),
        ]

    check(backward, planes, volume, indices, volume_indices, grad, volume_grad)
