"""Max and average pooling over sliding windows, one to three spatial dims.

The window slides over the last dims of `[batch, channels, *spatial]` or `[channels, *spatial]`.
Adaptive pooling is in `adaptive_pooling`, gradients are in `pooling_backward`.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import NamedTuple, TypedDict

import torch

from lowering import hlo
from lowering.bucketing.windows import averages_windows, pools_largest
from lowering.context import LoweringContext
from lowering.dtypes import TensorSpec, spec_of, tensor_type
from lowering.hlo_indexing import linear_index
from lowering.mlir import ir, stablehlo
from lowering.ops.convolution import per_dim
from lowering.ops.matmul import accumulation_dtype
from lowering.registry import lowering

aten = torch.ops.aten

# Named, since a default device that the user set would win otherwise.
CPU = torch.device("cpu")

NO_INDEX = torch.iinfo(torch.int32).max


class WindowArguments(TypedDict):
    """What a window reduction takes, one entry a dim of the tensor."""

    window: list[int]
    strides: list[int]
    padding: list[tuple[int, int]]
    dilation: list[int]


class PoolWindow(NamedTuple):
    """A sliding window, one entry a spatial dim, with the sizes it goes over and gives."""

    kernel: list[int]
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    inputs: list[int]
    outputs: list[int]

    @classmethod
    def of(
        cls,
        rank: int,
        inputs: Sequence[int],
        outputs: Sequence[int],
        kernel: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int] = (1,),
    ) -> PoolWindow:
        """Return the window over the last `rank` dims; an empty stride is the kernel's size."""
        kernel = per_dim(kernel, rank)
        return cls(
            kernel,
            per_dim(stride, rank) if stride else kernel,
            per_dim(padding, rank),
            per_dim(dilation, rank),
            list(inputs[-rank:]),
            list(outputs[-rank:]),
        )

    def edges(self) -> list[tuple[int, int]]:
        """Return low and high padding with which every window fits (`ceil_mode` goes past)."""
        pairs = []
        for kernel, stride, low, spread, size, count in zip(*self, strict=True):
            reach = (count - 1) * stride + (kernel - 1) * spread + 1
            pairs.append((low, max(reach - low - size, 0)))
        return pairs

    def reduction(self, rank: int) -> WindowArguments:
        """Return the arguments of a window reduction over a tensor of `rank` dims."""
        lead = rank - len(self.kernel)
        return {
            "window": [1] * lead + self.kernel,
            "strides": [1] * lead + self.stride,
            "padding": [(0, 0)] * lead + self.edges(),
            "dilation": [1] * lead + self.dilation,
        }


# --- max -------------------------------------------------------------------------------------


def later_maximum(*operands: ir.Value) -> list[ir.Value]:
    """Combine (value, index) pairs as eager's loop does: the larger value and its index.

    NaN is larger than anything. Among equal values the first index stays, among NaNs the last.
    The order in which pairs are combined does not matter.
    """
    value, index, other, other_index = operands
    larger = hlo.compare(other, value, "GT")
    equal = hlo.compare(other, value, "EQ")
    sooner = hlo.compare(other_index, index, "LT")
    if spec_of(value).dtype.is_floating_point:
        is_nan, other_is_nan = hlo.is_nan(value), hlo.is_nan(other)
        both = stablehlo.and_(is_nan, other_is_nan)
        larger = stablehlo.or_(larger, stablehlo.and_(other_is_nan, stablehlo.not_(is_nan)))
        equal = stablehlo.or_(equal, both)
        sooner = stablehlo.xor(sooner, both)
    take = stablehlo.or_(larger, stablehlo.and_(equal, sooner))
    return [hlo.select(take, other, value), hlo.select(take, other_index, index)]


def second_result_is_read(ctx: LoweringContext) -> bool:
    """Whether anything reads result 1 of the node: inference drops the indices of max pooling."""
    return any(user.target is not operator.getitem or user.args[1] == 1 for user in ctx.node.users)


@lowering(aten.max_pool2d_with_indices.default, padding=pools_largest(2))
def max_pool2d_with_indices(
    ctx: LoweringContext,
    operand: ir.Value,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[ir.Value, ir.Value | None]:
    """Largest value of each window, and its row-major position in the input plane (int64)."""
    return _max_pool(ctx, operand, 2, kernel, stride, padding, dilation)


@lowering(aten.max_pool3d_with_indices.default, padding=pools_largest(3))
def max_pool3d_with_indices(
    ctx: LoweringContext,
    operand: ir.Value,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[ir.Value, ir.Value | None]:
    """Largest value of each window, and its row-major position in the input volume (int64)."""
    return _max_pool(ctx, operand, 3, kernel, stride, padding, dilation)


def _max_pool(
    ctx: LoweringContext,
    operand: ir.Value,
    rank: int,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> tuple[ir.Value, ir.Value | None]:
    spec, result = spec_of(operand), ctx.result
    if 0 in result.shape:
        return hlo.full(result.shape, spec.dtype, 0), hlo.full(result.shape, torch.int64, 0)
    window = PoolWindow.of(rank, spec.shape, result.shape, kernel, stride, padding, dilation)
    arguments = window.reduction(spec.rank)
    if not second_result_is_read(ctx):
        init = hlo.lowest(spec.dtype)
        return hlo.reduce_window(operand, init, stablehlo.maximum, **arguments), None
    positions = linear_index(spec.shape[-rank:])
    positions = hlo.broadcast_to(positions, spec.shape)
    values, indices = _reduce_window_with_index(operand, positions, result.shape, arguments)
    return values, hlo.convert(indices, torch.int64)


def _reduce_window_with_index(
    operand: ir.Value,
    positions: ir.Value,
    shape: Sequence[int],
    arguments: WindowArguments,
) -> tuple[ir.Value, ir.Value]:
    dtype = spec_of(operand).dtype
    op = stablehlo.ReduceWindowOp(
        [tensor_type(TensorSpec(tuple(shape), kind)) for kind in (dtype, torch.int32)],
        [operand, positions],
        [hlo.scalar(hlo.lowest(dtype), dtype), hlo.scalar(NO_INDEX, torch.int32)],
        arguments["window"],
        window_strides=arguments["strides"],
        window_dilations=arguments["dilation"],
        padding=hlo.pair_attribute(arguments["padding"]),
    )
    elements = [tensor_type(TensorSpec((), kind)) for kind in (dtype, torch.int32)] * 2
    hlo.fill_region(op.regions[0], elements, later_maximum)
    values, indices = op.results
    return values, indices


# --- average -----------------------------------------------------------------------------------

RealSizes = Sequence[ir.Value | None] | None


class Divisor(NamedTuple):
    """By what the sum of a window is divided.

    That is `override`, or the positions of the window inside the input, or those inside the input
    and its declared padding: never those past it, which `ceil_mode` brings.
    """

    count_include_pad: bool
    override: int | None
    real_sizes: RealSizes
    """How many positions of a spatial dim are real (i32), where not all are."""

    def counts(self, window: PoolWindow, dim: int, dtype: torch.dtype) -> int | ir.Value:
        """Return the factor of one dim: a number, or one of `dtype` a window along it."""
        kernel, stride, low, size, count = (
            numbers[dim]
            for numbers in (
                window.kernel,
                window.stride,
                window.padding,
                window.inputs,
                window.outputs,
            )
        )
        real = None if self.real_sizes is None else self.real_sizes[dim]
        if real is not None:
            return hlo.convert(self._run_time_counts(kernel, stride, low, real, count), dtype)
        counts = []
        for position in range(count):
            start = position * stride - low
            end = min(start + kernel, size + low)
            inside = min(end, size) - max(start, 0)
            counts.append(end - start if self.count_include_pad else inside)
        if len(set(counts)) == 1:
            return counts[0]
        return hlo.constant(torch.tensor(counts, dtype=dtype, device=CPU))

    def _run_time_counts(
        self, kernel: int, stride: int, low: int, real: ir.Value, count: int
    ) -> ir.Value:
        """Return the counts for an input of `real` positions, at least 1."""
        size = hlo.broadcast_to(real, [count])

        def full(number: int) -> ir.Value:
            return hlo.full([count], torch.int32, number)

        start = stablehlo.multiply(hlo.iota([count], 0), full(stride))
        start = stablehlo.subtract(start, full(low))
        end = stablehlo.minimum(stablehlo.add(start, full(kernel)), stablehlo.add(size, full(low)))
        if not self.count_include_pad:
            start, end = stablehlo.maximum(start, full(0)), stablehlo.minimum(end, size)
        return stablehlo.maximum(stablehlo.subtract(end, start), full(1))


@lowering(aten.avg_pool2d.default, padding=averages_windows(2))
def avg_pool2d(
    ctx: LoweringContext,
    operand: ir.Value,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    real_sizes: RealSizes = None,
) -> ir.Value:
    """Sum of each window by its divisor (see `Divisor`); integers truncate."""
    divisor = Divisor(count_include_pad, divisor_override, real_sizes)
    return _avg_pool(ctx, operand, 2, kernel, stride, padding, divisor)


@lowering(aten.avg_pool3d.default, padding=averages_windows(3))
def avg_pool3d(
    ctx: LoweringContext,
    operand: ir.Value,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    real_sizes: RealSizes = None,
) -> ir.Value:
    """Sum of each window by its divisor (see `Divisor`); integers truncate."""
    divisor = Divisor(count_include_pad, divisor_override, real_sizes)
    return _avg_pool(ctx, operand, 3, kernel, stride, padding, divisor)


def _avg_pool(
    ctx: LoweringContext,
    operand: ir.Value,
    rank: int,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    divisor: Divisor,
) -> ir.Value:
    spec, result = spec_of(operand), ctx.result
    if 0 in result.shape:
        return hlo.full(result.shape, result.dtype, 0)
    window = PoolWindow.of(rank, spec.shape, result.shape, kernel, stride, padding)
    wide = hlo.convert(operand, accumulation_dtype(spec.dtype))
    total = hlo.reduce_window(wide, 0, stablehlo.add, **window.reduction(spec.rank))
    mean = divide_by_window(total, window, divisor)
    return hlo.convert(mean, result.dtype)


def divide_by_window(operand: ir.Value, window: PoolWindow, divisor: Divisor) -> ir.Value:
    """Return `operand`, which has one position a window, by the divisor of each window."""
    if divisor.override is not None:
        return stablehlo.divide(operand, hlo.full_like(operand, divisor.override))
    spec = spec_of(operand)
    lead = spec.rank - len(window.kernel)
    common = 1
    product = None
    for dim in range(len(window.kernel)):
        counts = divisor.counts(window, dim, spec.dtype)
        if isinstance(counts, int):
            common *= counts
            continue
        factor = hlo.broadcast_in_dim(counts, spec.shape, [lead + dim])
        product = factor if product is None else stablehlo.multiply(product, factor)
    if product is None:
        product = hlo.full_like(operand, common)
    elif common != 1:
        product = stablehlo.multiply(product, hlo.full_like(operand, common))
    return stablehlo.divide(operand, product)
