"""The padding rules of views by strides: places in the memory that the real tensor would have."""

from __future__ import annotations

import math
from typing import Any

import torch

from lowering import hlo
from lowering.bucketing.atoms import Layout
from lowering.bucketing.call import Call, Outcome
from lowering.bucketing.placing import number_like
from lowering.bucketing.run_time import take_along
from lowering.bucketing.scattered import dropped
from lowering.hlo_indexing import put
from lowering.mlir import ir, stablehlo
from lowering.signature import dense_order
from lowering.sizes import plain_size


def strided(call: Call) -> Outcome:
    """Elements of the real tensor's memory at strided places."""
    order, plain = _memory_order(call), call.plain()
    index = hlo.reshape(_places(call, plain, order), [math.prod(plain.shape)])
    flat = take_along(_flat(call, order), index, 0)
    return hlo.reshape(flat, plain.shape), [plain]


def strided_written(call: Call) -> Outcome:
    """`self` with what is at strided places of the real tensor's memory replaced by `src`."""
    order, layout, source = _memory_order(call), call.layout("self"), call.layout("src")
    index = dropped(call, _places(call, source, order), source, math.prod(layout.shape))
    update = hlo.convert(call.value("src"), call.result.dtype)
    flat = put(_flat(call, order), [0], [index], update)
    lying = hlo.reshape(flat, [layout.shape[dim] for dim in order])
    inverse = [order.index(dim) for dim in range(len(order))]
    return hlo.transpose(lying, inverse), [Layout(layout.dims)]


def _memory_order(call: Call) -> tuple[int, ...]:
    fake = call.fake("self")
    shape, strides = (call.ctx.sizes.shape(sizes) for sizes in (fake.shape, fake.stride()))
    order = dense_order(shape, strides)
    if order is None:
        raise call.decline("its operand has gaps or overlaps in memory")
    return tuple(order)


def _flat(call: Call, order: tuple[int, ...]) -> ir.Value:
    value = hlo.transpose(call.value("self"), order)
    return hlo.reshape(value, [math.prod(value.type.shape)])


def _places(call: Call, view: Layout, order: tuple[int, ...]) -> Any:
    """Return where the elements of a view lie in `self`, dims in `order`, taken as one row."""
    own = plain_size(call.fake("self").storage_offset())
    offset = call.size("storage_offset")
    lying = [call.layout("self").dims[dim] for dim in order]
    place = hlo.full(view.shape, torch.int32, 0)
    place = number_like(call, 0 if offset is None else offset - own, place)
    for dim, stride in enumerate(call.size("stride")):
        position = hlo.broadcast_in_dim(
            call.sizes.linear_index([view.dims[dim]]), view.shape, [dim]
        )
        step = number_like(call, stride, place)
        place = stablehlo.add(place, stablehlo.multiply(position, step))
    return call.sizes.physical_index(lying, place)
