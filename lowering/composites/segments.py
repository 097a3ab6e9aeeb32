"""Reductions of the segments of one dim, given by their lengths or by where they start.

Rules: ATen's `segment_reduce` kernels. A mean adds `initial` before it divides; an empty segment
without `initial` has the mean NaN; equal extremes, and NaNs, share a gradient evenly.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lowering.decompositions import decomposition

aten = torch.ops.aten

_IDENTITIES = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}
_SCATTERED = {"sum": "sum", "mean": "sum", "prod": "prod", "max": "amax", "min": "amin"}


def _starts_of(lengths: Tensor | None, offsets: Tensor | None) -> Tensor:
    """Return where segments start and, last, where the last one ends: `[*outer, segments + 1]`."""
    if lengths is None:
        assert offsets is not None
        return offsets
    ends = lengths.cumsum(-1).to(lengths.dtype)
    return torch.cat([lengths.new_zeros((*lengths.shape[:-1], 1)), ends], -1)


class _Segments:
    """The segments of `axis` of tensors like `data`; what lies behind the last one is left out."""

    def __init__(
        self, data: Tensor, lengths: Tensor | None, offsets: Tensor | None, axis: int
    ) -> None:
        starts = _starts_of(lengths, offsets)
        self.axis = axis
        self.count = starts.shape[-1] - 1
        places = torch.arange(data.shape[axis], dtype=starts.dtype)
        places = places.expand(*starts.shape[:-1], data.shape[axis]).contiguous()
        # The segment of each place: how many segments end at or before it; `count` is behind all.
        ends = starts.narrow(-1, 1, self.count).contiguous()
        owner = torch.searchsorted(ends, places, right=True)
        inner = data.shape[axis + 1 :]
        self.owner = self._along(owner, inner)
        self.lengths = self._along(starts.diff(dim=-1), inner)

    @staticmethod
    def _along(tensor: Tensor, inner: torch.Size) -> Tensor:
        return tensor.reshape(tensor.shape + (1,) * len(inner)).expand(tensor.shape + inner)

    def reduce(self, data: Tensor, how: str, initial: float) -> Tensor:
        """Return one value a segment, starting from `initial`."""
        shape = list(data.shape)
        shape[self.axis] = self.count + 1
        filled = data.new_full(shape, initial)
        reduced = filled.scatter_reduce(self.axis, self.owner, data, _SCATTERED[how])
        return reduced.narrow(self.axis, 0, self.count)

    def spread(self, values: Tensor) -> Tensor:
        """Return the value of its segment at each place; zero behind the last one."""
        shape = list(values.shape)
        shape[self.axis] = 1
        padded = torch.cat([values, values.new_zeros(shape)], self.axis)
        return padded.gather(self.axis, self.owner)


@decomposition(aten.segment_reduce.default)
def segment_reduce(
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    indices: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> Tensor:
    """Return one value a segment in the place of `axis`; `lengths` and `offsets` are as in ATen."""
    axis %= data.ndim
    segments = _Segments(data, lengths, offsets, axis)
    reduced = segments.reduce(data, reduce, _IDENTITIES[reduce] if initial is None else initial)
    if reduce != "mean":
        return reduced
    empty = segments.lengths == 0
    mean = reduced / segments.lengths.to(data.dtype)
    return torch.where(empty, reduced if initial is not None else math.nan, mean)


@decomposition(aten._segment_reduce_backward.default)
def segment_reduce_backward(
    grad: Tensor,
    output: Tensor,
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    initial: float | None = None,
) -> Tensor:
    """Return the gradient of `data`."""
    axis %= data.ndim
    segments = _Segments(data, lengths, offsets, axis)
    spread = segments.spread(grad)
    if reduce == "sum":
        return spread
    if reduce == "mean":
        return segments.spread(grad / segments.lengths.to(grad.dtype))
    if reduce == "prod":
        return spread * _product_of_others(segments, data, segments.spread(output), initial)
    chosen = (data == segments.spread(output)) | data.isnan()
    count = segments.reduce(chosen.to(grad.dtype), "sum", 0.0)
    return torch.where(chosen, segments.spread(grad / count), 0.0)


def _product_of_others(
    segments: _Segments, data: Tensor, output: Tensor, initial: float | None
) -> Tensor:
    """Return, for each place, the product of the other places of its segment and `initial`.

    That is the output over the place's own value, unless that value is zero or NaN.
    """
    is_zero, is_nan = data == 0, data.isnan()
    plain = torch.where(is_zero | is_nan, 1.0, data)
    product = segments.spread(segments.reduce(plain, "prod", 1.0 if initial is None else initial))
    zeros = segments.spread(segments.reduce(is_zero.to(data.dtype), "sum", 0.0))
    nans = segments.spread(segments.reduce(is_nan.to(data.dtype), "sum", 0.0))
    others = torch.where(zeros > is_zero.to(data.dtype), 0.0, product)
    others = torch.where(nans > is_nan.to(data.dtype), math.nan, others)
    return torch.where(is_zero | is_nan, others, output / data)
