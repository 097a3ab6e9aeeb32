"""Sampling of `[batch, channels, *spatial]` at positions that a grid gives, and its gradient.

The grid is `[batch, *outputs, spatial dims]` with coordinates in [-1, 1], x (the last dim) first.
As in `resize` an output is a weighted sum of taps, and the weight of a tap is a product over the
dims; here positions and weights are run-time values `[batch, points]`. Formulas follow
`GridSampler.h` of PyTorch. Values are read as `[batch, points, channels]`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from lowering import hlo
from lowering.bucketing.batches import samples_grid, samples_grid_backward
from lowering.context import LoweringContext
from lowering.dtypes import TensorSpec, spec_of
from lowering.hlo_indexing import put, take
from lowering.mlir import ir, stablehlo
from lowering.ops.matmul import accumulation_dtype
from lowering.ops.normalization import as_result
from lowering.registry import lowering

aten = torch.ops.aten

_BILINEAR, _NEAREST = 0, 1
_ZEROS, _BORDER = 0, 1
_KEYS = -0.75


class Tap(NamedTuple):
    """One position along one dim, `[batch, points]`."""

    position: ir.Value
    """A whole number in floating point; it may lie outside."""
    weight: ir.Value
    slope: ir.Value
    """Derivative of the weight with respect to the grid's coordinate."""


def _polynomial(operand: ir.Value, *coefficients: float) -> ir.Value:
    """Return the polynomial of `operand` with coefficients from the highest power on."""
    total = hlo.full_like(operand, coefficients[0])
    for coefficient in coefficients[1:]:
        total = stablehlo.add(
            stablehlo.multiply(total, operand), hlo.full_like(operand, coefficient)
        )
    return total


class Axis(NamedTuple):
    """How coordinates of one spatial dim become taps."""

    size: int
    mode: int
    padding: int
    align_corners: bool

    def taps(self, grid: ir.Value) -> list[Tap]:
        """Return the taps for coordinates in [-1, 1]."""
        stretch = (self.size - 1) / 2 if self.align_corners else self.size / 2
        source = _polynomial(grid, stretch, (self.size - 1) / 2)
        if self.mode not in (_BILINEAR, _NEAREST):
            return self._cubic(source, stretch)
        source, sign = self._padded(source)
        slope = stablehlo.multiply(sign, hlo.full_like(sign, stretch))
        if self.mode == _NEAREST:
            nearest = stablehlo.round_nearest_even(source)
            return [Tap(nearest, hlo.full_like(source, 1), hlo.full_like(source, 0))]
        first = stablehlo.floor(source)
        share = stablehlo.subtract(source, first)
        return [
            Tap(first, _polynomial(share, -1, 1), stablehlo.negate(slope)),
            Tap(_polynomial(first, 1, 1), share, slope),
        ]

    def _cubic(self, source: ir.Value, stretch: float) -> list[Tap]:
        """Return four taps with Keys' weights; each position is padded by itself."""
        first = stablehlo.floor(source)
        share = stablehlo.subtract(source, first)
        a = _KEYS
        taps = []
        for offset in (-1, 0, 1, 2):
            side = 1 if offset < 1 else -1
            distance = _polynomial(share, side, -side * offset)
            if offset in (0, 1):
                weight = _polynomial(distance, a + 2, -(a + 3), 0, 1)
                slope = _polynomial(distance, 3 * (a + 2), -2 * (a + 3), 0)
            else:
                weight = _polynomial(distance, a, -5 * a, 8 * a, -4 * a)
                slope = _polynomial(distance, 3 * a, -10 * a, 8 * a)
            position = self._padded(_polynomial(first, 1, offset))[0]
            slope = stablehlo.multiply(slope, hlo.full_like(slope, side * stretch))
            taps.append(Tap(position, weight, slope))
        return taps

    def _padded(self, source: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Return `source` moved inside as the padding mode says, and the derivative of that."""
        one, zero = hlo.full_like(source, 1), hlo.full_like(source, 0)
        if self.padding == _ZEROS:
            return source, one
        sign = one
        if self.padding != _BORDER:
            source, sign = self._reflected(source)
        # What is not a number, as a mirrored infinity is not, is taken for the first position.
        source = hlo.select(hlo.is_nan(source), zero, source)
        last = hlo.full_like(source, self.size - 1)
        inside = stablehlo.and_(hlo.compare(source, zero, "GT"), hlo.compare(source, last, "LT"))
        clipped = stablehlo.minimum(last, stablehlo.maximum(source, zero))
        return clipped, hlo.select(inside, sign, zero)

    def _reflected(self, source: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Return `source` mirrored at the ends until it lies between, and +1 or -1."""
        low, span = (0.0, self.size - 1) if self.align_corners else (-0.5, self.size)
        zero, one = hlo.full_like(source, 0), hlo.full_like(source, 1)
        if span == 0:
            return zero, zero
        shifted = _polynomial(source, 1, -low)
        distance = stablehlo.abs(shifted)
        spans = hlo.full_like(source, span)
        extra = stablehlo.remainder(distance, spans)
        flips = stablehlo.floor(stablehlo.divide(distance, spans))
        two = hlo.full_like(source, 2)
        even = hlo.compare(stablehlo.remainder(flips, two), zero, "EQ")
        position = hlo.select(even, _polynomial(extra, 1, low), _polynomial(extra, -1, span + low))
        positive = hlo.compare(hlo.compare(shifted, zero, "GE"), even, "EQ")
        return position, hlo.select(positive, one, stablehlo.negate(one))


class Sampler(NamedTuple):
    """The taps of every point, by dim, and where values lie in the flattened input."""

    sizes: list[int]
    taps: list[list[Tap]]
    """One list a spatial dim, in the order of the dims."""

    @classmethod
    def of(
        cls, operand: TensorSpec, grid: ir.Value, mode: int, padding: int, align_corners: bool
    ) -> Sampler:
        """Return the sampler for an operand and a grid of the computing dtype."""
        sizes = list(operand.shape[2:])
        rank = len(sizes)
        batch, *outputs, _ = spec_of(grid).shape
        points = hlo.reshape(grid, [batch, math.prod(outputs), rank])
        taps = []
        for dim, size in enumerate(sizes):
            place = rank - 1 - dim
            coordinate = hlo.slice_in_dim(points, place, place + 1, dim=2)
            coordinate = hlo.reshape(coordinate, spec_of(points).shape[:2])
            taps.append(Axis(size, mode, padding, align_corners).taps(coordinate))
        return cls(sizes, taps)

    def locate(self, taps: Sequence[Tap]) -> tuple[list[ir.Value], ir.Value]:
        """Return (batch, flat position) of a combination of taps, and whether it lies inside."""
        insides = []
        for tap, size in zip(taps, self.sizes, strict=True):
            last = hlo.full_like(tap.position, size - 1)
            insides.append(hlo.compare(tap.position, hlo.full_like(last, 0), "GE"))
            insides.append(hlo.compare(tap.position, last, "LE"))
        inside = functools.reduce(stablehlo.and_, insides)
        shape = spec_of(inside).shape
        flat = hlo.full(shape, torch.int32, 0)
        for tap, size in zip(taps, self.sizes, strict=True):
            position = hlo.select(inside, tap.position, hlo.full_like(tap.position, 0))
            flat = stablehlo.add(
                stablehlo.multiply(flat, hlo.full_like(flat, size)),
                hlo.convert(position, torch.int32),
            )
        return [hlo.iota(shape, 0), flat], inside


def _weight(taps: Sequence[Tap], derived: int | None = None) -> ir.Value:
    """Return the product of weights, with the slope instead for the dim `derived`."""
    factors = [tap.slope if dim == derived else tap.weight for dim, tap in enumerate(taps)]
    return functools.reduce(stablehlo.multiply, factors)


def _masked(inside: ir.Value, operand: ir.Value) -> ir.Value:
    """Return `operand` where the point lies inside, else 0; `inside` is `[batch, points]`."""
    mask = hlo.broadcast_in_dim(inside, spec_of(operand).shape, [0, 1])
    return hlo.select(mask, operand, hlo.full_like(operand, 0))


def _by_point(numbers: ir.Value, like: ir.Value) -> ir.Value:
    return hlo.broadcast_in_dim(numbers, spec_of(like).shape, [0, 1])


def _flat(operand: ir.Value, dtype: torch.dtype) -> ir.Value:
    """Return `[batch, channels, *spatial]` as `[batch, channels, positions]` of `dtype`."""
    batch, channels, *spatial = spec_of(operand).shape
    return hlo.convert(hlo.reshape(operand, [batch, channels, math.prod(spatial)]), dtype)


@lowering(aten.grid_sampler_2d.default, aten.grid_sampler_3d.default, padding=samples_grid)
def grid_sampler(
    ctx: LoweringContext,
    operand: ir.Value,
    grid: ir.Value,
    mode: int,
    padding: int,
    align_corners: bool,
) -> ir.Value:
    """Values of `operand` at the grid's points, `[batch, channels, *outputs]`.

    `mode` is 0 bilinear, 1 nearest, 2 bicubic; `padding` 0 zeros, 1 border, 2 reflection.
    """
    spec, result = spec_of(operand), ctx.result
    if 0 in (*result.shape, *spec.shape):
        return hlo.full(result.shape, result.dtype, 0)
    dtype = accumulation_dtype(spec.dtype)
    sampler = Sampler.of(spec, hlo.convert(grid, dtype), mode, padding, align_corners)
    flat = _flat(operand, dtype)
    terms = []
    for taps in itertools.product(*sampler.taps):
        positions, inside = sampler.locate(taps)
        values = _masked(inside, take(flat, [0, 2], positions, at=0))
        weighted = stablehlo.multiply(values, _by_point(_weight(taps), values))
        # Of a weight that is NaN eager makes NaN in two dims, and in three nothing outside.
        terms.append(weighted if len(sampler.sizes) == 2 else _masked(inside, weighted))
    total = hlo.transpose(functools.reduce(stablehlo.add, terms), [0, 2, 1])
    return as_result(ctx, 0, total)


@lowering(
    aten.grid_sampler_2d_backward.default,
    aten.grid_sampler_3d_backward.default,
    padding=samples_grid_backward,
)
def grid_sampler_backward(
    ctx: LoweringContext,
    grad_output: ir.Value,
    operand: ir.Value,
    grid: ir.Value,
    mode: int,
    padding: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[ir.Value | None, ir.Value | None]:
    """Gradients of operand and grid; the operand's is None where the mask does not want it."""
    spec = spec_of(operand)
    rank = spec.rank - 2
    dtype = accumulation_dtype(spec.dtype)
    if 0 in (*spec_of(grad_output).shape, *spec.shape):
        zeros = [
            None if result is None else hlo.full(result.shape, result.dtype, 0)
            for result in ctx.results
        ]
        return zeros[0], zeros[1]
    sampler = Sampler.of(spec, hlo.convert(grid, dtype), mode, padding, align_corners)
    flat = _flat(operand, dtype)
    grad = hlo.transpose(_flat(grad_output, dtype), [0, 2, 1])
    grad_operand = hlo.full_like(flat, 0)
    slopes: list[list[ir.Value]] = [[] for _ in range(rank)]
    for taps in itertools.product(*sampler.taps):
        positions, inside = sampler.locate(taps)
        if output_mask[0]:
            share = _masked(inside, stablehlo.multiply(grad, _by_point(_weight(taps), grad)))
            grad_operand = put(grad_operand, [0, 2], positions, share, stablehlo.add, at=0)
        if output_mask[1]:
            values = take(flat, [0, 2], positions, at=0)
            change = hlo.reduce_sum(stablehlo.multiply(grad, values), [2])
            for dim in range(rank):
                term = stablehlo.multiply(change, _weight(taps, dim))
                slopes[dim].append(_masked(inside, term))
    first = as_result(ctx, 0, grad_operand) if output_mask[0] else None
    if not output_mask[1]:
        return first, None
    columns = [
        hlo.expand_dims(functools.reduce(stablehlo.add, terms), [2]) for terms in reversed(slopes)
    ]
    return first, as_result(ctx, 1, hlo.concatenate(columns, 2))
