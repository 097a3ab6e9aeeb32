"""Resizing of the spatial dims of `[batch, channels, *spatial]` by interpolation, and gradients.

Every kind of interpolation is separable: along one dim each output position is a weighted sum of
a few input positions, its taps. Positions and weights depend on sizes only; they are worked out
here, in the precision and by the formulas of eager PyTorch (`UpSample.h`), and become constants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import fx

from lowering import hlo
from lowering.bucketing.batches import resizes
from lowering.context import LoweringContext
from lowering.dtypes import spec_of
from lowering.hlo_indexing import put, take
from lowering.mlir import ir, stablehlo
from lowering.ops.matmul import accumulation_dtype
from lowering.ops.pooling import CPU
from lowering.registry import lowering

aten = torch.ops.aten


class Dim(NamedTuple):
    """One dim to resize."""

    inputs: int
    outputs: int
    align_corners: bool
    factor: float | None
    """The user's scale factor, or None where only the sizes are known."""
    dtype: torch.dtype
    """Floating dtype of positions and weights."""

    def step(self) -> torch.Tensor:
        """Return how far apart outputs lie in the input, 0-d."""
        one = torch.ones((), dtype=self.dtype, device=CPU)
        if self.align_corners:
            return one * (self.inputs - 1) / max(self.outputs - 1, 1) * (self.outputs > 1)
        if self.factor is not None and self.factor > 0:
            return one * (1 / self.factor)
        return one * self.inputs / self.outputs

    def sources(self) -> torch.Tensor:
        """Return where the center of each output lies in the input, `[outputs]`."""
        index = torch.arange(self.outputs, dtype=self.dtype, device=CPU)
        return self.step() * index if self.align_corners else self.step() * (index + 0.5) - 0.5


class Taps(NamedTuple):
    """Input positions and weights of each output, both `[outputs, taps]`."""

    positions: torch.Tensor
    weights: torch.Tensor


def nearest(dim: Dim) -> Taps:
    """Return the input at or before the start of each output."""
    return _nearest(dim, 0.0)


def nearest_exact(dim: Dim) -> Taps:
    """Return the input whose cell holds the center of each output."""
    return _nearest(dim, 0.5)


def _nearest(dim: Dim, offset: float) -> Taps:
    index = torch.arange(dim.outputs, dtype=dim.dtype, device=CPU) + offset
    positions = (index * dim.step()).floor().long().clamp(max=dim.inputs - 1)[:, None]
    return Taps(positions, torch.ones(positions.shape, dtype=dim.dtype, device=CPU))


def linear(dim: Dim) -> Taps:
    """Return the two neighbours of each output's center."""
    source = dim.sources().clamp(min=0)
    first = source.floor().long().clamp(max=dim.inputs - 1)
    second = (first + 1).clamp(max=dim.inputs - 1)
    share = (source - first).clamp(0, 1)
    return Taps(torch.stack([first, second], 1), torch.stack([1 - share, share], 1))


def cubic(dim: Dim) -> Taps:
    """Return the four neighbours of each output's center, with Keys' weights for a = -0.75."""
    source = dim.sources()
    first = source.floor()
    share = (source - first)[:, None]
    offsets = torch.arange(-1, 3, device=CPU)
    positions = (first.long()[:, None] + offsets).clamp(0, dim.inputs - 1)
    return Taps(positions, _keys((share - offsets).abs(), -0.75))


def _keys(distance: torch.Tensor, a: float) -> torch.Tensor:
    """Return the cubic convolution kernel (Keys 1981) at distances up to 2."""
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return torch.where(distance <= 1, near, torch.where(distance < 2, far, 0))


def antialiased_linear(dim: Dim) -> Taps:
    """Return every input under a triangle as wide as an output, where outputs are the wider."""
    return _antialiased(dim, 1.0, lambda distance: (1 - distance).clamp(min=0))


def antialiased_cubic(dim: Dim) -> Taps:
    """Return every input under Keys' kernel (a = -0.5) stretched to the width of outputs."""
    return _antialiased(dim, 2.0, lambda distance: _keys(distance, -0.5))


def _antialiased(dim: Dim, radius: float, kernel: Callable[[torch.Tensor], torch.Tensor]) -> Taps:
    step = dim.step()
    stretch = step.clamp(min=1)
    center = step * (torch.arange(dim.outputs, dtype=dim.dtype, device=CPU) + 0.5)
    reach = radius * stretch
    start = (center - reach + 0.5).long().clamp(min=0)
    end = (center + reach + 0.5).long().clamp(max=dim.inputs)
    positions = start[:, None] + torch.arange(max(int((end - start).max()), 1), device=CPU)
    weights = kernel(((positions - center[:, None] + 0.5) / stretch).abs())
    weights = torch.where(positions < end[:, None], weights, 0)
    weights = weights / weights.sum(1, keepdim=True)
    return Taps(positions.clamp(max=dim.inputs - 1), weights)


Filter = Callable[[Dim], Taps]


def _dims(
    inputs: Sequence[int],
    outputs: Sequence[int],
    align_corners: bool,
    factors: Sequence[float | None],
    dtype: torch.dtype,
) -> list[Dim]:
    return [
        Dim(size, count, align_corners, factor, dtype)
        for size, count, factor in zip(inputs[2:], outputs[2:], factors, strict=True)
    ]


def _integer_reason(node: fx.Node) -> str | None:
    value = node.args[0].meta["val"]  # type: ignore[union-attr]
    if value.dtype.is_floating_point:
        return None
    return "eager PyTorch interpolates integers in fixed point"


def _resize(
    ctx: LoweringContext,
    operand: ir.Value,
    taps_of: Filter,
    align_corners: bool,
    factors: Sequence[float | None],
) -> ir.Value:
    """Return `operand` resized to the node's result."""
    spec, result = spec_of(operand), ctx.result
    reason = _integer_reason(ctx.node)
    if reason is not None:
        raise ctx.unsupported(reason)
    if 0 in result.shape:
        return hlo.full(result.shape, result.dtype, 0)
    wide = hlo.convert(operand, accumulation_dtype(spec.dtype))
    dims = _dims(spec.shape, result.shape, align_corners, factors, spec_of(wide).dtype)
    for position, dim in enumerate(dims, start=2):
        taps = taps_of(dim)
        read = take(wide, [position], [hlo.constant(taps.positions.int())])
        weights = hlo.broadcast_in_dim(
            hlo.constant(taps.weights), spec_of(read).shape, [position, position + 1]
        )
        wide = hlo.reduce_sum(stablehlo.multiply(read, weights), [position + 1])
    return hlo.convert(wide, result.dtype)


def _resize_backward(
    ctx: LoweringContext,
    grad: ir.Value,
    taps_of: Filter,
    align_corners: bool,
    factors: Sequence[float | None],
) -> ir.Value:
    """Return the gradient of `_resize`: each output's gradient added at its taps."""
    spec, result = spec_of(grad), ctx.result
    if 0 in spec.shape:
        return hlo.full(result.shape, result.dtype, 0)
    wide = hlo.convert(grad, accumulation_dtype(spec.dtype))
    dims = _dims(result.shape, spec.shape, align_corners, factors, spec_of(wide).dtype)
    for position, dim in enumerate(dims, start=2):
        taps = taps_of(dim)
        shape = spec_of(wide).shape
        spread = (*shape[: position + 1], taps.weights.shape[1], *shape[position + 1 :])
        kept = [i for i in range(len(spread)) if i != position + 1]
        updates = stablehlo.multiply(
            hlo.broadcast_in_dim(wide, spread, kept),
            hlo.broadcast_in_dim(hlo.constant(taps.weights), spread, [position, position + 1]),
        )
        zeros = hlo.full(
            (*shape[:position], dim.inputs, *shape[position + 1 :]), spec_of(wide).dtype, 0
        )
        positions = hlo.constant(taps.positions.int())
        wide = put(zeros, [position], [positions], updates, stablehlo.add)
    return hlo.convert(wide, result.dtype)


_ALIGNABLE: dict[torch._ops.OpOverload, Filter] = {
    aten.upsample_bilinear2d.default: linear,
    aten.upsample_trilinear3d.default: linear,
    aten.upsample_bicubic2d.default: cubic,
    aten._upsample_bilinear2d_aa.default: antialiased_linear,
    aten._upsample_bicubic2d_aa.default: antialiased_cubic,
}
_ALIGNABLE_BACKWARD: dict[torch._ops.OpOverload, Filter] = {
    aten.upsample_linear1d_backward.default: linear,
    aten.upsample_bilinear2d_backward.default: linear,
    aten.upsample_trilinear3d_backward.default: linear,
    aten.upsample_bicubic2d_backward.default: cubic,
    aten._upsample_bilinear2d_aa_backward.default: antialiased_linear,
    aten._upsample_bicubic2d_aa_backward.default: antialiased_cubic,
}
_NEAREST_BACKWARD: dict[torch._ops.OpOverload, Filter] = {
    aten.upsample_nearest1d_backward.default: nearest,
    aten.upsample_nearest2d_backward.default: nearest,
    aten.upsample_nearest3d_backward.default: nearest,
    aten._upsample_nearest_exact1d_backward.default: nearest_exact,
    aten._upsample_nearest_exact2d_backward.default: nearest_exact,
    aten._upsample_nearest_exact3d_backward.default: nearest_exact,
}


def _all_factors(ctx: LoweringContext, factors: Sequence[float | None]) -> list[float | None]:
    """Return one scale factor a spatial dim, None for those that were left out."""
    rank = len(ctx.result.shape) - 2
    return [*factors, *[None] * (rank - len(factors))]


@lowering(*_ALIGNABLE, padding=resizes, check=_integer_reason)
def resize(
    ctx: LoweringContext,
    operand: ir.Value,
    output_size: Sequence[int],
    align_corners: bool,
    *factors: float | None,
) -> ir.Value:
    """Resize the spatial dims to `output_size` by the filter of the overload."""
    taps_of = _ALIGNABLE[ctx.node.target]  # type: ignore[index]
    return _resize(ctx, operand, taps_of, align_corners, _all_factors(ctx, factors))


@lowering(*_ALIGNABLE_BACKWARD, padding=resizes)
def resize_backward(
    ctx: LoweringContext,
    grad_output: ir.Value,
    output_size: Sequence[int],
    input_size: Sequence[int],
    align_corners: bool,
    *factors: float | None,
) -> ir.Value:
    """Gradient of the resize with the same filter; shape `input_size`."""
    taps_of = _ALIGNABLE_BACKWARD[ctx.node.target]  # type: ignore[index]
    return _resize_backward(ctx, grad_output, taps_of, align_corners, _all_factors(ctx, factors))


@lowering(*_NEAREST_BACKWARD, padding=resizes)
def nearest_backward(
    ctx: LoweringContext,
    grad_output: ir.Value,
    output_size: Sequence[int],
    input_size: Sequence[int],
    *factors: float | None,
) -> ir.Value:
    """Gradients of all outputs that read an input, added up; shape `input_size`."""
    taps_of = _NEAREST_BACKWARD[ctx.node.target]  # type: ignore[index]
    return _resize_backward(ctx, grad_output, taps_of, False, _all_factors(ctx, factors))
