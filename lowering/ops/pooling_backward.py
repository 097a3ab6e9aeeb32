"""Gradients of pooling over sliding windows.

The gradient of one window goes to one position (max) or to all of them (average). Windows
overlap, so a position sums over the windows that contain it.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

import torch

from lowering import hlo
from lowering.bucketing.windows import averages_windows_backward, pools_largest_backward
from lowering.context import LoweringContext
from lowering.dtypes import spec_of
from lowering.hlo_indexing import put_along
from lowering.mlir import ir, stablehlo
from lowering.ops.matmul import accumulation_dtype
from lowering.ops.pooling import Divisor, PoolWindow, RealSizes, divide_by_window
from lowering.registry import lowering

aten = torch.ops.aten

# Up to this many positions a window, one select and pad a position (which fuse) beat a scatter
# (which runs one update after another on most hardware).
LARGEST_UNROLLED_WINDOW = 32


# --- max -------------------------------------------------------------------------------------


@lowering(aten.max_pool2d_with_indices_backward.default, padding=pools_largest_backward(2))
def max_pool2d_with_indices_backward(
    ctx: LoweringContext,
    grad_output: ir.Value,
    operand: ir.Value,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: ir.Value,
) -> ir.Value:
    """Gradient of each window at the plane position `indices`; shape of `operand`."""
    return _max_pool_backward(ctx, grad_output, 2, kernel, stride, padding, dilation, indices)


@lowering(aten.max_pool3d_with_indices_backward.default, padding=pools_largest_backward(3))
def max_pool3d_with_indices_backward(
    ctx: LoweringContext,
    grad_output: ir.Value,
    operand: ir.Value,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: ir.Value,
) -> ir.Value:
    """Gradient of each window at the volume position `indices`; shape of `operand`."""
    return _max_pool_backward(ctx, grad_output, 3, kernel, stride, padding, dilation, indices)


def _max_pool_backward(
    ctx: LoweringContext,
    grad_output: ir.Value,
    rank: int,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    indices: ir.Value,
) -> ir.Value:
    shape, outputs = ctx.result.shape, spec_of(grad_output).shape
    window = PoolWindow.of(rank, shape, outputs, kernel, stride, padding, dilation)
    if 0 in outputs or math.prod(window.kernel) > LARGEST_UNROLLED_WINDOW:
        return scatter_to_plane(ctx, grad_output, indices, rank)
    grad = hlo.convert(grad_output, accumulation_dtype(ctx.result.dtype))
    indices = hlo.convert(indices, torch.int32)
    zeros = hlo.full_like(grad, 0)
    first = _first_positions(outputs, window)
    steps = [math.prod(window.inputs[dim + 1 :]) for dim in range(rank)]
    placed = []
    for offsets in itertools.product(*(range(size) for size in window.kernel)):
        shifts = [offset * spread for offset, spread in zip(offsets, window.dilation, strict=True)]
        step = sum(shift * size for shift, size in zip(shifts, steps, strict=True))
        here = stablehlo.add(first, hlo.full_like(first, step))
        chosen = hlo.select(hlo.compare(indices, here, "EQ"), grad, zeros)
        # What lies in the padding is cut off by negative edges.
        low = [shift - edge for shift, edge in zip(shifts, window.padding, strict=True)]
        placed.append(_spread(chosen, window, low, window.inputs))
    return hlo.convert(functools.reduce(stablehlo.add, placed), ctx.result.dtype)


def _first_positions(shape: Sequence[int], window: PoolWindow) -> ir.Value:
    """Return the plane position at which each window starts, which may lie in the padding."""
    lead = len(shape) - len(window.kernel)
    position = hlo.full(shape, torch.int32, 0)
    for dim, (stride, edge) in enumerate(zip(window.stride, window.padding, strict=True)):
        step = math.prod(window.inputs[dim + 1 :])
        along = stablehlo.multiply(
            hlo.iota(shape, lead + dim), hlo.full(shape, torch.int32, stride * step)
        )
        position = stablehlo.add(position, along)
        position = stablehlo.subtract(position, hlo.full(shape, torch.int32, edge * step))
    return position


def _spread(
    operand: ir.Value, window: PoolWindow, low: Sequence[int], sizes: Sequence[int]
) -> ir.Value:
    """Return one value a window put `stride` apart from `low` on, zeros elsewhere."""
    lead = len(operand.type.shape) - len(sizes)
    high = []
    for stride, count, start, size in zip(window.stride, window.outputs, low, sizes, strict=True):
        high.append(size - start - ((count - 1) * stride + 1))
    interior = [stride - 1 for stride in window.stride]
    zeros = [0] * lead
    return hlo.pad(operand, [*zeros, *low], [*zeros, *high], interior=[*zeros, *interior])


def scatter_to_plane(
    ctx: LoweringContext, grad_output: ir.Value, indices: ir.Value, rank: int
) -> ir.Value:
    """Return gradients added up at their positions in the last `rank` dims of the result."""
    shape = ctx.result.shape
    planes, size = math.prod(shape[:-rank]), math.prod(shape[-rank:])
    dtype = accumulation_dtype(ctx.result.dtype)
    outputs = [planes, math.prod(grad_output.type.shape[-rank:])]
    grad = hlo.reshape(hlo.convert(grad_output, dtype), outputs)
    zeros = hlo.full([planes, size], dtype, 0)
    total = put_along(zeros, hlo.reshape(indices, outputs), 1, grad, stablehlo.add)
    return hlo.convert(hlo.reshape(total, shape), ctx.result.dtype)


# --- average -----------------------------------------------------------------------------------


@lowering(aten.avg_pool2d_backward.default, padding=averages_windows_backward(2))
def avg_pool2d_backward(
    ctx: LoweringContext,
    grad_output: ir.Value,
    operand: ir.Value,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
    real_sizes: RealSizes = None,
) -> ir.Value:
    """Gradient of each window by its divisor, at all its positions; shape of `operand`."""
    divisor = Divisor(count_include_pad, divisor_override, real_sizes)
    return _avg_pool_backward(ctx, grad_output, 2, kernel, stride, padding, divisor)


@lowering(aten.avg_pool3d_backward.default, padding=averages_windows_backward(3))
def avg_pool3d_backward(
    ctx: LoweringContext,
    grad_output: ir.Value,
    operand: ir.Value,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
    real_sizes: RealSizes = None,
) -> ir.Value:
    """Gradient of each window by its divisor, at all its positions; shape of `operand`."""
    divisor = Divisor(count_include_pad, divisor_override, real_sizes)
    return _avg_pool_backward(ctx, grad_output, 3, kernel, stride, padding, divisor)


def _avg_pool_backward(
    ctx: LoweringContext,
    grad_output: ir.Value,
    rank: int,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    divisor: Divisor,
) -> ir.Value:
    shape, outputs = ctx.result.shape, spec_of(grad_output).shape
    if 0 in outputs:
        return hlo.full(shape, ctx.result.dtype, 0)
    window = PoolWindow.of(rank, shape, outputs, kernel, stride, padding)
    grad = hlo.convert(grad_output, accumulation_dtype(ctx.result.dtype))
    grad = divide_by_window(grad, window, divisor)
    # A position sums the windows that start at most a kernel before it: slide a window back.
    low = [size - 1 - edge for size, edge in zip(window.kernel, window.padding, strict=True)]
    sizes = [size + extent - 1 for size, extent in zip(window.inputs, window.kernel, strict=True)]
    spread = _spread(grad, window, low, sizes)
    lead = len(shape) - rank
    total = hlo.reduce_window(
        spread,
        0,
        stablehlo.add,
        window=[1] * lead + window.kernel,
        strides=[1] * len(shape),
        padding=[(0, 0)] * len(shape),
    )
    return hlo.convert(total, ctx.result.dtype)
