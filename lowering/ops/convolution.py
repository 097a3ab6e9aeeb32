"""Convolutions of any spatial rank: plain and transposed, strided, dilated, grouped, biased.

Tensors are `[batch, channels, *spatial]`; the weight of a plain convolution is
`[out, in / groups, *kernel]`, that of a transposed one `[in, out / groups, *kernel]`. XLA chooses
the layout in memory. Sums of 16-bit floats are held in float32 up to the bias, then rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import fx

from lowering import hlo
from lowering.bucketing.windows import convolved
from lowering.context import LoweringContext
from lowering.dtypes import TensorSpec, spec_of, tensor_type
from lowering.mlir import ir, stablehlo
from lowering.ops.matmul import accumulation_dtype
from lowering.registry import lowering

aten = torch.ops.aten


class Window(NamedTuple):
    """The geometry of a convolution, one entry a spatial dim."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int

    @classmethod
    def of(
        cls,
        rank: int,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
    ) -> Window:
        """Return the window for `rank` spatial dims; a single number stands for all of them."""
        return cls(per_dim(stride, rank), per_dim(padding, rank), per_dim(dilation, rank), groups)


def per_dim(numbers: Sequence[int], rank: int) -> list[int]:
    """Return one number a spatial dim from one number or `rank` of them."""
    return list(numbers) * rank if len(numbers) == 1 else list(numbers)


def dtype_reason(node: fx.Node) -> str | None:
    """Return why a convolution node cannot be lowered: its dtype is complex or bool."""
    value = node.args[0].meta["val"]  # type: ignore[union-attr]
    if value.dtype.is_complex or value.dtype is torch.bool:
        return "eager PyTorch has no convolution of this dtype either"
    return None


@lowering(aten.convolution.default, padding=convolved, check=dtype_reason)
def convolution(
    ctx: LoweringContext,
    operand: ir.Value,
    weight: ir.Value,
    bias: ir.Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> ir.Value:
    """Cross-correlation of `operand` with `weight`, or its transpose, plus `bias` by channel."""
    window = Window.of(len(operand.type.shape) - 2, stride, padding, dilation, groups)
    result = ctx.result
    apply = convolve_transposed if transposed else convolve
    total = apply(ctx, operand, weight, window, result.shape[2:])
    if bias is not None:
        bias = hlo.convert(bias, spec_of(total).dtype)
        total = stablehlo.add(total, hlo.broadcast_in_dim(bias, result.shape, [1]))
    return hlo.convert(total, result.dtype)


def convolve(
    ctx: LoweringContext,
    operand: ir.Value,
    weight: ir.Value,
    window: Window,
    spatial: Sequence[int],
) -> ir.Value:
    """Return the convolution with an output of size `spatial`, in the accumulation dtype.

    Positions past the padded end that complete the last windows count as zero; positions that no
    window reaches are left out.
    """
    pairs = []
    for dim, size in enumerate(spatial):
        low = window.padding[dim]
        reach = (size - 1) * window.stride[dim] + _extent(weight, window, dim)
        pairs.append((low, reach - low - operand.type.shape[2 + dim]))
    rank = len(spatial)
    return window_contraction(
        ctx,
        operand,
        weight,
        shape=(operand.type.shape[0], weight.type.shape[0], *spatial),
        features=((0, 1), (1, 0), (0, 1)),
        stride=window.stride,
        padding=pairs,
        lhs_dilation=[1] * rank,
        rhs_dilation=window.dilation,
        feature_groups=window.groups,
    )


def convolve_transposed(
    ctx: LoweringContext,
    operand: ir.Value,
    weight: ir.Value,
    window: Window,
    spatial: Sequence[int],
) -> ir.Value:
    """Return the transpose of `convolve` with an output of size `spatial`.

    It is a convolution of the operand with zeros between its positions and a mirrored kernel;
    `weight` is `[in, out / groups, *kernel]`.
    """
    groups = window.groups
    rank = len(spatial)
    inputs, outputs, *kernel = weight.type.shape
    weight = hlo.reshape(weight, [groups, inputs // groups, outputs, *kernel])
    weight = hlo.transpose(weight, [0, 2, 1, *range(3, 3 + rank)])
    weight = hlo.reshape(weight, [groups * outputs, inputs // groups, *kernel])
    weight = stablehlo.reverse(weight, list(range(2, 2 + rank)))
    pairs = []
    for dim, size in enumerate(spatial):
        extent = _extent(weight, window, dim)
        low = extent - 1 - window.padding[dim]
        dilated = (operand.type.shape[2 + dim] - 1) * window.stride[dim] + 1
        pairs.append((low, size - 1 + extent - low - dilated))
    return window_contraction(
        ctx,
        operand,
        weight,
        shape=(operand.type.shape[0], groups * outputs, *spatial),
        features=((0, 1), (1, 0), (0, 1)),
        stride=[1] * rank,
        padding=pairs,
        lhs_dilation=window.stride,
        rhs_dilation=window.dilation,
        feature_groups=groups,
    )


def _extent(weight: ir.Value, window: Window, dim: int) -> int:
    """Return how many positions the dilated kernel spans along a spatial dim."""
    return (spec_of(weight).shape[2 + dim] - 1) * window.dilation[dim] + 1


def window_contraction(
    ctx: LoweringContext,
    lhs: ir.Value,
    rhs: ir.Value,
    *,
    shape: Sequence[int],
    features: tuple[tuple[int, int], tuple[int, int], tuple[int, int]],
    stride: Sequence[int],
    padding: Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    feature_groups: int = 1,
    batch_groups: int = 1,
) -> ir.Value:
    """Return one StableHLO convolution of shape `shape`, in the accumulation dtype.

    `features` names the dims that are not spatial: (batch, feature) of `lhs`, (input feature,
    output feature) of `rhs`, (batch, feature) of the result. They are dims 0 and 1 in some order.
    """
    dtype = accumulation_dtype(spec_of(lhs).dtype)
    if 0 in (*shape, *lhs.type.shape, *rhs.type.shape):
        return hlo.full(shape, dtype, 0)
    spatial = list(range(2, len(shape)))
    (batch, feature), (input_feature, output_feature), (out_batch, out_feature) = features
    return stablehlo.convolution(
        tensor_type(TensorSpec(tuple(shape), dtype)),
        lhs,
        rhs,
        stablehlo.ConvDimensionNumbers.get(
            input_batch_dimension=batch,
            input_feature_dimension=feature,
            input_spatial_dimensions=spatial,
            kernel_input_feature_dimension=input_feature,
            kernel_output_feature_dimension=output_feature,
            kernel_spatial_dimensions=spatial,
            output_batch_dimension=out_batch,
            output_feature_dimension=out_feature,
            output_spatial_dimensions=spatial,
        ),
        feature_groups,
        batch_groups,
        window_strides=list(stride),
        padding=hlo.pair_attribute(padding),
        lhs_dilation=list(lhs_dilation),
        rhs_dilation=list(rhs_dilation),
        precision_config=stablehlo.precision_attribute(ctx.precision(lhs, rhs)),
    )
