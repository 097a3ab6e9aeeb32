"""Bags of embeddings with their gradient, and the renormalization of looked-up rows.

Indices are clamped when read and dropped when written if they are out of range, where eager raises.
"""

from __future__ import annotations

import math

import torch
from torch import fx

from lowering import hlo
from lowering.bucketing.bags import bagged, bagged_backward, renormalized
from lowering.context import LoweringContext
from lowering.dtypes import TensorSpec, spec_of
from lowering.hlo_indexing import overwrite, put, put_along, take
from lowering.hlo_scan import accumulation_dtype
from lowering.mlir import ir, stablehlo
from lowering.registry import lowering

aten = torch.ops.aten

SUM, MEAN, MAX = range(3)


@lowering(
    aten._embedding_bag.default,
    aten._embedding_bag_forward_only.default,
    padding=bagged,
)
def embedding_bag(
    ctx: LoweringContext,
    weight: ir.Value,
    indices: ir.Value,
    offsets: ir.Value,
    scale_grad_by_freq: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    per_sample_weights: ir.Value | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
    *,
    real: ir.Value | None = None,
) -> tuple[ir.Value, ...]:
    """Sum, mean or maximum of the rows of each bag: (result, bag of each index, sizes, argmax).

    `weight` is [rows, width], `indices` [n] and the ascending `offsets` [bags (+ 1)]; bag `b` is
    `indices[offsets[b]:offsets[b + 1]]`, without `padding_idx` where that is not negative. An
    empty bag gives 0. The last of bags + 1 offsets is taken to be n, as it must. Sizes are those
    that eager stores for the backward: zeros for sums. Only the `real` indices (bool [n], all if
    None) are in bags.
    """
    result, *extras = (spec for spec in ctx.results if spec is not None)
    bags, count = result.shape[0], spec_of(indices).shape[0]
    if count == 0 or 0 in result.shape:
        return tuple(hlo.full(spec.shape, spec.dtype, 0) for spec in (result, *extras))
    bag = _bag_of_each(offsets, bags, count)
    keep = hlo.compare(indices, hlo.full_like(indices, padding_idx), "NE")
    if padding_idx < 0:
        keep = hlo.full_like(keep, True)
    if real is not None:
        keep = stablehlo.and_(keep, real)
    target = hlo.select(keep, bag, hlo.full_like(bag, bags))
    rows = hlo.convert(take(weight, [0], [indices]), accumulation_dtype(result.dtype))
    sizes = put(
        hlo.full((bags,), torch.int32, 0),
        [0],
        [target],
        hlo.full((count,), torch.int32, 1),
        stablehlo.add,
    )
    if mode == MAX:
        values, chosen = _largest_rows(rows, indices, target, sizes)
    else:
        values = _summed_rows(rows, target, bags, per_sample_weights)
        chosen = sizes if mode == MEAN else hlo.full_like(sizes, 0)
        if mode == MEAN:
            values = _divided(values, sizes)
    sizes = hlo.full_like(sizes, 0) if mode == SUM else sizes
    return (
        hlo.convert(values, result.dtype),
        _fitted(bag, extras[0]),
        _fitted(sizes, extras[1]),
        _fitted(chosen, extras[2]),
    )


def _bag_of_each(offsets: ir.Value, bags: int, count: int) -> ir.Value:
    """Return the bag (i32) of each of `count` positions: the last that starts there or before."""
    starts = hlo.slice_in_dim(hlo.convert(offsets, torch.int32), 0, bags, dim=0)
    begun = hlo.compare(
        hlo.broadcast_in_dim(starts, (count, bags), [1]), hlo.iota((count, bags), 0), "LE"
    )
    number = hlo.reduce_sum(hlo.convert(begun, torch.int32), [1])
    return stablehlo.subtract(number, hlo.full_like(number, 1))


def _fitted(value: ir.Value, spec: TensorSpec) -> ir.Value:
    """Return `value` in the size and dtype that torch gives this extra result, zeros behind it."""
    value = hlo.convert(value, spec.dtype)
    if spec.shape[:1] == (0,):
        return hlo.full(spec.shape, spec.dtype, 0)
    missing = spec.shape[0] - spec_of(value).shape[0]
    return hlo.pad(value, [0] * spec.rank, [missing, *[0] * (spec.rank - 1)])


def _summed_rows(
    rows: ir.Value, target: ir.Value, bags: int, per_sample_weights: ir.Value | None
) -> ir.Value:
    spec = spec_of(rows)
    if per_sample_weights is not None:
        factor = hlo.convert(per_sample_weights, spec.dtype)
        rows = stablehlo.multiply(rows, hlo.broadcast_in_dim(factor, spec.shape, [0]))
    empty = hlo.full((bags, spec.shape[1]), spec.dtype, 0)
    return put(empty, [0], [target], rows, stablehlo.add)


def _divided(values: ir.Value, sizes: ir.Value) -> ir.Value:
    spec = spec_of(values)
    sizes = hlo.convert(stablehlo.maximum(sizes, hlo.full_like(sizes, 1)), spec.dtype)
    return stablehlo.divide(values, hlo.broadcast_in_dim(sizes, spec.shape, [0]))


def _largest_rows(
    rows: ir.Value, indices: ir.Value, target: ir.Value, sizes: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """Return the maxima of the bags, and the index that the first of equal maxima came from."""
    (count, width), dtype = spec_of(rows)
    shape = (spec_of(sizes).shape[0], width)
    values = put(hlo.full(shape, dtype, -math.inf), [0], [target], rows, stablehlo.maximum)
    position = hlo.iota((count, width), 0)
    is_largest = hlo.compare(take(values, [0], [target]), rows, "EQ")
    position = hlo.select(is_largest, position, hlo.full_like(position, count))
    first = put(hlo.full(shape, torch.int32, count), [0], [target], position, stablehlo.minimum)
    chosen = take(indices, [0], [first])
    filled = hlo.compare(sizes, hlo.full_like(sizes, 0), "GT")
    filled = hlo.broadcast_in_dim(filled, shape, [0])
    return (
        hlo.select(filled, values, hlo.full_like(values, 0)),
        hlo.select(filled, chosen, hlo.full_like(chosen, 0)),
    )


def _check_frequency(node: fx.Node) -> str | None:
    if node.args[6]:
        return "scale_grad_by_freq has no lowering: eager's counts depend on the order of indices"
    return None


@lowering(
    aten._embedding_bag_dense_backward.default, padding=bagged_backward, check=_check_frequency
)
def embedding_bag_backward(
    ctx: LoweringContext,
    grad: ir.Value,
    indices: ir.Value,
    offset2bag: ir.Value,
    bag_size: ir.Value,
    maximum_indices: ir.Value,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: ir.Value | None,
    padding_idx: int = -1,
) -> ir.Value:
    """Gradient of the weight, [num_weights, width]: each bag's gradient on each of its rows."""
    result = ctx.result
    dtype = accumulation_dtype(result.dtype)
    total = hlo.full(result.shape, dtype, 0)
    grad = hlo.convert(grad, dtype)
    if mode == MAX:
        bag_is_empty = hlo.compare(bag_size, hlo.full_like(bag_size, 0), "EQ")
        empty = hlo.broadcast_in_dim(bag_is_empty, spec_of(grad).shape, [0])
        row = hlo.convert(maximum_indices, torch.int64)
        row = hlo.select(empty, hlo.full_like(row, num_weights), row)
        return hlo.convert(put_along(total, row, 0, grad, stablehlo.add), result.dtype)
    if 0 in spec_of(indices).shape:
        return hlo.convert(total, result.dtype)
    if mode == MEAN:
        grad = _divided(grad, bag_size)
    rows = take(grad, [0], [offset2bag])
    shape = spec_of(rows).shape
    if per_sample_weights is not None:
        factor = hlo.convert(per_sample_weights, dtype)
        rows = stablehlo.multiply(rows, hlo.broadcast_in_dim(factor, shape, [0]))
    if padding_idx >= 0:
        keep = hlo.compare(indices, hlo.full_like(indices, padding_idx), "NE")
        indices = hlo.select(keep, indices, hlo.full_like(indices, num_weights))
    return hlo.convert(put(total, [0], [indices], rows, stablehlo.add), result.dtype)


@lowering(aten.embedding_renorm.default, padding=renormalized)
def embedding_renorm(
    ctx: LoweringContext, weight: ir.Value, indices: ir.Value, max_norm: float, norm_type: float
) -> ir.Value:
    """`weight` with the rows at `indices` scaled down to `max_norm` where they exceed it.

    The factor is max_norm / (norm + 1e-7), as in eager.
    """
    spec = spec_of(weight)
    dtype = accumulation_dtype(spec.dtype)
    rows = hlo.convert(weight, dtype)
    named = hlo.full(spec_of(indices).shape, torch.bool, True)
    named = put(hlo.full(spec.shape[:1], torch.bool, False), [0], [indices], named, overwrite)
    norm = _row_norm(rows, norm_type)
    factor: ir.Value = stablehlo.divide(
        hlo.full_like(norm, max_norm), stablehlo.add(norm, hlo.full_like(norm, 1e-7))
    )
    exceeds = stablehlo.and_(named, hlo.compare(norm, hlo.full_like(norm, max_norm), "GT"))
    spread = hlo.broadcast_in_dim(factor, spec.shape, [0])
    scaled = hlo.convert(stablehlo.multiply(rows, spread), spec.dtype)
    return hlo.select(hlo.broadcast_in_dim(exceeds, spec.shape, [0]), scaled, weight)


def _row_norm(rows: ir.Value, order: float) -> ir.Value:
    size = stablehlo.abs(rows)
    if order == math.inf:
        return hlo.reduce_max(size, [1])
    if order == 0:
        nonzero = hlo.convert(hlo.convert(rows, torch.bool), spec_of(rows).dtype)
        return hlo.reduce_sum(nonzero, [1])
    if order == 2:
        return stablehlo.sqrt(hlo.reduce_sum(stablehlo.multiply(rows, rows), [1]))
    total = hlo.reduce_sum(stablehlo.power(size, hlo.full_like(size, order)), [1])
    return stablehlo.power(total, hlo.full_like(total, 1 / order))
