"""The physical size of a dim: the largest value of its expression when each symbol is in range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy

from lowering.bucketing.atoms import monomial
from lowering.sizes import Sizes, UnboundSizeError, expression


class UnboundedSizeError(Exception):
    """No bound is known for an expression, so it cannot be padded."""


class Bounds(Sizes):
    """Gives shapes that hold every value of the symbols up to their buckets.

    What grows with each symbol is bounded by its value at the buckets; anything else (a difference
    of symbols) by the upper end of interval arithmetic, with each symbol from 0 to its bucket.
    """

    def __init__(self, buckets: Mapping[sympy.Expr, int]) -> None:
        super().__init__(buckets)
        self._buckets = dict(buckets)
        self._bounds: dict[sympy.Expr, int] = {}

    def shape(self, sizes: Sequence[Any]) -> tuple[int, ...]:
        """Return the physical size of each.

        Raises:
            UnboundedSizeError: no bound is known for one.
        """
        return tuple([size if type(size) is int else self.bound(size) for size in sizes])

    def bound(self, size: Any) -> int:
        """Return the physical size of a number, a SymInt or an expression."""
        expr = expression(size)
        if isinstance(expr, int) or expr.is_Integer:
            return int(expr)
        if expr not in self._bounds:
            self._bounds[expr] = self._bound(expr)
        return self._bounds[expr]

    def is_known(self, size: Any) -> bool:
        """Whether the symbols of `size` are among those that have buckets."""
        return self._buckets.keys() >= getattr(expression(size), "free_symbols", frozenset())

    def _bound(self, expr: sympy.Expr) -> int:
        if expr in self._buckets:
            return self._buckets[expr]
        factors = monomial(expr)
        bound = factors.coefficient
        for base, power in factors.powers:
            bound *= self._interval(base)[1] ** power
        return max(bound, 0)

    def _interval(self, expr: Any) -> tuple[int, int]:
        if expr in self._buckets:
            return 0, self._buckets[expr]
        if expr.is_Integer:
            return int(expr), int(expr)
        if expr.is_Symbol:
            raise UnboundSizeError(str(expr))
        name = type(expr).__name__
        parts = [self._interval(part) for part in expr.args]
        lows, highs = [low for low, _ in parts], [high for _, high in parts]
        if expr.is_Add:
            return sum(lows), sum(highs)
        if expr.is_Mul:
            low, high = 1, 1
            for a, b in parts:
                ends = [low * a, low * b, high * a, high * b]
                low, high = min(ends), max(ends)
            return low, high
        if expr.is_Pow and expr.exp.is_Integer and expr.exp > 0 and lows[0] >= 0:
            return lows[0] ** int(expr.exp), highs[0] ** int(expr.exp)
        if name in ("FloorDiv", "CleanDiv") and lows[1] >= 0:
            divisors = max(lows[1], 1), max(highs[1], 1)
            ends = [end // divisor for end in (lows[0], highs[0]) for divisor in divisors]
            return min(ends), max(ends)
        if name in ("Mod", "PythonMod") and lows[1] == highs[1] > 0:
            return 0, lows[1] - 1
        if name == "Max":
            return max(lows), max(highs)
        if name == "Min":
            return min(lows), min(highs)
        raise UnboundedSizeError(str(expr))
