"""The algebra of padded dims: what is where when a view splits and merges them.

A dim whose logical size is `b * s` may lie in memory as `b` blocks of 64 positions of which `s` are
real. So a dim is a sequence of atoms, slowest first, each a logical size and the physical size
that it is padded to: a mixed-radix number. A position is real when every digit of it is below its
atom's logical size. This module is arithmetic on sympy expressions only.
"""

from __future__ import annotations

import collections
import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import sympy


class Atom(NamedTuple):
    """A digit of a dim: its logical size, a number or an expression, and its physical size."""

    size: Any
    physical: int

    @property
    def is_static(self) -> bool:
        """Whether every position is real."""
        return isinstance(self.size, int)


Dim = tuple[Atom, ...]


class Layout(NamedTuple):
    """How a tensor is padded: its dims, and those along which the padding is known to be zero."""

    dims: tuple[Dim, ...]
    zeros: frozenset[int] = frozenset()

    @property
    def shape(self) -> tuple[int, ...]:
        """The physical shape."""
        return tuple([physical_size(dim) for dim in self.dims])

    @property
    def is_padded(self) -> bool:
        """Whether any position may be padding."""
        return any(is_padded(dim) for dim in self.dims)


def dim_of(size: Any, physical: int) -> Dim:
    """Return the dim of `size` (a number or an expression), real positions first."""
    if isinstance(size, sympy.Integer):
        size = int(size)
    if isinstance(size, int):
        return () if size == 1 else (Atom(size, size),)
    return (Atom(size, physical),)


def static_layout(shape: Iterable[int]) -> Layout:
    """Return the layout of a tensor without padding."""
    return Layout(tuple([dim_of(size, size) for size in shape]))


def physical_size(dim: Dim) -> int:
    """Return how many positions a dim has."""
    return math.prod([atom.physical for atom in dim])


def is_padded(dim: Dim) -> bool:
    """Whether some positions of a dim may be padding."""
    return any(not atom.is_static for atom in dim)


def is_prefix(dim: Dim) -> bool:
    """Whether the real positions of a dim come first: those below its logical size."""
    return not is_padded(dim[1:])


def logical_size(dim: Dim) -> Any:
    """Return the logical size, a number or an expression."""
    return math.prod([atom.size for atom in dim])


class Monomial(NamedTuple):
    """A size as an integer times powers of symbols and of sums that do not factor further."""

    coefficient: int
    powers: tuple[tuple[sympy.Expr, int], ...]

    @property
    def is_one(self) -> bool:
        """Whether it is the number 1."""
        return self.coefficient == 1 and not self.powers

    def over(self, other: Monomial) -> Monomial | None:
        """Return the quotient if it is whole for all values, else None."""
        if other.coefficient == 0 or self.coefficient % other.coefficient:
            return None
        powers = collections.Counter(dict(self.powers))
        for base, power in other.powers:
            powers[base] -= power
            if powers[base] < 0:
                return None
        return _monomial(self.coefficient // other.coefficient, powers)

    @property
    def size(self) -> Any:
        """The expression; an int if it is a number."""
        if not self.powers:
            return self.coefficient
        factors = [base**power for base, power in self.powers]
        return sympy.Mul(self.coefficient, *factors)


def _monomial(coefficient: int, powers: collections.Counter[sympy.Expr]) -> Monomial:
    kept = [(base, power) for base, power in powers.items() if power]
    return Monomial(coefficient, tuple(sorted(kept, key=lambda item: str(item[0]))))


@functools.lru_cache(maxsize=4096)
def monomial(size: Any) -> Monomial:
    """Return a size, a number or an expression, as a monomial."""
    if isinstance(size, int):
        return Monomial(size, ())
    coefficient, factors = sympy.factor_terms(sympy.factor(size)).as_coeff_mul()
    if not coefficient.is_Integer:
        # A fraction: s0 * (s0 + 1) / 2, say. It does not split.
        return Monomial(1, ((size, 1),))
    powers: collections.Counter[sympy.Expr] = collections.Counter()
    for factor in factors:
        base, power = factor.as_base_exp()
        if power.is_Integer and power > 0:
            powers[base] += int(power)
        else:
            powers[factor] += 1
    return _monomial(int(coefficient), powers)


def same_size(left: Any, right: Any) -> bool:
    """Whether two sizes are equal for all values of their symbols."""
    return left == right or monomial(left) == monomial(right)


def merged(atoms: Iterable[Atom]) -> Dim:
    """Return the atoms as a dim: static ones side by side become one, ones of size 1 go."""
    dim: list[Atom] = []
    for atom in atoms:
        if atom.is_static and atom.size == 1:
            continue
        if dim and dim[-1].is_static and atom.is_static:
            size = dim.pop().size * atom.size
            dim.append(Atom(size, size))
        else:
            dim.append(atom)
    return tuple(dim)


def view(dims: Sequence[Dim], sizes: Sequence[Any]) -> tuple[Dim, ...] | None:
    """Return the dims of a view with logical `sizes` that only renames physical positions.

    None if there is none: then real elements would have to move.
    """
    atoms = collections.deque(atom for dim in dims for atom in dim)
    result = []
    for size in sizes:
        taken = _take(atoms, monomial(size))
        if taken is None:
            return None
        result.append(merged(taken))
    return None if atoms else tuple(result)


def _take(atoms: collections.deque[Atom], need: Monomial) -> list[Atom] | None:
    """Take atoms worth `need` from the front, splitting one where it can be split."""
    taken = []
    while not need.is_one:
        if not atoms:
            return None
        atom = atoms.popleft()
        size = monomial(atom.size)
        rest = need.over(size)
        if rest is not None:
            taken.append(atom)
            need = rest
            continue
        split = _split(atom, size, need)
        if split is None:
            return None
        front, back = split
        taken.append(front)
        atoms.appendleft(back)
        divided = need.over(monomial(front.size))
        if divided is None:
            return None
        need = divided
    return taken


def _split(atom: Atom, size: Monomial, need: Monomial) -> tuple[Atom, Atom] | None:
    """Return the atom as a slower part that divides `need`, and the rest."""
    if atom.is_static:
        front = math.gcd(need.coefficient, atom.size)
        back = atom.size // front
        return (Atom(front, front), Atom(back, back)) if front > 1 else None
    # The first `front * back` positions, in rows of `back`, are the first `front` rows.
    rest = size.over(need)
    if rest is None or rest.powers or atom.physical % rest.coefficient:
        return None
    back = rest.coefficient
    return Atom(need.size, atom.physical // back), Atom(back, back)
