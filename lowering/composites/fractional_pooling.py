"""Fractional max pooling: windows at pseudo-random places, one set of samples for each plane.

Formula: ATen's `generate_intervals` (Graham, Fractional Max-Pooling, 2014), computed in the dtype
of the samples as there, since its truncations decide where a window lies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lowering.decompositions import decomposition

aten = torch.ops.aten


def _starts(samples: Tensor, size: int, windows: int, extent: int) -> Tensor:
    """Return where each window starts along one dim: int64 `[*planes, windows]`."""
    last = samples.new_full((*samples.shape, 1), size - extent, dtype=torch.int64)
    if windows == 1:
        return last
    # A 0-d tensor keeps the arithmetic in the dtype of the samples.
    alpha = samples.new_full((), size - extent) / samples.new_full((), windows - 1)
    steps = torch.arange(windows - 1, dtype=torch.int64).to(samples.dtype)
    shifted = ((samples.unsqueeze(-1) + steps) * alpha).to(torch.int64)
    return torch.cat([shifted - (samples * alpha).to(torch.int64).unsqueeze(-1), last], -1)


def _flat_positions(
    input: Tensor, kernel: Sequence[int], windows: Sequence[int], samples: Sequence[Tensor]
) -> Tensor:
    """Return the positions in its plane of what each window sees.

    Shape `[*planes, windows, places in a window]`, both row-major.
    """
    rank = len(kernel)
    positions: Tensor | None = None
    for dim in range(rank):
        size = input.shape[dim - rank]
        starts = _starts(samples[dim], size, windows[dim], kernel[dim])
        along = starts.unsqueeze(-1) + torch.arange(kernel[dim])
        if positions is None:
            positions = along
            continue
        outer = positions.unsqueeze(-2).unsqueeze(-1) * size
        inner = along.unsqueeze(-3).unsqueeze(-2)
        count = positions.shape[-2] * windows[dim]
        shape = (*samples[0].shape, count, positions.shape[-1] * kernel[dim])
        positions = (outer + inner).reshape(shape)
    assert positions is not None
    return positions


def _pool(
    input: Tensor, kernel: Sequence[int], windows: Sequence[int], samples: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    rank = len(kernel)
    planes = input.shape[:-rank]
    # A single volume takes the samples of the first batch.
    count = math.prod(planes)
    samples = [sample.flatten().narrow(0, 0, count).reshape(planes) for sample in samples]
    positions = _flat_positions(input, kernel, windows, samples)
    flat, wanted = input.flatten(-rank), positions.flatten(-2)
    seen = flat.gather(-1, wanted).reshape(positions.shape)
    # The first of equal maxima, but the last NaN: eager lets every NaN replace what it has.
    is_nan = seen.isnan()
    last_nan = seen.shape[-1] - 1 - is_nan.flip(-1).to(torch.int8).argmax(-1)
    place = torch.where(is_nan.any(-1), last_nan, seen.argmax(-1)).unsqueeze(-1)
    shape = (*planes, *windows)
    return seen.gather(-1, place).reshape(shape), positions.gather(-1, place).reshape(shape)


@decomposition(aten.fractional_max_pool2d.default)
def fractional_max_pool2d(
    input: Tensor, kernel_size: Sequence[int], output_size: Sequence[int], random_samples: Tensor
) -> tuple[Tensor, Tensor]:
    """Return maxima and their positions in the plane; the samples come as (width, height)."""
    samples = [random_samples.select(-1, 1), random_samples.select(-1, 0)]
    return _pool(input, kernel_size, output_size, samples)


@decomposition(aten.fractional_max_pool3d.default)
def fractional_max_pool3d(
    input: Tensor, kernel_size: Sequence[int], output_size: Sequence[int], random_samples: Tensor
) -> tuple[Tensor, Tensor]:
    """Return maxima and their positions; the samples come as (time, height, width)."""
    return _pool(input, kernel_size, output_size, list(random_samples.unbind(-1)))


@decomposition(
    aten.fractional_max_pool2d_backward.default, aten.fractional_max_pool3d_backward.default
)
def fractional_max_pool_backward(
    grad_output: Tensor,
    input: Tensor,
    kernel_size: Sequence[int],
    output_size: Sequence[int],
    indices: Tensor,
) -> Tensor:
    """Return each gradient added to where its maximum came from."""
    planes = input.shape[: -len(kernel_size)]
    flat = input.new_zeros((*planes, math.prod(input.shape[-len(kernel_size) :])))
    where, what = indices.flatten(-len(kernel_size)), grad_output.flatten(-len(kernel_size))
    return flat.scatter_add(-1, where, what).reshape(input.shape)
