"""LDL decompositions of symmetric (or Hermitian) matrices that need not be definite.

The lower triangle is read. D has blocks of order 1 and 2, chosen by Bunch and Kaufman's diagonal
pivoting (Mathematics of Computation 31, 1977), and pivots are laid out as in LAPACK's sytrf: a
positive p at i says that rows i and p (counted from 1) were swapped for a block of order 1; the
same negative -p at i and i + 1 says that rows i + 1 and p were swapped for a block of order 2.
XLA has no such routine, so it is a loop over columns, for all matrices of a batch at once.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from lowering import hlo
from lowering.bucketing.matrices import of_matrices
from lowering.context import LoweringContext
from lowering.dtypes import spec_of
from lowering.mlir import ir, stablehlo
from lowering.ops import factorizations, matrices
from lowering.ops.complex_numbers import conjugate
from lowering.registry import lowering

aten = torch.ops.aten

_I32 = torch.int32
# Bounds the growth of elements over one block of either order alike.
_ALPHA = (1 + math.sqrt(17)) / 8


@lowering(aten.linalg_ldl_factor_ex.default, padding=of_matrices(self="square"))
def linalg_ldl_factor_ex(
    ctx: LoweringContext, matrix: ir.Value, *, hermitian: bool = False, check_errors: bool = False
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """L and D in one lower triangle, pivots, and info: the first zero block of D, from 1."""
    spec = spec_of(matrix)
    *batch, order, _ = spec.shape
    if 0 in spec.shape:
        return matrix, hlo.full((*batch, order), _I32, 0), factorizations.no_failure(matrix)
    count = math.prod(batch)
    flat = hlo.reshape(matrix, (count, order, order))
    factors, pivots, info = _Factoring(flat, hermitian and spec.dtype.is_complex).run()
    return (
        hlo.reshape(factors, spec.shape),
        hlo.reshape(pivots, (*batch, order)),
        hlo.reshape(info, tuple(batch)),
    )


class _Block(NamedTuple):
    """The pivot block of each matrix at one step; every field is `[count]`."""

    is_pair: ir.Value
    swapped: ir.Value
    """The row, from 0, that is swapped with the last row of the block."""
    is_zero: ir.Value


class _Factoring:
    """One decomposition of `[count, order, order]`, as a loop that all matrices share."""

    def __init__(self, matrix: ir.Value, hermitian: bool) -> None:
        self.hermitian = hermitian
        self.count, self.order, _ = spec_of(matrix).shape
        self.dtype = spec_of(matrix).dtype
        self.matrix = matrix
        self.places = hlo.iota((self.count, self.order), 1)
        self.rows = hlo.iota((self.count, self.order, self.order), 1)
        self.columns = hlo.iota((self.count, self.order, self.order), 2)

    def run(self) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Return the factors, pivots and info."""
        lower = matrices.triangle(self.matrix, lower=True)
        strict = matrices.triangle(self.matrix, lower=True, strict=True)
        trailing: ir.Value = stablehlo.add(lower, self._mirror(strict))
        if self.hermitian:
            trailing = matrices.mirrored(self.matrix, lower=True)
        start = [
            hlo.full((self.count,), _I32, 0),
            trailing,
            hlo.full_like(self.matrix, 0),
            hlo.full((self.count, self.order), _I32, 0),
            hlo.full((self.count,), _I32, 0),
        ]
        _, _, factors, pivots, info = hlo.while_loop(self._unfinished, self._step, start)
        return factors, pivots, info

    # --- parts of matrices at an index that differs between them ---------------------------------

    def _at(self, index: ir.Value) -> ir.Value:
        """Return where a place is `index`, `[count, order]`."""
        return hlo.compare(self.places, matrices.spread(index, self.order), "EQ")

    def _past(self, index: ir.Value) -> ir.Value:
        return hlo.compare(self.places, matrices.spread(index, self.order), "GT")

    def _pick(self, vector: ir.Value, index: ir.Value) -> ir.Value:
        """Return vector[index], `[count]`; 0 where the index is out of range."""
        chosen = hlo.select(self._at(index), vector, hlo.full_like(vector, 0))
        return hlo.reduce_sum(chosen, [1])

    def _column(self, matrix: ir.Value, index: ir.Value) -> ir.Value:
        """Return matrix[:, index], `[count, order]`."""
        wanted = hlo.compare(self.columns, self._all(index), "EQ")
        return hlo.reduce_sum(hlo.select(wanted, matrix, hlo.full_like(matrix, 0)), [2])

    def _all(self, number: ir.Value) -> ir.Value:
        """Return a number a matrix, spread over the matrix."""
        return hlo.broadcast_in_dim(number, (self.count, self.order, self.order), [0])

    def _swap(self, matrix: ir.Value, first: ir.Value, second: ir.Value) -> ir.Value:
        """Return the matrix with two rows and the two columns of the same numbers swapped."""
        order = hlo.select(self._at(first), matrices.spread(second, self.order), self.places)
        order = hlo.select(self._at(second), matrices.spread(first, self.order), order)
        matrix = matrices.permute_rows(matrix, order)
        return matrices.transpose(matrices.permute_rows(matrices.transpose(matrix), order))

    def _mirror(self, matrix: ir.Value) -> ir.Value:
        return matrices.adjoint(matrix) if self.hermitian else matrices.transpose(matrix)

    def _magnitude(self, operand: ir.Value) -> ir.Value:
        """Return LAPACK's cabs1: the sum of the absolute real and imaginary part."""
        if not self.dtype.is_complex:
            return stablehlo.abs(operand)
        return stablehlo.add(
            stablehlo.abs(stablehlo.real(operand)), stablehlo.abs(stablehlo.imag(operand))
        )

    # --- the loop ----------------------------------------------------------------------------

    def _unfinished(self, place: ir.Value, *_: ir.Value) -> ir.Value:
        left = hlo.compare(place, hlo.full_like(place, self.order), "LT")
        return hlo.reduce(left, [0], False, stablehlo.or_)

    def _step(
        self,
        place: ir.Value,
        trailing: ir.Value,
        factors: ir.Value,
        pivots: ir.Value,
        info: ir.Value,
    ) -> list[ir.Value]:
        """Move each matrix on by one block that starts at its `place`."""
        one = hlo.full_like(place, 1)
        block = self._choose(trailing, place)
        second = stablehlo.add(place, one)
        last = hlo.select(block.is_pair, second, place)
        trailing = self._swap(trailing, last, block.swapped)
        written, trailing = self._eliminate(trailing, place, second, block)
        factors = stablehlo.add(factors, written)
        number: ir.Value = stablehlo.add(block.swapped, one)
        number = hlo.select(block.is_pair, stablehlo.negate(number), number)
        here = self._at(place)
        pair = matrices.spread(block.is_pair, self.order)
        here = stablehlo.or_(here, stablehlo.and_(pair, self._at(second)))
        pivots = hlo.select(here, matrices.spread(number, self.order), pivots)
        unset = hlo.compare(info, hlo.full_like(info, 0), "EQ")
        inside = hlo.compare(place, hlo.full_like(place, self.order), "LT")
        fails = stablehlo.and_(stablehlo.and_(unset, inside), block.is_zero)
        info = hlo.select(fails, second, info)
        return [stablehlo.add(last, one), trailing, factors, pivots, info]

    def _choose(self, trailing: ir.Value, place: ir.Value) -> _Block:
        """Return the pivot block of each matrix (Bunch and Kaufman's four cases)."""
        column = self._column(trailing, place)
        own = self._diagonal_size(column, place)
        sizes = self._magnitude(column)
        none = hlo.full_like(sizes, -1)
        below = hlo.select(self._past(place), sizes, none)
        largest = hlo.reduce(below, [1], 0, stablehlo.maximum)
        is_largest = hlo.compare(below, matrices.spread(largest, self.order), "EQ")
        first = matrices.first_marked(is_largest)
        first = stablehlo.maximum(
            stablehlo.subtract(first, hlo.full_like(first, 1)), hlo.full_like(first, 0)
        )
        row = self._column(trailing, first)
        row_sizes = self._magnitude(row)
        elsewhere = stablehlo.and_(
            hlo.compare(self.places, matrices.spread(place, self.order), "GE"),
            stablehlo.not_(self._at(first)),
        )
        row_largest = hlo.reduce(hlo.select(elsewhere, row_sizes, none), [1], 0, stablehlo.maximum)
        alpha = hlo.full_like(own, _ALPHA)
        zero = hlo.full_like(own, 0)
        is_zero = stablehlo.or_(
            hlo.compare(stablehlo.maximum(own, largest), zero, "EQ"), hlo.is_nan(own)
        )
        keeps = hlo.compare(own, stablehlo.multiply(alpha, largest), "GE")
        growth = stablehlo.multiply(largest, stablehlo.divide(largest, row_largest))
        keeps_too = hlo.compare(own, stablehlo.multiply(alpha, growth), "GE")
        keeps = stablehlo.or_(is_zero, stablehlo.or_(keeps, keeps_too))
        moves = hlo.compare(
            self._diagonal_size(row, first), stablehlo.multiply(alpha, row_largest), "GE"
        )
        is_pair = stablehlo.and_(stablehlo.not_(keeps), stablehlo.not_(moves))
        return _Block(is_pair, hlo.select(keeps, place, first), is_zero)

    def _diagonal_size(self, column: ir.Value, place: ir.Value) -> ir.Value:
        entry = self._pick(column, place)
        return stablehlo.abs(stablehlo.real(entry)) if self.hermitian else self._magnitude(entry)

    def _eliminate(
        self, trailing: ir.Value, place: ir.Value, second: ir.Value, block: _Block
    ) -> tuple[ir.Value, ir.Value]:
        """Return the columns of L and D of the block, and the matrix that is left to decompose."""
        left, right = self._column(trailing, place), self._column(trailing, second)
        end = hlo.select(block.is_pair, second, place)
        rest = self._past(end)
        first_weight, second_weight = self._weights(left, right, place, second, block)
        zero = hlo.full_like(left, 0)
        first_weight = hlo.select(rest, first_weight, zero)
        second_weight = hlo.select(rest, second_weight, zero)
        update = stablehlo.add(self._outer(first_weight, left), self._outer(second_weight, right))
        both = stablehlo.and_(
            hlo.broadcast_in_dim(rest, spec_of(trailing).shape, [0, 1]),
            hlo.broadcast_in_dim(rest, spec_of(trailing).shape, [0, 2]),
        )
        remaining = stablehlo.subtract(trailing, update)
        idle = self._all(block.is_zero)
        trailing_after = hlo.select(stablehlo.and_(both, stablehlo.not_(idle)), remaining, trailing)
        # The block itself stays on and below the diagonal; below it stand the columns of L.
        in_pair = matrices.spread(block.is_pair, self.order)
        kept = stablehlo.or_(self._at(place), stablehlo.and_(in_pair, self._at(second)))
        wide_zero = matrices.spread(block.is_zero, self.order)
        low = hlo.select(kept, left, hlo.select(wide_zero, zero, first_weight))
        only_second = stablehlo.and_(in_pair, self._at(second))
        high = hlo.select(only_second, right, second_weight)
        at_place = hlo.compare(self.columns, self._all(place), "EQ")
        at_second = stablehlo.and_(
            hlo.compare(self.columns, self._all(second), "EQ"), self._all(block.is_pair)
        )
        shape = spec_of(trailing).shape
        nothing = hlo.full_like(trailing, 0)
        written = hlo.select(at_second, hlo.broadcast_in_dim(high, shape, [0, 1]), nothing)
        written = hlo.select(at_place, hlo.broadcast_in_dim(low, shape, [0, 1]), written)
        return written, trailing_after

    def _outer(self, weight: ir.Value, column: ir.Value) -> ir.Value:
        """Return weight[i] * column[j], conjugated if Hermitian."""
        shape = (self.count, self.order, self.order)
        column = conjugate(column) if self.hermitian else column
        return stablehlo.multiply(
            hlo.broadcast_in_dim(weight, shape, [0, 1]), hlo.broadcast_in_dim(column, shape, [0, 2])
        )

    def _weights(
        self, left: ir.Value, right: ir.Value, place: ir.Value, second: ir.Value, block: _Block
    ) -> tuple[ir.Value, ir.Value]:
        """Return the columns of L: those of the trailing matrix times the block's inverse.

        For a pair [[a, conj(e)], [e, c]] everything is divided by e first, against overflow.
        """
        one = hlo.full_like(self._pick(left, place), 1)
        pair = block.is_pair
        a, c = self._pick(left, place), self._pick(right, second)
        e = hlo.select(pair, self._pick(left, second), one)
        mirrored_e = conjugate(e) if self.hermitian else e
        alone = stablehlo.divide(left, matrices.spread(hlo.select(pair, one, a), self.order))
        above, beside = stablehlo.divide(a, e), stablehlo.divide(c, mirrored_e)
        scale: ir.Value = stablehlo.subtract(stablehlo.multiply(above, beside), one)
        scale = hlo.select(pair, scale, one)

        def spread(number: ir.Value) -> ir.Value:
            return matrices.spread(number, self.order)

        over_left = stablehlo.divide(left, spread(e))
        over_right = stablehlo.divide(right, spread(mirrored_e))
        first = stablehlo.subtract(stablehlo.multiply(spread(beside), over_left), over_right)
        second_column = stablehlo.subtract(stablehlo.multiply(spread(above), over_right), over_left)
        first = stablehlo.divide(first, spread(scale))
        second_column = stablehlo.divide(second_column, spread(scale))
        wide = matrices.spread(pair, self.order)
        return hlo.select(wide, first, alone), hlo.select(
            wide, second_column, hlo.full_like(second_column, 0)
        )
