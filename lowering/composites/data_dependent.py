"""Rules of the ops whose output sizes depend on data (see `lowering.sized`)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, fx

from lowering.sized import Padded, sized

aten = torch.ops.aten


def _compacted(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the positions where a flat mask holds, in order and ahead of all others, and how many.

    They come from a scatter of each position to its rank, which needs no sort.
    """
    ranks = mask.cumsum(0) - 1
    last = mask.numel()
    places = torch.where(mask, ranks, last)
    positions = torch.zeros(last + 1, dtype=torch.int64)
    positions = positions.scatter(0, places, torch.arange(last))
    return positions[:last], mask.sum()


@sized(aten.nonzero.default)
def nonzero(input: Tensor) -> tuple[Padded]:
    """Return the coordinates of the nonzero elements, `[count, rank]`, row by row."""
    mask = (input != 0).reshape(-1)
    positions, count = _compacted(mask)
    coordinates = []
    for size in reversed(input.shape):
        coordinates.append(positions % max(size, 1))
        positions = positions // max(size, 1)
    if not coordinates:
        return (Padded(torch.zeros((1, 0), dtype=torch.int64), count),)
    return (Padded(torch.stack(coordinates[::-1], -1), count),)


@sized(aten.masked_select.default)
def masked_select(input: Tensor, mask: Tensor) -> tuple[Padded]:
    """Return the elements where the mask holds, after both are broadcast."""
    input, mask = torch.broadcast_tensors(input, mask)
    positions, count = _compacted(mask.reshape(-1))
    return (Padded(input.reshape(-1)[positions], count),)


def _unique_of_runs(
    values: Tensor, starts: Tensor, *, return_inverse: bool, return_counts: bool
) -> tuple[Tensor | Padded, Tensor, Tensor | Padded]:
    """Return first elements, run numbers and lengths of runs that begin where `starts` holds."""
    positions, count = _compacted(starts)
    empty = torch.zeros(0, dtype=torch.int64)
    run = starts.cumsum(0) - 1
    lengths = torch.zeros(starts.numel(), dtype=torch.int64).scatter_add(
        0, run, torch.ones_like(run)
    )
    return (
        Padded(values.index_select(0, positions), count),
        run if return_inverse else empty,
        Padded(lengths, count) if return_counts else empty,
    )


def _only_one_mask(node: fx.Node) -> str | None:
    indices = [index for index in node.args[1] if index is not None]  # type: ignore[union-attr]
    if len(indices) != 1 or indices[0].meta["val"].dtype is not torch.bool:  # type: ignore[union-attr]
        return "a mask stands beside other indices"
    return None


@sized(aten.index.Tensor, check=_only_one_mask)
def index_by_mask(input: Tensor, indices: list[Tensor | None]) -> tuple[Padded]:
    """Return the slices where the one mask among `indices` holds, in the place of its dims."""
    ((dim, mask),) = ((dim, index) for dim, index in enumerate(indices) if index is not None)
    positions, count = _compacted(mask.reshape(-1))
    behind = input.shape[dim + mask.ndim :]
    flat = input.reshape((*input.shape[:dim], mask.numel(), *behind))
    return (Padded(flat.index_select(dim, positions), count, dim),)


def _rows(values: Tensor) -> Tensor:
    return values.reshape(values.shape[0], math.prod(values.shape[1:]))


def _starts(values: Tensor) -> Tensor:
    """Return where a slice of dim 0 differs from the one before it; the first one always does."""
    rows = _rows(values)
    first = torch.ones(min(rows.shape[0], 1), dtype=torch.bool)
    return torch.cat([first, (rows[1:] != rows[:-1]).any(-1)])


@sized(aten._unique2.default)
def unique(
    input: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor | Padded, Tensor, Tensor | Padded]:
    """Return sorted unique elements, which of them each element is, and how often each occurs."""
    values, order = input.reshape(-1).sort(stable=True)
    found, run, counts = _unique_of_runs(
        values, _starts(values), return_inverse=return_inverse, return_counts=return_counts
    )
    if return_inverse:
        run = torch.zeros_like(run).scatter(0, order, run).reshape(input.shape)
    return found, run, counts


@sized(aten._unique.default)
def unique_without_counts(
    input: Tensor, sorted: bool = True, return_inverse: bool = False
) -> tuple[Tensor | Padded, Tensor]:
    """Return sorted unique elements, and which of them each element is."""
    return unique(input, sorted, return_inverse)[:2]


@sized(aten.unique_consecutive.default)
def unique_consecutive(
    input: Tensor,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> tuple[Tensor | Padded, Tensor, Tensor | Padded]:
    """Return one element of each run of equal ones (slices of `dim`, if given).

    With a `dim`, the CPU gives the other two results unasked.
    """
    values = input.reshape(-1) if dim is None else input.movedim(dim, 0)
    found, run, counts = _unique_of_runs(
        values,
        _starts(values),
        return_inverse=return_inverse or dim is not None,
        return_counts=return_counts or dim is not None,
    )
    if dim is not None:
        assert isinstance(found, Padded)
        found = Padded(found.value.movedim(0, dim), found.length, dim % max(input.ndim, 1))
    elif return_inverse:
        run = run.reshape(input.shape)
    return found, run, counts


@sized(aten.unique_dim.default)
def unique_dim(
    input: Tensor,
    dim: int,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> tuple[Tensor | Padded, Tensor, Tensor | Padded]:
    """Return the unique slices of `dim` in lexicographic order; a NaN equals nothing.

    The CPU gives the other two results unasked.
    Every pair of slices is compared, so memory grows with the square of their number.
    """
    slices = input.movedim(dim, 0)
    rows = _rows(slices)
    left, right = rows.unsqueeze(1), rows.unsqueeze(0)
    differs = (left < right) | (left > right)
    # Where two rows first differ; if nowhere, the earlier row comes first.
    first = differs.to(torch.int8).argmax(-1, keepdim=True) if rows.shape[1] else None
    number = torch.arange(rows.shape[0])
    earlier = number.unsqueeze(1) < number.unsqueeze(0)
    if first is None:
        before = earlier
    else:
        smaller = (left < right).gather(-1, first).squeeze(-1)
        before = torch.where(differs.any(-1), smaller, earlier)
    rank = before.sum(0)
    order = torch.zeros_like(rank).scatter(0, rank, number)
    values = slices.index_select(0, order)
    found, run, counts = _unique_of_runs(
        values, _starts(values), return_inverse=True, return_counts=True
    )
    assert isinstance(found, Padded)
    found = Padded(found.value.movedim(0, dim), found.length, dim % input.ndim)
    return found, torch.zeros_like(run).scatter(0, order, run), counts


def _total(repeats: Tensor, output_size: int | None = None) -> Tensor:
    return repeats.sum().to(torch.int64)


@sized(aten.repeat_interleave.Tensor, measure=_total)
def repeat_interleave(size: int, repeats: Tensor, output_size: int | None = None) -> tuple[Tensor]:
    """Return each position as often as `repeats` says: `[size]`, of the dtype of `repeats`."""
    ends = repeats.cumsum(0)
    places = torch.arange(size, dtype=ends.dtype)
    return (torch.searchsorted(ends, places, right=True).to(repeats.dtype),)


def _bins(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    floor = torch.tensor(minlength)
    if input.numel() == 0:
        return floor
    return torch.maximum(input.max().to(torch.int64) + 1, floor)


@sized(aten.bincount.default, measure=_bins)
def bincount(
    size: int, input: Tensor, weights: Tensor | None = None, minlength: int = 0
) -> tuple[Tensor]:
    """Return how often each number below `size` occurs, or the sum of its weights."""
    if weights is None or input.numel() == 0:
        weights = torch.ones(input.shape, dtype=torch.int64)
    elif weights.dtype is not torch.float32:
        weights = weights.to(torch.float64)
    where = input.to(torch.int64)
    return (torch.zeros(size, dtype=weights.dtype).scatter_add(0, where, weights),)
