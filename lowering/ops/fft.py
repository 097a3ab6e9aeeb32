"""Discrete Fourier transforms: complex to complex, real to complex and back.

StableHLO transforms the last one to three dims, so others are brought there first and put back
afterwards. Its inverse transforms divide by the number of points; ATen's scale by a mode: 0 for
none, 1 for the root of the number of points, 2 for the number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from lowering import hlo
from lowering.bucketing.batches import transforms
from lowering.context import LoweringContext
from lowering.dtypes import TensorSpec, spec_of, tensor_type
from lowering.mlir import ir, stablehlo
from lowering.registry import lowering

aten = torch.ops.aten

# As many dims as one StableHLO op transforms.
DIMS_AT_ONCE = 3


def fft(operand: ir.Value, kind: str, sizes: Sequence[int]) -> ir.Value:
    """Return the transform of the last dims of `operand`.

    `kind` is FFT, IFFT, RFFT (real to half of the spectrum) or IRFFT (back); `sizes` are those of
    the transformed dims in the real or full-length domain. The inverses divide by their product.
    """
    shape, dtype = spec_of(operand)
    last = {"RFFT": sizes[-1] // 2 + 1, "IRFFT": sizes[-1]}.get(kind, shape[-1])
    dtype = {"RFFT": dtype.to_complex(), "IRFFT": dtype.to_real()}.get(kind, dtype)
    return stablehlo.fft(
        operand,
        stablehlo.FftTypeAttr.get(kind),
        list(sizes),
        results=[tensor_type(TensorSpec((*shape[:-1], last), dtype))],
    )


def transformed(operand: ir.Value, dims: Sequence[int], kind: str, last_size: int) -> ir.Value:
    """Return the transform over `dims`, the last of which is the real one for RFFT and IRFFT.

    `last_size` is the size of that dim in the real domain. The inverses divide by the number of
    points.
    """
    rank = spec_of(operand).rank
    full = {"RFFT": "FFT", "IRFFT": "IFFT"}.get(kind, kind)
    rest, group = list(dims[:-DIMS_AT_ONCE]), list(dims[-DIMS_AT_ONCE:])
    # The complex transforms of further dims come before a real result and after a real operand.
    if rest and kind == "IRFFT":
        operand = transformed(operand, rest, full, spec_of(operand).shape[rest[-1]])
    order = [dim for dim in range(rank) if dim not in group] + group
    operand = hlo.transpose(operand, order)
    sizes = [*spec_of(operand).shape[rank - len(group) : -1], last_size]
    operand = fft(operand, kind, sizes)
    operand = hlo.transpose(operand, [order.index(dim) for dim in range(rank)])
    if rest and kind != "IRFFT":
        operand = transformed(operand, rest, full, spec_of(operand).shape[rest[-1]])
    return operand


def _factor(normalization: int, points: int) -> float:
    return {0: 1.0, 1: 1 / math.sqrt(points), 2: 1 / points}[normalization]


def _scaled(operand: ir.Value, factor: float) -> ir.Value:
    """Return a real or complex operand times a real number, each part by itself."""
    if factor == 1.0:
        return operand
    if not spec_of(operand).dtype.is_complex:
        return stablehlo.multiply(operand, hlo.full_like(operand, factor))
    return stablehlo.complex(
        _scaled(stablehlo.real(operand), factor), _scaled(stablehlo.imag(operand), factor)
    )


def _points(shape: Sequence[int], dims: Sequence[int]) -> int:
    return math.prod(shape[dim] for dim in dims)


@lowering(aten._fft_c2c.default, padding=transforms)
def fft_c2c(
    ctx: LoweringContext, operand: ir.Value, dim: Sequence[int], normalization: int, forward: bool
) -> ir.Value:
    """The complex transform over `dim`, or its inverse."""
    shape = ctx.result.shape
    if 0 in shape or not dim:
        return operand
    dims = [hlo.canonical_dim(axis, len(shape)) for axis in dim]
    points = _points(shape, dims)
    result = transformed(operand, dims, "FFT" if forward else "IFFT", shape[dims[-1]])
    return _scaled(result, _factor(normalization, points) * (1 if forward else points))


@lowering(aten._fft_r2c.default, padding=transforms)
def fft_r2c(
    ctx: LoweringContext, operand: ir.Value, dim: Sequence[int], normalization: int, onesided: bool
) -> ir.Value:
    """The transform of real numbers over `dim`; `onesided` leaves out the mirrored half.

    It is the last of `dim` whose half is left out.
    """
    shape = spec_of(operand).shape
    if 0 in ctx.result.shape:
        return hlo.full(ctx.result.shape, ctx.result.dtype, 0)
    dims = [hlo.canonical_dim(axis, len(shape)) for axis in dim]
    if not onesided:
        operand = hlo.convert(operand, ctx.result.dtype)
    result = transformed(operand, dims, "RFFT" if onesided else "FFT", shape[dims[-1]])
    return _scaled(result, _factor(normalization, _points(shape, dims)))


@lowering(aten._fft_c2r.default, padding=transforms)
def fft_c2r(
    ctx: LoweringContext,
    operand: ir.Value,
    dim: Sequence[int],
    normalization: int,
    last_dim_size: int,
) -> ir.Value:
    """The inverse transform over `dim` to real numbers, of which `operand` holds one half.

    The last of `dim` has `last_dim_size` real numbers; imaginary parts that real numbers cannot
    have are ignored.
    """
    shape, dtype = ctx.result
    if 0 in shape:
        return hlo.full(shape, dtype, 0)
    dims = [hlo.canonical_dim(axis, len(shape)) for axis in dim]
    points = _points(shape, dims)
    half = hlo.slice_in_dim(operand, 0, last_dim_size // 2 + 1, dim=dims[-1])
    result = transformed(half, dims, "IRFFT", last_dim_size)
    return _scaled(result, _factor(normalization, points) * points)
