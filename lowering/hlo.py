"""Small StableHLO builders on MLIR values: constants, conversion, broadcasting, reductions, loops.

They add to the current insertion point at the current location and know nothing of FX graphs or
of the op being lowered; what depends on the node is in `lowering.context`. Every function works
on static shapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch

from lowering.dtypes import (
    TensorSpec,
    element_type,
    is_integer,
    is_unsigned,
    real_dtype,
    spec_of,
    tensor_type,
)
from lowering.mlir import ir, memo, stablehlo

Scalar = bool | int | float | complex

# numpy has no bfloat16 or float8: their bits travel as the integer type of the same width.
_BITS_VIEW = {1: torch.uint8, 2: torch.int16}


# --- constants -----------------------------------------------------------------------------


def full(shape: Sequence[int], dtype: torch.dtype, fill: Scalar) -> ir.Value:
    """Return a splat constant of `shape` and `dtype`; `fill` is cast as torch casts a scalar."""
    if dtype.is_complex:
        # The bindings have no complex attribute, and so no splat of one.
        array: Any = numpy.array(
            fill, dtype="complex64" if dtype is torch.complex64 else "complex128"
        )
        element = ir.DenseElementsAttr.get(array, type=element_type(dtype), shape=[])
        return broadcast_in_dim(stablehlo.constant(element), shape, [])
    shape = tuple(shape)
    # By their text, since 1, 1.0 and True are equal, and so are 0.0 and -0.0.
    key = ("full", shape, dtype, repr(fill))
    known = memo()
    attribute: Any = known.get(key)
    if attribute is None:
        kind = tensor_type(TensorSpec(shape, dtype))
        attribute = ir.DenseElementsAttr.get_splat(kind, _attribute(fill, dtype))
        known[key] = attribute
    return stablehlo.constant(attribute)


def _attribute(fill: Scalar, dtype: torch.dtype) -> ir.Attribute:
    if dtype.is_floating_point:
        if isinstance(fill, complex):
            raise TypeError(f"a complex number cannot fill a {dtype} tensor")
        return ir.FloatAttr.get(element_type(dtype), float(fill))
    if dtype is torch.bool:
        return ir.IntegerAttr.get(element_type(dtype), int(bool(fill)))
    return ir.IntegerAttr.get(element_type(dtype), _wrapped(fill, dtype))


def _wrapped(fill: Scalar, dtype: torch.dtype) -> int:
    """Return `fill` truncated to an integer and wrapped to the width of `dtype`, as C does."""
    bits = torch.iinfo(dtype).bits
    wrapped = int(fill) & ((1 << bits) - 1)  # type: ignore[arg-type]
    # IntegerAttr takes the signed reading of the bit pattern for signed and unsigned types alike
    # once the top bit is set.
    return wrapped - (1 << bits) if wrapped >> (bits - 1) else wrapped


def full_like(operand: ir.Value, fill: Scalar) -> ir.Value:
    """Return a splat constant with the shape and dtype of `operand`."""
    spec = spec_of(operand)
    return full(spec.shape, spec.dtype, fill)


def scalar(fill: Scalar, dtype: torch.dtype) -> ir.Value:
    """Return a 0-d constant."""
    return full((), dtype, fill)


def constant(tensor: torch.Tensor) -> ir.Value:
    """Return the data of a small CPU tensor as a constant of the module."""
    if tensor.numel() == 0:
        return full(tuple(tensor.shape), tensor.dtype, 0)
    return stablehlo.constant(dense_attribute(tensor))


def dense_attribute(tensor: torch.Tensor) -> ir.Attribute:
    """Return the data of a CPU tensor that has elements as an attribute."""
    tensor = tensor.detach().contiguous()
    spec = TensorSpec(tuple(tensor.shape), tensor.dtype)
    if tensor.dtype is torch.bool:
        tensor = tensor.view(torch.uint8)
    if (
        tensor.dtype.is_floating_point
        and tensor.dtype.itemsize <= 2
        and tensor.dtype is not torch.float16
    ):
        tensor = tensor.view(_BITS_VIEW[tensor.dtype.itemsize])
    data: Any = numpy.ascontiguousarray(tensor.numpy())
    return ir.DenseElementsAttr.get(data, type=element_type(spec.dtype), shape=spec.shape)


def lowest(dtype: torch.dtype) -> Scalar:
    """Return the identity of `maximum`: -inf, the smallest integer, or False."""
    if dtype is torch.bool:
        return False
    return -math.inf if dtype.is_floating_point else torch.iinfo(dtype).min


def highest(dtype: torch.dtype) -> Scalar:
    """Return the identity of `minimum`: inf, the largest integer, or True."""
    if dtype is torch.bool:
        return True
    return math.inf if dtype.is_floating_point else torch.iinfo(dtype).max


def iota(shape: Sequence[int], dim: int, dtype: torch.dtype = torch.int32) -> ir.Value:
    """Return the index along `dim` at each position of `shape`."""
    return stablehlo.iota(tensor_type(TensorSpec(tuple(shape), dtype)), dim)


# --- dtype and shape -------------------------------------------------------------------------


def convert(operand: ir.Value, dtype: torch.dtype) -> ir.Value:
    """Return `operand` cast to `dtype` with torch's rules; the operand itself if nothing changes.

    To bool: whether it is nonzero (NaN is). From complex to real: the real part. From a float to
    an integer of 8 or 16 bits: by way of 32 bits, so that values beyond the range wrap.
    """
    spec = spec_of(operand)
    if spec.dtype is dtype:
        return operand
    if dtype is torch.bool:
        return compare(operand, full_like(operand, 0), "NE")
    if spec.dtype.is_complex and not dtype.is_complex:
        return convert(stablehlo.real(operand), dtype)
    if dtype is torch.float8_e4m3fn:
        return _saturated_to_float8(operand)
    if dtype.is_complex and not spec.dtype.is_complex:
        real = convert(operand, real_dtype(dtype))
        return stablehlo.complex(real, full_like(real, 0))
    if spec.dtype.is_floating_point and is_integer(dtype) and dtype.itemsize < 4:
        operand = convert(operand, torch.int32)
    return stablehlo.convert(tensor_type(TensorSpec(spec.shape, dtype)), operand)


def _saturated_to_float8(operand: ir.Value) -> ir.Value:
    """Return the operand as float8_e4m3fn, without infinities: torch saturates, XLA gives NaN."""
    spec = spec_of(operand)
    holds_largest = spec.dtype.is_floating_point and spec.dtype.itemsize > 1
    wide = operand if holds_largest else convert(operand, torch.float32)
    spec = spec_of(wide)
    largest = torch.finfo(torch.float8_e4m3fn).max
    wide = stablehlo.clamp(scalar(-largest, spec.dtype), wide, scalar(largest, spec.dtype))
    return stablehlo.convert(tensor_type(TensorSpec(spec.shape, torch.float8_e4m3fn)), wide)


def bitcast(operand: ir.Value, dtype: torch.dtype) -> ir.Value:
    """Return the bits of `operand` read as `dtype`, which must have the same width."""
    spec = spec_of(operand)
    return stablehlo.bitcast_convert(tensor_type(TensorSpec(spec.shape, dtype)), operand)


def reshape(operand: ir.Value, shape: Sequence[int]) -> ir.Value:
    """Return `operand` in row-major order under another shape of as many elements."""
    spec = spec_of(operand)
    shape = tuple(shape)
    if spec.shape == shape:
        return operand
    return stablehlo.reshape(tensor_type(TensorSpec(shape, spec.dtype)), operand)


def transpose(operand: ir.Value, permutation: Sequence[int]) -> ir.Value:
    """Return `operand` with result dim `i` taken from operand dim `permutation[i]`."""
    permutation = list(permutation)
    if permutation == list(range(len(permutation))):
        return operand
    shape, dtype = spec_of(operand)
    result = tensor_type(TensorSpec(tuple([shape[dim] for dim in permutation]), dtype))
    attributes = {"permutation": stablehlo.integers(permutation)}
    return stablehlo.op("transpose", [result], [operand], attributes).result


def broadcast_in_dim(operand: ir.Value, shape: Sequence[int], dims: Sequence[int]) -> ir.Value:
    """Return `operand` broadcast to `shape`, operand dim `i` lying along result dim `dims[i]`."""
    spec = spec_of(operand)
    if spec.shape == tuple(shape):
        return operand
    result = tensor_type(TensorSpec(tuple(shape), spec.dtype))
    return stablehlo.broadcast_in_dim(result, operand, list(dims))


def broadcast_to(operand: ir.Value, shape: Sequence[int]) -> ir.Value:
    """Return `operand` broadcast to `shape` by NumPy's rule (dims aligned at the right)."""
    spec = spec_of(operand)
    shape = tuple(shape)
    if spec.shape == shape:
        return operand
    result = tensor_type(TensorSpec(shape, spec.dtype))
    rank = len(shape)
    return stablehlo.broadcast_in_dim(result, operand, range(rank - len(spec.shape), rank))


def broadcast(*operands: ir.Value) -> list[ir.Value]:
    """Return the operands broadcast to their common NumPy shape."""
    shape = torch.broadcast_shapes(*(tuple(operand.type.shape) for operand in operands))
    return [broadcast_to(operand, shape) for operand in operands]


def expand_dims(operand: ir.Value, dims: Sequence[int]) -> ir.Value:
    """Return `operand` with size-1 dims inserted at the result positions `dims`."""
    shape = list(operand.type.shape)
    for dim in sorted(dims):
        shape.insert(dim, 1)
    return reshape(operand, shape)


def slice_in_dim(
    operand: ir.Value, start: int, limit: int, stride: int = 1, *, dim: int
) -> ir.Value:
    """Return positions `start, start + stride, ...` below `limit` of one dim."""
    shape = list(operand.type.shape)
    if start == 0 and stride == 1 and limit == shape[dim]:
        return operand
    starts, limits, strides = [0] * len(shape), list(shape), [1] * len(shape)
    starts[dim], limits[dim], strides[dim] = start, limit, stride
    return stablehlo.slice(operand, starts, limits, strides)


def pad(
    operand: ir.Value,
    low: Sequence[int],
    high: Sequence[int],
    fill: Scalar = 0,
    *,
    interior: Sequence[int] | None = None,
) -> ir.Value:
    """Return `operand` with `fill` around it; negative `low` or `high` cut instead."""
    rank = len(low)
    interior = [0] * rank if interior is None else list(interior)
    if not any(low) and not any(high) and not any(interior):
        return operand
    value = scalar(fill, spec_of(operand).dtype)
    return stablehlo.pad(operand, value, list(low), list(high), interior)


def resized(operand: ir.Value, size: int, dim: int) -> ir.Value:
    """Return `operand` with `size` positions in one dim: cut, or zeros added."""
    shape = operand.type.shape
    if shape[dim] >= size:
        return slice_in_dim(operand, 0, size, dim=dim)
    high = [size - extent if at == dim else 0 for at, extent in enumerate(shape)]
    return pad(operand, [0] * len(shape), high)


def concatenate(operands: Sequence[ir.Value], dim: int) -> ir.Value:
    """Return the operands joined along `dim`."""
    return operands[0] if len(operands) == 1 else stablehlo.concatenate(list(operands), dim)


# --- element by element ----------------------------------------------------------------------


def compare(lhs: ir.Value, rhs: ir.Value, direction: str) -> ir.Value:
    """Return `lhs <direction> rhs` as booleans; `direction` is EQ, NE, LT, LE, GT or GE."""
    shape, dtype = spec_of(lhs)
    if dtype.is_floating_point or dtype.is_complex:
        kind = "FLOAT"
    else:
        kind = "UNSIGNED" if is_unsigned(dtype) or dtype is torch.bool else "SIGNED"
    attributes = {
        "comparison_direction": stablehlo.enumerator("ComparisonDirection", direction),
        "compare_type": stablehlo.enumerator("ComparisonType", kind),
    }
    result = tensor_type(TensorSpec(shape, torch.bool))
    return stablehlo.op("compare", [result], [lhs, rhs], attributes).result


def select(condition: ir.Value, on_true: ir.Value, on_false: ir.Value) -> ir.Value:
    """Return `on_true` where `condition` holds, else `on_false`; all of one shape."""
    return stablehlo.select(condition, on_true, on_false)


def is_nan(operand: ir.Value) -> ir.Value:
    """Return where a floating or complex `operand` is NaN."""
    return compare(operand, operand, "NE")


# --- reductions, windows, loops -----------------------------------------------------------------

Combiner = Callable[[ir.Value, ir.Value], ir.Value]


def fill_region(
    region: ir.Region, types: Sequence[ir.Type], body: Callable[..., Sequence[ir.Value]]
) -> None:
    """Give `region` one block with arguments of `types` that returns what `body` builds."""
    block = region.blocks.append(*types, arg_locs=[ir.Location.current] * len(types))
    with ir.InsertionPoint(block):
        stablehlo.op("return", [], list(body(*block.arguments)))


def reduce(operand: ir.Value, dims: Sequence[int], init: Scalar, combine: Combiner) -> ir.Value:
    """Return `operand` reduced over `dims` (dropped from the shape) from `init` by `combine`."""
    if not dims:
        return operand
    shape, dtype = spec_of(operand)
    dims = sorted(dims)
    kept = tuple([size for dim, size in enumerate(shape) if dim not in dims])
    element = tensor_type(TensorSpec((), dtype))
    op = stablehlo.op(
        "reduce",
        [tensor_type(TensorSpec(kept, dtype))],
        [operand, full((), dtype, init)],
        {"dimensions": stablehlo.integers(dims)},
        regions=1,
    )
    fill_region(op.regions[0], [element, element], lambda a, b: [combine(a, b)])
    return op.result


def reduce_many(
    operands: Sequence[ir.Value],
    dims: Sequence[int],
    inits: Sequence[Scalar],
    combine: Callable[..., Sequence[ir.Value]],
) -> list[ir.Value]:
    """Return several operands of one shape reduced together (argmax carries value and index).

    `combine` takes all left values, then all right values, and gives one value an operand.
    """
    specs = [spec_of(operand) for operand in operands]
    shape = tuple(size for dim, size in enumerate(specs[0].shape) if dim not in set(dims))
    results = [tensor_type(TensorSpec(shape, spec.dtype)) for spec in specs]
    values = [scalar(init, spec.dtype) for init, spec in zip(inits, specs, strict=True)]
    attributes = {"dimensions": stablehlo.integers(sorted(dims))}
    op = stablehlo.op("reduce", results, [*operands, *values], attributes, regions=1)
    elements = [tensor_type(TensorSpec((), spec.dtype)) for spec in specs]
    fill_region(op.regions[0], elements * 2, combine)
    return list(op.results)


def reduce_sum(operand: ir.Value, dims: Sequence[int]) -> ir.Value:
    """Return the sum over `dims`; integers wrap."""
    return reduce(operand, dims, 0, stablehlo.add)


def reduce_max(operand: ir.Value, dims: Sequence[int]) -> ir.Value:
    """Return the maximum over `dims`; NaN wins, an empty dim gives the lowest value."""
    return reduce(operand, dims, lowest(spec_of(operand).dtype), stablehlo.maximum)


def reduce_window(
    operand: ir.Value,
    init: Scalar,
    combine: Combiner,
    *,
    window: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int] | None = None,
) -> ir.Value:
    """Return `operand` reduced over sliding windows; every argument has one entry a dim."""
    spec = spec_of(operand)
    rank = spec.rank
    dilation = [1] * rank if dilation is None else list(dilation)
    shape = []
    for size, extent, stride, (low, high), spread in zip(
        spec.shape, window, strides, padding, dilation, strict=True
    ):
        shape.append((size + low + high - (extent - 1) * spread - 1) // stride + 1)
    op = stablehlo.ReduceWindowOp(
        [tensor_type(TensorSpec(tuple(shape), spec.dtype))],
        [operand],
        [scalar(init, spec.dtype)],
        list(window),
        window_strides=list(strides),
        window_dilations=dilation,
        padding=pair_attribute(padding),
    )
    element = tensor_type(TensorSpec((), spec.dtype))
    fill_region(op.regions[0], [element, element], lambda a, b: [combine(a, b)])
    return op.result


def pair_attribute(pairs: Sequence[tuple[int, int]]) -> ir.Attribute:
    """Return low and high paddings as the `[rank, 2]` attribute that window ops take."""
    array: Any = numpy.array(pairs, dtype=numpy.int64).reshape(len(pairs), 2)
    return ir.DenseIntElementsAttr.get(array)


def while_loop(
    condition: Callable[..., ir.Value],
    body: Callable[..., Sequence[ir.Value]],
    carried: Sequence[ir.Value],
) -> list[ir.Value]:
    """Return the carried values after `body` ran while `condition` (a 0-d bool) held."""
    types = [value.type for value in carried]
    op = stablehlo.WhileOp(types, list(carried))
    fill_region(op.regions[0], types, lambda *values: [condition(*values)])
    fill_region(op.regions[1], types, body)
    return list(op.results)


def sort(operands: Sequence[ir.Value], dim: int, before: Callable[..., ir.Value]) -> list[ir.Value]:
    """Return the operands sorted together along `dim`, stably.

    `before` takes (left, right) of the first operand, of the second, ... and says whether left
    comes strictly first.
    """
    specs = [spec_of(operand) for operand in operands]
    op = stablehlo.SortOp(
        [operand.type for operand in operands], list(operands), dimension=dim, is_stable=True
    )
    pairs = [tensor_type(TensorSpec((), spec.dtype)) for spec in specs for _ in range(2)]
    fill_region(op.regions[0], pairs, lambda *values: [before(*values)])
    return list(op.results)


def dynamic_index(operand: ir.Value, index: ir.Value, dim: int = 0) -> ir.Value:
    """Return `operand[index]` along `dim` (dropped); `index` is a 0-d i32, clamped by XLA."""
    shape = list(operand.type.shape)
    zero = scalar(0, torch.int32)
    starts = [index if position == dim else zero for position in range(len(shape))]
    sizes = [1 if position == dim else size for position, size in enumerate(shape)]
    piece = stablehlo.dynamic_slice(operand, starts, sizes)
    return reshape(piece, shape[:dim] + shape[dim + 1 :])


def dynamic_update(operand: ir.Value, update: ir.Value, index: ir.Value, dim: int = 0) -> ir.Value:
    """Return `operand` with `operand[index]` along `dim` replaced by `update`."""
    shape = list(operand.type.shape)
    zero = scalar(0, torch.int32)
    starts = [index if position == dim else zero for position in range(len(shape))]
    return stablehlo.dynamic_update_slice(operand, expand_dims(update, [dim]), starts)


# --- contraction ---------------------------------------------------------------------------------


def dot_general(
    lhs: ir.Value,
    rhs: ir.Value,
    *,
    contracting: tuple[Sequence[int], Sequence[int]],
    batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
    precision: str = "DEFAULT",
    dtype: torch.dtype | None = None,
) -> ir.Value:
    """Return the contraction of `lhs` and `rhs`: shape batch, free dims of lhs, free dims of rhs.

    `dtype` is the dtype of the result (and of the accumulation), by default that of `lhs`.
    """
    left, right = spec_of(lhs), spec_of(rhs)
    shape = [left.shape[dim] for dim in batch[0]]
    for spec, side in ((left, 0), (right, 1)):
        dropped = [*contracting[side], *batch[side]]
        shape += [size for dim, size in enumerate(spec.shape) if dim not in dropped]
    result = tensor_type(TensorSpec(tuple(shape), left.dtype if dtype is None else dtype))
    attributes = {
        "dot_dimension_numbers": stablehlo.dot_dimensions(batch, contracting),
        "precision_config": stablehlo.precision_attribute(precision),
    }
    return stablehlo.op("dot_general", [result], [lhs, rhs], attributes).result


def canonical_dim(dim: int, rank: int) -> int:
    """Return `dim` counted from the front; a 0-d tensor counts as 1-d, as in torch."""
    return dim % max(rank, 1)


def canonical_dims(dims: Any, rank: int) -> list[int]:
    """Return sorted dims counted from the front; None or an empty list means all of them."""
    if dims is None:
        return list(range(rank))
    if isinstance(dims, int):
        dims = [dims]
    if len(dims) == 0:
        return list(range(rank))
    return sorted({canonical_dim(dim, rank) for dim in dims} & set(range(rank)))
