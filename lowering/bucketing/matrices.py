"""The padding rules of linear algebra: a padded matrix is the real one beside an identity.

So `[[A, 0], [0, 1]]` stands for A: its factors, its inverse, its determinant and its solutions hold
those of A, whose real positions come first. The batch may be padded as well.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping

import torch

from lowering import hlo
from lowering.bucketing.atoms import (
    Dim,
    Layout,
    dim_of,
    is_padded,
    is_prefix,
    logical_size,
    physical_size,
    same_size,
)
from lowering.bucketing.batches import OwnDims, batch_results, shared_batch
from lowering.bucketing.call import Call, Outcome
from lowering.dtypes import real_dtype, spec_of
from lowering.mlir import ir, stablehlo
from lowering.registry import PaddingRule

Role = str | Callable[[Call], str]

_RANKS = {"square": 2, "matrix": 2, "rows": 2, "columns": 2, "vector": 1, "pivots": 1}


def of_matrices(**roles: Role) -> PaddingRule:
    """An op on matrices, which takes its tensor arguments in these roles.

    - `square`: an n x n matrix, padded with an identity; the others lie as the first of them.
    - `rows`, `columns`: a matrix with n rows (or columns), padded with zeros; so is a `vector`.
    - `pivots`: n rows to swap with, from 1, padded with each row's own number.
    - `matrix`: one of any shape, padded with zeros.
    """

    def rule(call: Call) -> Outcome:
        given = {
            name: role if isinstance(role, str) else role(call)
            for name, role in roles.items()
            if call.value(name) is not None
        }
        own = _own_dims(call, given)
        batch, laid = shared_batch(call, own)
        for name, layout in laid.items():
            if given[name] == "square":
                call.replace(name, beside_diagonal(call, call.value(name), layout, None))
            elif given[name] == "pivots":
                call.replace(name, _own_numbers(call, call.value(name), layout))
        return call.run(), batch_results(call, batch)

    return rule


def _own_dims(call: Call, roles: Mapping[str, str]) -> OwnDims:
    """Return the own dims that each tensor is to have, real positions first."""
    order: Dim | None = None
    own: OwnDims = {}
    for name, role in roles.items():
        dims = [_prefix(dim) for dim in call.layout(name).dims[-_RANKS[role] :]]
        if role == "square":
            order = dims[0] if order is None else order
            if not (same_size(logical_size(dims[0]), logical_size(dims[1]))):
                raise call.decline(f"nothing says that its `{name}` is square")
            dims = [order, order]
        elif role in ("rows", "vector", "pivots") and order is not None:
            dims[0] = order
        elif role == "columns" and order is not None:
            dims[1] = order
        own[name] = dims
    return own


def _prefix(dim: Dim) -> Dim:
    return dim if is_prefix(dim) else dim_of(logical_size(dim), physical_size(dim))


def beside_diagonal(
    call: Call, value: ir.Value, layout: Layout, entry: ir.Value | None
) -> ir.Value:
    """Return square matrices with zero padding but for `entry` (a value a matrix, or 1)."""
    rank = len(layout.dims)
    dim = layout.dims[-1]
    if not is_padded(dim):
        return value
    shape = spec_of(value).shape
    is_padding = stablehlo.not_(call.sizes.valid(dim))
    diagonal = hlo.compare(hlo.iota(shape, rank - 2), hlo.iota(shape, rank - 1), "EQ")
    chosen = stablehlo.and_(diagonal, hlo.broadcast_in_dim(is_padding, shape, [rank - 1]))
    filled = (
        hlo.full_like(value, 1)
        if entry is None
        else hlo.broadcast_in_dim(entry, shape, range(rank - 2))
    )
    return hlo.select(chosen, filled, value)


def _own_numbers(call: Call, pivots: ir.Value, layout: Layout) -> ir.Value:
    dim = layout.dims[-1]
    if not is_padded(dim):
        return pivots
    spec = spec_of(pivots)
    number = hlo.iota(spec.shape, spec.rank - 1, spec.dtype)
    number = stablehlo.add(number, hlo.full_like(number, 1))
    valid = hlo.broadcast_in_dim(call.sizes.valid(dim), spec.shape, [spec.rank - 1])
    return hlo.select(valid, pivots, number)


def right_side(call: Call) -> str:
    """Return the role of the right side `B` of a system `A`, which may be a vector."""
    matrix, other = call.fake("A").shape, call.fake("B").shape
    if len(other) == 1 or other == matrix[:-1]:
        return "vector"
    return side(call)


def side(call: Call) -> str:
    """Return the role of a factor that stands left or right of a matrix, as `left` says."""
    return "rows" if call.value("left", True) else "columns"


def self_adjoint(call: Call) -> Outcome:
    """Eigenvalues in ascending order: those of padding are larger than all real ones."""
    own = _own_dims(call, {"A": "square"})
    batch, laid = shared_batch(call, own)
    matrix = call.value("A")
    rank = len(laid["A"].dims)
    sums = hlo.reduce_sum(stablehlo.abs(matrix), [rank - 1])
    largest = hlo.reduce_max(sums, [rank - 2])
    # Either triangle may be the one that is read, so twice the bound of what was summed.
    beyond = stablehlo.add(
        stablehlo.multiply(largest, hlo.full_like(largest, 4)), hlo.full_like(largest, 1)
    )
    beyond = hlo.convert(beyond, spec_of(matrix).dtype)
    call.replace("A", beside_diagonal(call, matrix, laid["A"], beyond))
    return call.run(), batch_results(call, batch)


def singular_values(call: Call) -> Outcome:
    """Singular values: those of padding are zero and come last. Vectors need static matrices."""
    dims = call.layout("A").dims[-2:]
    users = call.node.users
    vectors_are_read = any(
        user.target is not operator.getitem or user.args[1] != 1 for user in users
    )
    if vectors_are_read and any(is_padded(dim) for dim in dims):
        raise call.decline("singular vectors of zero are any, and mix with padding")
    return of_matrices(A="matrix")(call)


def pseudo_inverse(call: Call) -> Outcome:
    """The pseudo-inverse: singular values of padding are zero, and count as zero."""
    sides = call.layout("self").dims[-2:]
    if any(is_padded(dim) for dim in sides):
        if call.value("rtol") is None and call.value("atol") is not None:
            raise call.decline("its tolerance depends on a dynamic size and on `atol`")
        if call.value("rtol") is None:
            call.replace("rtol", _default_tolerance(call, sides))
    own: OwnDims = {"self": [_prefix(dim) for dim in sides]}
    for name in ("atol", "rtol"):
        if name in call.tensors():
            own[name] = []
    batch, _ = shared_batch(call, own)
    return call.run(), batch_results(call, batch)


def _default_tolerance(call: Call, sides: tuple[Dim, ...]) -> ir.Value:
    dtype = real_dtype(spec_of(call.value("self")).dtype)
    rows, columns = (call.sizes.number(logical_size(dim), dtype) for dim in sides)
    longer = stablehlo.maximum(rows, columns)
    return stablehlo.multiply(longer, hlo.full_like(longer, torch.finfo(dtype).eps))
