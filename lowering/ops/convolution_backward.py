"""Gradients of convolutions: with respect to the input, the weight and the bias."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lowering import hlo
from lowering.bucketing import windows
from lowering.context import LoweringContext
from lowering.dtypes import spec_of
from lowering.mlir import ir
from lowering.ops.convolution import (
    Window,
    convolve,
    convolve_transposed,
    dtype_reason,
    window_contraction,
)
from lowering.ops.matmul import accumulation_dtype
from lowering.registry import lowering

aten = torch.ops.aten


@lowering(
    aten.convolution_backward.default, padding=windows.convolution_backward, check=dtype_reason
)
def convolution_backward(
    ctx: LoweringContext,
    grad_output: ir.Value,
    operand: ir.Value,
    weight: ir.Value,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[ir.Value | None, ir.Value | None, ir.Value | None]:
    """Gradients of input, weight and bias, each None where `output_mask` says it is not wanted.

    Convolution and transposed convolution are each other's transpose: the input's gradient is
    the other one of `grad_output`, and the weight's gradient swaps the parts of operand and
    `grad_output`.
    """
    window = Window.of(len(operand.type.shape) - 2, stride, padding, dilation, groups)
    grads: list[ir.Value | None] = [None, None, None]
    if output_mask[0]:
        apply = convolve if transposed else convolve_transposed
        grads[0] = apply(ctx, grad_output, weight, window, operand.type.shape[2:])
    if output_mask[1]:
        small, large = (operand, grad_output) if transposed else (grad_output, operand)
        grads[1] = _weight_grad(ctx, small, large, weight.type.shape, window)
    if output_mask[2]:
        wide = hlo.convert(grad_output, accumulation_dtype(spec_of(grad_output).dtype))
        grads[2] = hlo.reduce_sum(wide, [0, *range(2, len(grad_output.type.shape))])
    dtype = spec_of(operand).dtype
    first, second, third = (None if grad is None else hlo.convert(grad, dtype) for grad in grads)
    return first, second, third


def _weight_grad(
    ctx: LoweringContext,
    small: ir.Value,
    large: ir.Value,
    shape: Sequence[int],
    window: Window,
) -> ir.Value:
    """Return sum over batch and positions y of small[n, o, y] * large[n, i, y * stride + k].

    `large` is the side with the padding (the input of a plain convolution), `small` the side
    with one position a window. As a convolution, `small` is the kernel, spread by the stride,
    the kernel offsets are the output positions, and the batch is what is contracted.
    """
    pairs = []
    for dim, size in enumerate(shape[2:]):
        low = window.padding[dim]
        spread = (small.type.shape[2 + dim] - 1) * window.stride[dim] + 1
        reach = (size - 1) * window.dilation[dim] + spread
        pairs.append((low, reach - low - large.type.shape[2 + dim]))
    return window_contraction(
        ctx,
        large,
        small,
        shape=shape,
        features=((1, 0), (0, 1), (1, 0)),
        stride=window.dilation,
        padding=pairs,
        lhs_dilation=[1] * len(pairs),
        rhs_dilation=window.stride,
        batch_groups=window.groups,
    )
