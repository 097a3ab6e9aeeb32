"""Systems solved with an LDL decomposition (`lowering.ops.indefinite` says how it is laid out)."""

from __future__ import annotations

import torch

from lowering import hlo, hlo_scan
from lowering.bucketing.matrices import of_matrices
from lowering.context import LoweringContext
from lowering.dtypes import spec_of
from lowering.mlir import ir, stablehlo
from lowering.ops import factorizations, matrices
from lowering.ops.complex_numbers import conjugate
from lowering.registry import lowering

aten = torch.ops.aten

_I32 = torch.int32


@lowering(
    aten.linalg_ldl_solve.default, padding=of_matrices(LD="square", pivots="pivots", B="rows")
)
def linalg_ldl_solve(
    ctx: LoweringContext,
    factors: ir.Value,
    pivots: ir.Value,
    other: ir.Value,
    *,
    hermitian: bool = False,
) -> ir.Value:
    """The x of A @ x = other, given A's decomposition; batch dims broadcast.

    LAPACK swaps rows between the columns of L; swapped in all columns at once, L is a triangular
    matrix, and A = P @ L @ D @ L' @ P'.
    """
    if 0 in ctx.result.shape:
        return hlo.full(ctx.result.shape, ctx.result.dtype, 0)
    blocks = _Blocks(pivots)
    below = _diagonal_below(factors)
    main = matrices.diagonal(factors)
    lower = matrices.triangle(factors, lower=True, strict=True)
    within_block = stablehlo.and_(
        matrices.band(factors, "EQ", -1),
        hlo.broadcast_in_dim(
            blocks.is_first,
            spec_of(factors).shape,
            [*range(spec_of(pivots).rank - 1), spec_of(pivots).rank],
        ),
    )
    lower = hlo.select(within_block, hlo.full_like(lower, 0), lower)
    lower, order, back = _sorted_rows(lower, pivots, blocks)
    is_first, is_second = blocks.is_first, blocks.is_second
    lower, other = matrices.broadcast_batches(lower, other)
    other = matrices.permute_rows(other, order)
    other = factorizations.solve_triangular(ctx, lower, other, lower=True, unit=True)
    other = _solve_blocks(main, below, is_first, is_second, other, hermitian)
    other = factorizations.solve_triangular(
        ctx, lower, other, lower=True, unit=True, transpose="C" if hermitian else "T"
    )
    return matrices.permute_rows(other, back)


class _Blocks:
    """Which rows are the first and the second of a block of order 2, `[..., order]` booleans."""

    def __init__(self, pivots: ir.Value) -> None:
        last = spec_of(pivots).rank - 1
        in_pair = hlo.compare(pivots, hlo.full_like(pivots, 0), "LT")
        number = hlo_scan.cumulative_sum(hlo.convert(in_pair, _I32), last)
        odd = hlo.convert(stablehlo.and_(number, hlo.full_like(number, 1)), torch.bool)
        self.is_first = stablehlo.and_(in_pair, odd)
        self.is_second = stablehlo.and_(in_pair, stablehlo.not_(odd))


def _diagonal_below(matrix: ir.Value) -> ir.Value:
    """Return the entries below the diagonal, `[..., order]`, the last one zero."""
    spec = spec_of(matrix)
    rank = spec.rank
    lifted = matrices.grown(
        hlo.slice_in_dim(matrix, 1, spec.shape[-2], dim=rank - 2), *spec.shape[-2:]
    )
    return matrices.diagonal(lifted)


def _sorted_rows(
    lower: ir.Value, pivots: ir.Value, blocks: _Blocks
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Return L with every column's rows in the final order, that order, and its inverse.

    The swap that a block makes moves the rows of all columns before the block.
    """
    *batch, count = spec_of(pivots).shape
    last = len(batch)
    place = hlo.iota((*batch, count), last)
    # No row is swapped by the first row of a pair.
    target: ir.Value = stablehlo.subtract(stablehlo.abs(pivots), hlo.full_like(pivots, 1))
    target = hlo.select(blocks.is_first, place, target)
    start = stablehlo.subtract(place, hlo.convert(blocks.is_second, _I32))
    columns = hlo.iota(spec_of(lower).shape, last + 1)

    def unfinished(step: ir.Value, *_: ir.Value) -> ir.Value:
        return hlo.compare(step, hlo.scalar(count, _I32), "LT")

    def swap(step: ir.Value, lower: ir.Value, order: ir.Value, back: ir.Value) -> list[ir.Value]:
        partner = hlo.dynamic_index(target, step, last)
        limit = hlo.dynamic_index(start, step, last)
        row = hlo.broadcast_to(step, spec_of(partner).shape)
        exchange = _exchanged(place, row, partner)
        moved = matrices.permute_rows(lower, exchange)
        limit = hlo.broadcast_in_dim(limit, spec_of(lower).shape, range(last))
        lower = hlo.select(hlo.compare(columns, limit, "LT"), moved, lower)
        order = matrices.permute_rows(matrices.as_column(order), exchange)
        order = hlo.reshape(order, (*batch, count))
        # Where the order has the two entries swapped, its inverse has the two values swapped.
        back = _exchanged(back, row, partner)
        return [stablehlo.add(step, hlo.scalar(1, _I32)), lower, order, back]

    carried = [hlo.scalar(0, _I32), lower, place, place]
    _, lower, order, back = hlo.while_loop(unfinished, swap, carried)
    return lower, order, back


def _exchanged(numbers: ir.Value, first: ir.Value, second: ir.Value) -> ir.Value:
    """Return `numbers` with `first` and `second`, one of each a vector, exchanged."""
    size = spec_of(numbers).shape[-1]
    first, second = matrices.spread(first, size), matrices.spread(second, size)
    is_first = hlo.compare(numbers, first, "EQ")
    is_second = hlo.compare(numbers, second, "EQ")
    return hlo.select(is_first, second, hlo.select(is_second, first, numbers))


def _solve_blocks(
    main: ir.Value,
    below: ir.Value,
    is_first: ir.Value,
    is_second: ir.Value,
    other: ir.Value,
    hermitian: bool,
) -> ir.Value:
    """Return D's inverse times `other`.

    A pair [[a, conj(e)], [e, c]] is divided by e first, as in LAPACK, against overflow.
    """
    spec = spec_of(other)
    dims = spec.rank - spec_of(main).rank - 1
    wide = [*range(dims, spec.rank - 1)]

    def spread(vector: ir.Value) -> ir.Value:
        return hlo.broadcast_in_dim(vector, spec.shape, wide)

    if hermitian and spec.dtype.is_complex:
        main = hlo.convert(stablehlo.real(main), spec.dtype)
    rank = spec_of(main).rank
    one = hlo.full_like(main, 1)
    e = hlo.select(is_first, below, hlo.select(is_second, _moved(below, 1, rank - 1), one))
    e_bar = conjugate(e) if hermitian else e
    divisor = hlo.select(is_first, e_bar, e)
    scaled = stablehlo.divide(other, spread(divisor))
    after, before = _moved(main, -1, rank - 1), _moved(main, 1, rank - 1)
    neighbour = hlo.select(is_first, after, before)
    # The partner's diagonal entry over e, own over the other e.
    factor = stablehlo.divide(neighbour, hlo.select(is_first, e, e_bar))
    own = stablehlo.divide(main, hlo.select(is_first, e_bar, e))
    scale = stablehlo.subtract(stablehlo.multiply(factor, own), one)
    rows_dim = spec.rank - 2
    partner = hlo.select(
        spread(is_first), _moved(scaled, -1, rows_dim), _moved(scaled, 1, rows_dim)
    )
    paired = stablehlo.subtract(stablehlo.multiply(spread(factor), scaled), partner)
    in_pair = stablehlo.or_(is_first, is_second)
    paired = stablehlo.divide(paired, spread(hlo.select(in_pair, scale, one)))
    alone = stablehlo.divide(other, spread(hlo.select(in_pair, one, main)))
    return hlo.select(spread(in_pair), paired, alone)


def _moved(operand: ir.Value, by: int, dim: int) -> ir.Value:
    """Return `operand` moved by one position along `dim`, a zero coming in."""
    rank = spec_of(operand).rank
    low = [by if axis == dim else 0 for axis in range(rank)]
    high = [-by if axis == dim else 0 for axis in range(rank)]
    return hlo.pad(operand, low, high)
