"""Run-time sizes in a program: expressions of them as values, masks of real positions, gathers.

A program takes the logical sizes of its call as one i64 vector. What is made from them is made
once, at first use; all of it lies in the block of the module's `main`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from lowering import hlo
from lowering.bucketing.atoms import Atom, Dim, is_padded, is_prefix, physical_size
from lowering.bucketing.bounds import UnboundedSizeError
from lowering.dtypes import spec_of
from lowering.mlir import ir, stablehlo
from lowering.run_time_numbers import floored_quotient, remainder

_INT32_MAX = 2**31 - 1


class RunTimeSizes:
    """The logical sizes of a call, within a program."""

    def __init__(
        self, symbols: Sequence[sympy.Expr], vector: ir.Value, fractions: torch.dtype
    ) -> None:
        """Read `symbols`, in order, from an i64 `vector`; compute `fractions` in that dtype."""
        self.fractions = fractions
        self._vector = vector
        self._index = {symbol: index for index, symbol in enumerate(symbols)}
        self._numbers: dict[Any, ir.Value] = {}
        self._valid: dict[Dim, ir.Value] = {}

    # --- numbers ------------------------------------------------------------------------------

    def number(self, size: Any, dtype: torch.dtype = torch.int32) -> ir.Value:
        """Return the value of an expression (or a number) as a 0-d value of `dtype`.

        Raises:
            UnboundedSizeError: it holds a function that has no counterpart here.
        """
        key = (size, dtype)
        if key not in self._numbers:
            self._numbers[key] = hlo.convert(self._evaluated(size), dtype)
        return self._numbers[key]

    def _evaluated(self, expr: Any) -> ir.Value:
        """Return an expression in i64, or in the dtype of fractions where it is one."""
        if isinstance(expr, (bool, int)):
            return hlo.scalar(expr, torch.int64)
        if isinstance(expr, float):
            return hlo.scalar(expr, self.fractions)
        key = (expr, None)
        if key not in self._numbers:
            self._numbers[key] = self._built(expr)
        return self._numbers[key]

    def _built(self, expr: Any) -> ir.Value:
        if expr in self._index:
            index = self._index[expr]
            return hlo.reshape(hlo.slice_in_dim(self._vector, index, index + 1, dim=0), ())
        if expr.is_Integer:
            return hlo.scalar(int(expr), torch.int64)
        if expr.is_Float or expr.is_Rational:
            return hlo.scalar(float(expr), self.fractions)
        if expr.is_Pow and expr.exp.is_Integer and expr.exp > 0:
            return self._product([expr.base] * int(expr.exp))
        if expr.is_Add:
            return self._folded(stablehlo.add, expr.args)
        if expr.is_Mul:
            return self._product(expr.args)
        name = type(expr).__name__
        if name in _OF_FRACTIONS:
            parts = [hlo.convert(self._evaluated(part), self.fractions) for part in expr.args]
            return _OF_FRACTIONS[name](*parts)
        build = _FUNCTIONS.get(name)
        if build is None:
            raise UnboundedSizeError(f"{expr} cannot be computed within a program")
        return self._folded(build, expr.args)

    def _product(self, factors: Sequence[Any]) -> ir.Value:
        return self._folded(stablehlo.multiply, factors)

    def _folded(
        self, build: Callable[[ir.Value, ir.Value], ir.Value], parts: Sequence[Any]
    ) -> ir.Value:
        values = [self._evaluated(part) for part in parts]
        if any(spec_of(value).dtype is self.fractions for value in values):
            values = [hlo.convert(value, self.fractions) for value in values]
        result = values[0]
        for value in values[1:]:
            result = build(result, value)
        return result

    # --- real positions -----------------------------------------------------------------------

    def valid(self, dim: Dim) -> ir.Value:
        """Return which positions of a dim are real: bool `[physical]`."""
        if dim not in self._valid:
            self._valid[dim] = self._is_valid(dim)
        return self._valid[dim]

    def _is_valid(self, dim: Dim) -> ir.Value:
        extent = physical_size(dim)
        shape = [atom.physical for atom in dim] if not is_prefix(dim) else [extent]
        atoms = dim if not is_prefix(dim) else (_whole(dim),)
        mask = None
        for position, atom in enumerate(atoms):
            if atom.is_static:
                continue
            digit = hlo.iota(shape, position)
            limit = hlo.broadcast_to(self.number(atom.size), shape)
            below = hlo.compare(digit, limit, "LT")
            mask = below if mask is None else stablehlo.and_(mask, below)
        assert mask is not None
        return hlo.reshape(mask, [extent])

    def mask(self, dims: Sequence[Dim], along: Sequence[int]) -> ir.Value | None:
        """Return which positions are real along the dims `along`: bool of the physical shape.

        None if all are.
        """
        shape = [physical_size(dim) for dim in dims]
        mask = None
        for position in along:
            if not is_padded(dims[position]):
                continue
            valid = hlo.broadcast_in_dim(self.valid(dims[position]), shape, [position])
            mask = valid if mask is None else stablehlo.and_(mask, valid)
        return mask

    # --- moving elements ----------------------------------------------------------------------

    def linear_index(self, dims: Sequence[Dim], dtype: torch.dtype = torch.int32) -> ir.Value:
        """Return the row-major logical index of every position; of padding, any number."""
        shape = [physical_size(dim) for dim in dims]
        atoms = [atom for dim in dims for atom in dim]
        digits = [atom.physical for atom in atoms]
        index = hlo.full(digits, dtype, 0)
        for position, atom in enumerate(atoms):
            size = hlo.broadcast_to(self.number(atom.size, dtype), digits)
            digit = hlo.iota(digits, position, dtype)
            index = stablehlo.add(stablehlo.multiply(index, size), digit)
        return hlo.reshape(index, shape)

    def physical_index(self, dims: Sequence[Dim], logical: ir.Value) -> ir.Value:
        """Return where the elements with these row-major logical indices lie, row-major.

        Indices beyond the logical size give some position within the tensor.
        """
        spec = spec_of(logical)
        atoms = [atom for dim in dims for atom in dim]
        rest = logical
        physical = hlo.full_like(logical, 0)
        stride = 1
        for position in reversed(range(len(atoms))):
            atom = atoms[position]
            digit = rest
            if position:
                size = hlo.broadcast_to(self.number(atom.size, spec.dtype), spec.shape)
                # A size of 0 has no positions to look for, but must not be divided by.
                size = stablehlo.maximum(size, hlo.full_like(size, 1))
                digit = stablehlo.remainder(rest, size)
                rest = stablehlo.divide(rest, size)
            scaled = stablehlo.multiply(digit, hlo.full_like(digit, stride))
            physical = stablehlo.add(physical, scaled)
            stride *= atom.physical
        zero, last = (hlo.scalar(edge, spec.dtype) for edge in (0, max(stride - 1, 0)))
        return stablehlo.clamp(zero, physical, last)

    def relayout(self, value: ir.Value, source: Sequence[Dim], target: Sequence[Dim]) -> ir.Value:
        """Return `value` with the elements of each dim where `target` has them.

        Dims correspond one to one and have the same logical sizes in a call, if perhaps by
        different symbols.
        """
        for position, (old, new) in enumerate(zip(source, target, strict=True)):
            if old == new:
                continue
            if is_prefix(old) and is_prefix(new):
                value = hlo.resized(value, physical_size(new), position)
            else:
                index = self.physical_index([old], self.linear_index([new]))
                value = take_along(value, index, position)
        return value

    def regrouped(self, value: ir.Value, source: Sequence[Dim], target: Sequence[Dim]) -> ir.Value:
        """Return `value` with its elements, in row-major order, where `target` has them."""
        shape = [physical_size(dim) for dim in target]
        elements = math.prod(physical_size(dim) for dim in source)
        if not elements or not math.prod(shape):
            return hlo.full(shape, spec_of(value).dtype, 0)
        wide = max(elements, math.prod(shape)) > _INT32_MAX
        dtype = torch.int64 if wide else torch.int32
        index = self.physical_index(source, self.linear_index(target, dtype))
        flat = hlo.reshape(value, [elements])
        return hlo.reshape(take_along(flat, hlo.reshape(index, [math.prod(shape)]), 0), shape)


def _whole(dim: Dim) -> Atom:
    """Return a dim whose real positions come first as one atom."""
    size = math.prod([atom.size for atom in dim])
    return Atom(size, physical_size(dim))


def take_along(value: ir.Value, index: ir.Value, dim: int) -> ir.Value:
    """Return the slices of `value` at a 1-d `index` of one dim, clamped to it."""
    spec = spec_of(value)
    shape = list(spec.shape)
    shape[dim] = index.type.shape[0]
    if 0 in (*spec.shape, *shape):
        return hlo.full(shape, spec.dtype, 0)
    numbers = stablehlo.GatherDimensionNumbers.get(
        offset_dims=[position for position in range(spec.rank) if position != dim],
        collapsed_slice_dims=[dim],
        operand_batching_dims=[],
        start_indices_batching_dims=[],
        start_index_map=[dim],
        index_vector_dim=1,
    )
    sizes = [1 if position == dim else size for position, size in enumerate(spec.shape)]
    return stablehlo.gather(value, index, numbers, sizes)


_FUNCTIONS: dict[str, Callable[..., ir.Value]] = {
    "FloorDiv": floored_quotient,
    "CleanDiv": floored_quotient,
    "Mod": remainder,
    "PythonMod": remainder,
    "Max": stablehlo.maximum,
    "Min": stablehlo.minimum,
}
"""Sympy functions of torch's size expressions, by name, on two values of one dtype."""

_OF_FRACTIONS: dict[str, Callable[..., ir.Value]] = {
    "IntTrueDiv": stablehlo.divide,
    "FloatTrueDiv": stablehlo.divide,
    "FloatPow": stablehlo.power,
    "ToFloat": lambda operand: operand,
    "OpaqueUnaryFn_sqrt": stablehlo.sqrt,
    "OpaqueUnaryFn_log": stablehlo.log,
}
"""The same, of fractions."""
