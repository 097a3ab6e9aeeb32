"""Gather and scatter builders on MLIR values: positions along dims, elements along one dim.

Positions are index tensors; they are turned to i32 (i64 where a dim is too long for it). XLA clamps
a position outside the operand when it reads and drops it when it writes, where eager PyTorch
raises: a compiled program cannot raise, so rules say in their docstring what happens instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from lowering import hlo
from lowering.dtypes import TensorSpec, spec_of, tensor_type
from lowering.hlo import Combiner
from lowering.mlir import ir, stablehlo

I32_POSITIONS = 2**31 - 1


def position_dtype(*sizes: int) -> torch.dtype:
    """Return int32, or int64 when a size does not fit it."""
    return torch.int32 if max(sizes, default=0) <= I32_POSITIONS else torch.int64


def wrap_negative(index: ir.Value, size: int) -> ir.Value:
    """Return `index` with negative positions counted from the end of a dim of `size`."""
    index = hlo.convert(index, position_dtype(size))
    negative = hlo.compare(index, hlo.full_like(index, 0), "LT")
    return hlo.select(negative, stablehlo.add(index, hlo.full_like(index, size)), index)


def linear_index(shape: Sequence[int], dtype: torch.dtype = torch.int32) -> ir.Value:
    """Return the row-major linear index at each position of `shape`.

    The sum of one iota a dim, which fuses into its reader; a reshaped iota may not.
    """
    total = hlo.full(shape, dtype, 0)
    stride = 1
    for dim in reversed(range(len(shape))):
        if shape[dim] > 1:
            term = hlo.iota(shape, dim, dtype)
            if stride != 1:
                term = stablehlo.multiply(term, hlo.full(shape, dtype, stride))
            total = stablehlo.add(total, term)
        stride *= shape[dim]
    return total


def _index_vectors(positions: Sequence[ir.Value], dtype: torch.dtype) -> ir.Value:
    """Return positions of one shape `[...]` as vectors `[..., dims]`."""
    rank = len(positions[0].type.shape)
    vectors = [hlo.expand_dims(hlo.convert(position, dtype), [rank]) for position in positions]
    return hlo.concatenate(vectors, rank)


def take(
    operand: ir.Value, dims: Sequence[int], positions: Sequence[ir.Value], *, at: int | None = None
) -> ir.Value:
    """Return `operand` read at `positions` along `dims`.

    `positions` have one common shape, which replaces `dims` in the result's shape and stands
    there before dim number `at` of the remaining dims (by default where the first of `dims` was).
    """
    spec = spec_of(operand)
    shape = tuple(positions[0].type.shape)
    rest = [dim for dim in range(spec.rank) if dim not in dims]
    at = sum(dim < dims[0] for dim in rest) if at is None else at
    kept = [spec.shape[dim] for dim in rest]
    result = (*kept[:at], *shape, *kept[at:])
    if 0 in result:
        return hlo.full(result, spec.dtype, 0)
    offset_dims = [*range(at), *range(at + len(shape), len(result))]
    dtype = position_dtype(*(spec.shape[dim] for dim in dims))
    numbers = stablehlo.GatherDimensionNumbers.get(
        offset_dims=offset_dims,
        collapsed_slice_dims=sorted(dims),
        operand_batching_dims=[],
        start_indices_batching_dims=[],
        start_index_map=list(dims),
        index_vector_dim=len(shape),
    )
    sizes = [1 if dim in dims else size for dim, size in enumerate(spec.shape)]
    return stablehlo.gather(operand, _index_vectors(positions, dtype), numbers, sizes)


def take_along(operand: ir.Value, index: ir.Value, dim: int) -> ir.Value:
    """Return `operand[..., index[..., i, ...], ...]`, each other dim at its own position.

    Other dims of `index` may be shorter than the operand's. The result has the shape of `index`.
    """
    spec, shape = spec_of(operand), tuple(index.type.shape)
    if 0 in shape:
        return hlo.full(shape, spec.dtype, 0)
    others = [other for other in range(spec.rank) if other != dim]
    for other in others:
        operand = hlo.slice_in_dim(operand, 0, shape[other], dim=other)
    numbers = stablehlo.GatherDimensionNumbers.get(
        offset_dims=[],
        collapsed_slice_dims=[dim],
        operand_batching_dims=others,
        start_indices_batching_dims=others,
        start_index_map=[dim],
        index_vector_dim=spec.rank,
    )
    vectors = _index_vectors([index], position_dtype(spec.shape[dim]))
    return stablehlo.gather(operand, vectors, numbers, [1] * spec.rank)


def overwrite(old: ir.Value, new: ir.Value) -> ir.Value:
    """Combine for a scatter that replaces: the update wins."""
    return new


def _scatter(
    operand: ir.Value,
    vectors: ir.Value,
    updates: ir.Value,
    numbers: ir.Attribute,
    combine: Combiner,
    *,
    unique: bool,
) -> ir.Value:
    op = stablehlo.ScatterOp(
        [operand.type], [operand], vectors, [updates], numbers, unique_indices=unique
    )
    element = tensor_type(TensorSpec((), spec_of(operand).dtype))
    hlo.fill_region(op.regions[0], [element, element], lambda old, new: [combine(old, new)])
    written: ir.Value = op.results[0]
    return written


def put(
    operand: ir.Value,
    dims: Sequence[int],
    positions: Sequence[ir.Value],
    updates: ir.Value,
    combine: Combiner = overwrite,
    *,
    at: int | None = None,
    unique: bool = False,
) -> ir.Value:
    """Return `operand` with `updates` combined in at `positions` along `dims`.

    `updates` has the shape that `take` with the same arguments gives back. `unique` promises that
    no position occurs twice.
    """
    spec = spec_of(operand)
    shape = tuple(positions[0].type.shape)
    if 0 in updates.type.shape or 0 in spec.shape:
        return operand
    at = sum(dim < dims[0] for dim in range(spec.rank) if dim not in dims) if at is None else at
    rank = len(updates.type.shape)
    numbers = stablehlo.ScatterDimensionNumbers.get(
        update_window_dims=[*range(at), *range(at + len(shape), rank)],
        inserted_window_dims=sorted(dims),
        input_batching_dims=[],
        scatter_indices_batching_dims=[],
        scattered_dims_to_operand_dims=list(dims),
        index_vector_dim=len(shape),
    )
    dtype = position_dtype(*(spec.shape[dim] for dim in dims))
    vectors = _index_vectors(positions, dtype)
    return _scatter(operand, vectors, updates, numbers, combine, unique=unique)


def put_along(
    operand: ir.Value,
    index: ir.Value,
    dim: int,
    updates: ir.Value,
    combine: Combiner = overwrite,
    *,
    unique: bool = False,
) -> ir.Value:
    """Return `operand` with `updates` combined in at `index` along `dim`; inverse of `take_along`.

    `updates` has the shape of `index`, whose other dims may be shorter than the operand's.
    """
    spec, shape = spec_of(operand), tuple(index.type.shape)
    if 0 in shape or 0 in spec.shape:
        return operand
    others = [other for other in range(spec.rank) if other != dim]
    region = operand
    for other in others:
        region = hlo.slice_in_dim(region, 0, shape[other], dim=other)
    numbers = stablehlo.ScatterDimensionNumbers.get(
        update_window_dims=[],
        inserted_window_dims=[dim],
        input_batching_dims=others,
        scatter_indices_batching_dims=others,
        scattered_dims_to_operand_dims=[dim],
        index_vector_dim=spec.rank,
    )
    vectors = _index_vectors([index], position_dtype(spec.shape[dim]))
    written = _scatter(region, vectors, updates, numbers, combine, unique=unique)
    return write_at(operand, written, [0] * spec.rank)


def write_at(operand: ir.Value, update: ir.Value, starts: Sequence[int]) -> ir.Value:
    """Return `operand` with the block `update` written at constant `starts`."""
    if operand.type == update.type:
        return update
    if math.prod(update.type.shape) == 0:
        return operand
    return stablehlo.dynamic_update_slice(
        operand, update, [hlo.scalar(start, torch.int32) for start in starts]
    )
