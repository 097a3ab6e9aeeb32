"""Histograms of one or several dims, by a search among the bin edges.

Eager raises where a range is not finite; a compiled program does not look.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lowering.decompositions import decomposition

aten = torch.ops.aten


def _edges(points: Tensor, bins: Sequence[int], range: Sequence[float] | None) -> list[Tensor]:
    """Return the edges of equal bins of each column of `points` ([n, dims]).

    By default from the smallest to the largest number; a single value gets a margin of 1/2.
    """
    edges = []
    for dim, count in enumerate(bins):
        if range is not None:
            low, high = (points.new_full((), end) for end in range[2 * dim : 2 * dim + 2])
        elif points.shape[0] == 0:
            low, high = points.new_full((), 0.0), points.new_full((), 1.0)
        else:
            low, high = points[:, dim].amin(), points[:, dim].amax()
        single = low == high
        low, high = torch.where(single, low - 0.5, low), torch.where(single, high + 0.5, high)
        # From both ends, as ATen's linspace has it.
        step = (high - low) / count
        index = torch.arange(count + 1)
        upwards, downwards = low + step * index, high - step * (count - index)
        edges.append(torch.where(index < (count + 1) // 2, upwards, downwards))
    return edges


def _tally(points: Tensor, edges: Sequence[Tensor], weight: Tensor | None, density: bool) -> Tensor:
    """Return how many of `points` ([n, dims]), or what weight, fall in each bin.

    The last bin has its upper edge. What lies outside, and NaN, is not counted.
    """
    shape = [len(edge) - 1 for edge in edges]
    place = torch.zeros_like(points[:, 0], dtype=torch.int64)
    inside = torch.ones_like(place, dtype=torch.bool)
    for dim, edge in enumerate(edges):
        column = points[:, dim].contiguous()
        found = torch.searchsorted(edge, column, right=True) - 1
        found = torch.where(column == edge[-1], shape[dim] - 1, found)
        inside = inside & (column >= edge[0]) & (column <= edge[-1])
        place = place * shape[dim] + found
    total = 1
    for size in shape:
        total *= size
    place = torch.where(inside, place, total)
    amounts = torch.ones_like(points[:, 0]) if weight is None else weight.reshape(-1)
    counts = points.new_zeros(total + 1).index_add(0, place, amounts.to(points.dtype))
    counts = counts[:total].reshape(shape)
    if density:
        counts = counts / counts.sum()
        for dim, edge in enumerate(edges):
            lengths = edge[1:] - edge[:-1]
            counts = counts / lengths.reshape([-1] + [1] * (len(shape) - 1 - dim))
    return counts


@decomposition(aten.histogram.bin_ct)
def histogram(
    self: Tensor,
    bins: int = 100,
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> tuple[Tensor, Tensor]:
    """(histogram, edges) of all elements in `bins` equal parts of the range."""
    points = self.reshape(-1, 1)
    edges = _edges(points, [bins], range)
    return _tally(points, edges, weight, density), edges[0]


@decomposition(aten.histogram.bins_tensor)
def histogram_with_edges(
    self: Tensor, bins: Tensor, *, weight: Tensor | None = None, density: bool = False
) -> tuple[Tensor, Tensor]:
    """(histogram, edges) of all elements between the given edges."""
    return _tally(self.reshape(-1, 1), [bins], weight, density), bins.clone()


@decomposition(aten._histogramdd_bin_edges.default)
def histogramdd_edges(
    self: Tensor,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> list[Tensor]:
    """The edges of equal bins in each of the coordinates, which are the last dim."""
    return _edges(self.reshape(-1, self.shape[-1]), bins, range)


@decomposition(aten._histogramdd_from_bin_cts.default)
def histogramdd(
    self: Tensor,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> Tensor:
    """The histogram over all coordinates, in equal bins."""
    points = self.reshape(-1, self.shape[-1])
    return _tally(points, _edges(points, bins, range), weight, density)


@decomposition(aten._histogramdd_from_bin_tensors.default)
def histogramdd_with_edges(
    self: Tensor, bins: Sequence[Tensor], *, weight: Tensor | None = None, density: bool = False
) -> Tensor:
    """The histogram over all coordinates, between the given edges."""
    return _tally(self.reshape(-1, self.shape[-1]), bins, weight, density)
