"""Symbolic sizes made concrete: symbols bound from the arguments of a call, expressions evaluated.

An FX graph that Dynamo captured with dynamic shapes carries SymInts in its metadata. A program
is lowered for one binding of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch import fx

Bindings = Mapping[sympy.Expr, int | float]

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_NUMBERS = (*SYMBOLIC, int, float, complex)


def expression(size: Any) -> Any:
    """Return the sympy expression of a symbolic number; a plain number as it is."""
    return size.node.expr if isinstance(size, SYMBOLIC) else size


def plain_size(size: Any) -> Any:
    """Return a size as an int where it is one, else as an expression."""
    expr = expression(size)
    return int(expr) if isinstance(expr, sympy.Basic) and expr.is_Integer else expr


def free_symbols(size: Any) -> set[sympy.Symbol]:
    """Return the symbols of an expression; none for a number."""
    return set(getattr(size, "free_symbols", ()))


def is_number(node: fx.Node) -> bool:
    """Whether a node is a size computation: known from the call's arguments, never executed."""
    value = node.meta.get("val")
    # Most are tensors, and the check for that is the quick one.
    return not isinstance(value, torch.Tensor) and isinstance(value, _NUMBERS)


def representative(number: Any) -> Any:
    """Return a plain number of the same kind as `number`: where only its type matters."""
    if isinstance(number, torch.SymInt):
        return 1
    if isinstance(number, torch.SymFloat):
        return 1.0
    return True if isinstance(number, torch.SymBool) else number


def number_dtype(number: Any) -> torch.dtype:
    """Return the dtype that holds a number: int64, float64 or bool."""
    kind = type(representative(number))
    return torch.bool if kind is bool else torch.float64 if kind is float else torch.int64


class UnboundSizeError(KeyError):
    """A number has no value under this binding: only a run can tell it."""


def placeholder_symbols(
    placeholders: Sequence[fx.Node], *, skip: Collection[int] = ()
) -> list[tuple[sympy.Expr, int, int | None]]:
    """Return where each symbol is read: (expression, placeholder index, dim or None).

    The shapes of placeholders in `skip` say nothing.

    None as dim means that the placeholder is the number itself. Bare symbols come first;
    composite expressions are read whole only where nothing else gives them.
    """
    found: dict[sympy.Expr, tuple[int, int | None]] = {}
    for index, node in enumerate(placeholders):
        value = node.meta.get("val")
        if isinstance(value, SYMBOLIC):
            found.setdefault(expression(value), (index, None))
        elif isinstance(value, torch.Tensor) and index not in skip:
            for dim, size in enumerate(value.shape):
                if isinstance(size, torch.SymInt):
                    found.setdefault(expression(size), (index, dim))
    ordered = [
        (expr, index, dim)
        for expr, (index, dim) in sorted(
            found.items(), key=lambda item: (not getattr(item[0], "is_Symbol", False), str(item[0]))
        )
        if isinstance(expr, sympy.Expr) and not expr.is_number
    ]
    bare = {expr for expr, _, _ in ordered if expr.is_Symbol}
    return [item for item in ordered if item[0].is_Symbol or not item[0].free_symbols <= bare]


def bind(
    symbols: Sequence[tuple[sympy.Expr, int, int | None]], arguments: Sequence[Any]
) -> dict[sympy.Expr, int | float]:
    """Return the value of each symbol in this call's arguments."""
    return {
        expr: arguments[index] if dim is None else arguments[index].shape[dim]
        for expr, index, dim in symbols
    }


class Sizes:
    """Evaluates symbolic numbers under one binding."""

    def __init__(self, bindings: Bindings | None = None) -> None:
        self._bindings = dict(bindings or {})
        self._cache: dict[Any, Any] = {}

    def resolve(self, size: Any) -> Any:
        """Return `size` as a plain number; plain values pass through.

        Raises:
            UnboundSizeError: the expression holds a symbol without a binding.
        """
        if not isinstance(size, SYMBOLIC):
            return size
        expr = expression(size)
        if expr not in self._cache:
            self._cache[expr] = self._evaluate(expr, size)
        return self._cache[expr]

    def shape(self, sizes: Sequence[Any]) -> tuple[int, ...]:
        """Return every size as an integer."""
        shape = tuple(sizes)
        for size in shape:
            if type(size) is not int:
                return tuple([self.resolve(item) for item in shape])
        return shape

    def is_known(self, size: Any) -> bool:
        """Whether `size` has a value under this binding."""
        try:
            self.resolve(size)
        except UnboundSizeError:
            return False
        return True

    def within(self, bindings: Bindings, unknown: Collection[sympy.Expr] = ()) -> Sizes:
        """Return the sizes of a graph run by this one: `bindings` added, `unknown` taken out."""
        kept = {expr: value for expr, value in self._bindings.items() if expr not in unknown}
        return Sizes({**kept, **bindings})

    def _evaluate(self, expr: Any, size: Any) -> Any:
        value = expr
        if isinstance(expr, sympy.Basic):
            value = self._bindings.get(expr)
            if value is None:
                value = expr.xreplace(self._numbers())
        if getattr(value, "free_symbols", None):
            raise UnboundSizeError(str(expr))
        if isinstance(size, torch.SymInt):
            return int(value)
        return float(value) if isinstance(size, torch.SymFloat) else bool(value)

    def _numbers(self) -> dict[sympy.Expr, sympy.Expr]:
        return {expr: sympy.sympify(number) for expr, number in self._bindings.items()}
