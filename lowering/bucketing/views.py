"""The padding rules of views: what splits, merges, orders, adds and removes dims."""

from __future__ import annotations

from collections.abc import Sequence

from lowering import hlo
from lowering.bucketing.atoms import (
    Dim,
    Layout,
    is_padded,
    physical_size,
    view,
)
from lowering.bucketing.call import Call, Outcome
from lowering.dtypes import spec_of


def reshaped(call: Call) -> Outcome:
    """The same elements in row-major order: atoms are renamed, or else elements move."""
    layout = call.layout("self")
    sizes = call.result_sizes()
    dims = view(layout.dims, sizes)
    if dims is None:
        target = call.plain()
        return call.sizes.regrouped(call.value("self"), layout.dims, target.dims), [target]
    value = hlo.reshape(call.value("self"), [physical_size(dim) for dim in dims])
    return value, [Layout(dims, _kept_zeros(layout, dims))]


def _kept_zeros(layout: Layout, dims: Sequence[Dim]) -> frozenset[int]:
    """Return the dims of a view whose padding is zero: those made of just such atoms.

    A view keeps the padded atoms in their order; two of them may have the same size.
    """
    are_zero = iter(
        [
            position in layout.zeros
            for position, dim in enumerate(layout.dims)
            for atom in dim
            if not atom.is_static
        ]
    )
    found = set()
    for position, dim in enumerate(dims):
        of_dim = [next(are_zero) for atom in dim if not atom.is_static]
        if of_dim and all(of_dim):
            found.add(position)
    return frozenset(found)


def permuted(call: Call) -> Outcome:
    """Dims in another order."""
    layout = call.layout("self")
    rank = len(layout.dims)
    order = [dim % rank for dim in call.value("dims")]
    return call.run(), [reordered(layout, order)]


def transposed(call: Call) -> Outcome:
    """Two dims exchanged (the last two where the op names none)."""
    layout = call.layout("self")
    rank = len(layout.dims)
    order = list(range(rank))
    if rank > 1:
        first, second = (call.value(name, default) for name, default in (("dim0", 0), ("dim1", 1)))
        order[first % rank], order[second % rank] = order[second % rank], order[first % rank]
    return call.run(), [reordered(layout, order)]


def reordered(layout: Layout, order: Sequence[int]) -> Layout:
    """Return the layout with result dim `i` taken from dim `order[i]`."""
    dims = tuple([layout.dims[dim] for dim in order])
    return Layout(dims, frozenset(i for i, dim in enumerate(order) if dim in layout.zeros))


def expanded(call: Call) -> Outcome:
    """Dims of size 1 repeated; those of other sizes stay as they lie."""
    layout = call.layout("self")
    plain = call.plain()
    offset = len(plain.dims) - len(layout.dims)
    dims = [
        layout.dims[position - offset]
        if position >= offset and layout.dims[position - offset]
        else dim
        for position, dim in enumerate(plain.dims)
    ]
    zeros = frozenset(offset + dim for dim in layout.zeros)
    return hlo.broadcast_to(call.value("self"), call.result.shape), [Layout(tuple(dims), zeros)]


def with_dim(call: Call) -> Outcome:
    """A dim of size 1 inserted."""
    layout = call.layout("self")
    at = call.value("dim") % (len(layout.dims) + 1)
    dims = [*layout.dims[:at], (), *layout.dims[at:]]
    zeros = frozenset(dim + (dim >= at) for dim in layout.zeros)
    return call.run(), [Layout(tuple(dims), zeros)]


def without_dims(call: Call) -> Outcome:
    """Dims of size 1 removed."""
    layout = call.layout("self")
    rank = len(layout.dims)
    given = call.value("dim")
    named = range(rank) if given is None else hlo.canonical_dims(given, rank)
    fake = call.fake("self").shape
    gone = [dim for dim in named if isinstance(fake[dim], int) and fake[dim] == 1]
    kept = [dim for dim in range(rank) if dim not in gone]
    dims = tuple([layout.dims[dim] for dim in kept])
    zeros = frozenset(kept.index(dim) for dim in layout.zeros if dim in kept)
    return hlo.reshape(call.value("self"), call.result.shape), [Layout(dims, zeros)]


def reinterpreted(call: Call) -> Outcome:
    """The same bytes as another dtype: the last dim grows or shrinks with the width."""
    layout = call.layout("self")
    before, after = spec_of(call.value("self")).dtype.itemsize, call.result.dtype.itemsize
    if before == after or not layout.dims:
        return call.run(), [Layout(layout.dims)]
    plain = call.plain().dims[-1]
    if is_padded(layout.dims[-1]):
        raise call.decline("it reads a padded dim as elements of another width")
    return call.run(), [Layout((*layout.dims[:-1], plain))]


def splits_parts(call: Call) -> Outcome:
    """Real and imaginary part along a new last dim."""
    layout = call.layout("self")
    return call.run(), [Layout((*layout.dims, *call.plain().dims[-1:]), layout.zeros)]


def joins_parts(call: Call) -> Outcome:
    """Complex numbers from the two entries of the last dim."""
    layout = call.layout("self")
    return call.run(), [Layout(layout.dims[:-1], layout.zeros)]
