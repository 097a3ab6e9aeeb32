"""Random programs over tensors with dynamic sizes, as Python source that can be read and pasted.

A program takes `x` [b, s, 4] and `y` [s, t] (float64), `k` [b, t] (int64) and `i` [t] (positions,
int64), of three dynamic sizes b, s and t. It gives back every value that it makes and does not use.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import sympy
import torch
from hypothesis import strategies as st

B, S, T = sympy.symbols("b s t", positive=True, integer=True)

SIZES = [(3, 5, 7), (6, 8, 5)]
"""Values of b, s and t; those of one call differ, from each other and from the fixed sizes."""

_LARGEST = 3000  # elements, at any of the sizes
_FIXED = 4

Shape = tuple[Any, ...]


class Value(NamedTuple):
    """A variable of a program."""

    name: str
    shape: Shape
    is_float: bool


class Move(NamedTuple):
    """An expression that could come next, and what it gives."""

    source: str
    shape: Shape
    is_float: bool
    uses: tuple[str, ...]


class Program(NamedTuple):
    """Source of a function `program(x, y, k, i)`."""

    source: str
    shapes: tuple[Shape, ...]
    """Of its results, in terms of b, s and t."""
    has_gradients: bool
    """Whether any result is of floats."""

    def __repr__(self) -> str:
        return "\n" + self.source

    def function(self) -> Callable[..., Any]:
        """Return the function."""
        namespace: dict[str, Any] = {"torch": torch}
        exec(self.source, namespace)
        return namespace["program"]  # type: ignore[no-any-return]


def inputs(b: int, s: int, t: int) -> list[torch.Tensor]:
    """Return the arguments of a program at these sizes."""
    return [
        torch.randn(b, s, _FIXED, dtype=torch.float64),
        torch.randn(s, t, dtype=torch.float64),
        torch.randint(-9, 9, (b, t)),
        torch.randint(0, 1000, (t,)),
    ]


@st.composite
def programs(draw: st.DrawFn, most: int = 6) -> Program:
    """Draw a program of up to `most` steps."""
    values = [
        Value("x", (B, S, sympy.Integer(_FIXED)), True),
        Value("y", (S, T), True),
        Value("k", (B, T), False),
    ]
    lines = []
    unused: dict[str, None] = {}
    for step in range(draw(st.integers(1, most))):
        # Mostly the last one: chains find more than independent steps.
        value = draw(st.sampled_from([values[-1]] * len(values) + values[::-1]))
        kind = draw(st.sampled_from(KINDS))
        moves = [move for move in kind(value, values) if _is_allowed(move.shape)]
        if not moves:
            continue
        move = draw(st.sampled_from(moves))
        name = f"v{step}"
        lines.append(f"{name} = {move.source}")
        values.append(Value(name, move.shape, move.is_float))
        for used in move.uses:
            unused.pop(used, None)
        unused[name] = None
    if not lines:
        lines, unused = ["v0 = x.sum(1)"], {"v0": None}
        values.append(Value("v0", (B, sympy.Integer(_FIXED)), True))
    results = [value for value in values if value.name in unused]
    body = [
        "b, s = x.shape[0], x.shape[1]",
        "t = y.shape[1]",
        *lines,
        f"return ({', '.join(value.name for value in results)},)",
    ]
    head = "def program(x, y, k, i):"
    source = "\n".join([head, *["    " + line for line in body]]) + "\n"
    shapes = tuple(value.shape for value in results)
    return Program(source, shapes, any(value.is_float for value in results))


@functools.cache
def size_at(size: Any, sizes: tuple[int, int, int]) -> int:
    """Return what an expression of b, s and t is at their values `sizes`."""
    return int(sympy.sympify(size).subs(dict(zip((B, S, T), sizes, strict=True))))


def _is_allowed(shape: Shape) -> bool:
    """Whether the shape is neither large nor, where dynamic, below 2: torch treats those apart."""
    if len(shape) > 5:
        return False
    for sizes in SIZES:
        known = [size_at(size, sizes) for size in shape]
        if math.prod(known) > _LARGEST:
            return False
        if any(n < 2 and size != 1 for n, size in zip(known, shape, strict=True)):
            return False
    return True


# --- what may come next --------------------------------------------------------------------------


def _views(v: Value, values: Sequence[Value]) -> Iterator[Move]:
    rank = len(v.shape)
    shape = v.shape

    def move(source: str, result: Sequence[Any]) -> Move:
        return Move(source, tuple(result), v.is_float, (v.name,))

    for first in range(rank - 1):
        merged = (*shape[:first], shape[first] * shape[first + 1], *shape[first + 2 :])
        yield move(f"{v.name}.flatten({first}, {first + 1})", merged)
    for first, second in itertools.combinations(range(rank), 2):
        order = list(range(rank))
        order[first], order[second] = second, first
        yield move(f"{v.name}.transpose({first}, {second})", [shape[dim] for dim in order])
    for dim in range(rank + 1):
        yield move(f"{v.name}.unsqueeze({dim})", (*shape[:dim], sympy.Integer(1), *shape[dim:]))
    for dim in range(rank):
        if shape[dim] == 1:
            yield move(f"{v.name}.squeeze({dim})", shape[:dim] + shape[dim + 1 :])
            for size in (B, T):
                names = [str(size) if d == dim else "-1" for d in range(rank)]
                wide = (*shape[:dim], size, *shape[dim + 1 :])
                yield move(f"{v.name}.expand({', '.join(names)})", wide)
    yield from _regroupings(v)


def _regroupings(v: Value) -> Iterator[Move]:
    """Reshapes to other groupings of the same factors, in the same order and in others."""
    factors = [factor for size in v.shape for factor in _factors(size)]
    if None in factors or len(factors) < 2:
        return
    for order in itertools.islice(itertools.permutations(range(len(factors))), 6):
        ordered = [factors[position] for position in order]
        numbers = [size.is_Integer for size in ordered]
        if ordered != factors and numbers != sorted(numbers):
            # A number split off the front of a dynamic size: torch then guards that it divides it.
            continue
        for cut in range(1, len(ordered) + 1):
            shape = (sympy.Mul(*ordered[:cut]), *ordered[cut:])
            if shape != v.shape:
                names = ", ".join(str(size) for size in shape)
                yield Move(f"{v.name}.reshape({names})", shape, v.is_float, (v.name,))


def _factors(size: Any) -> list[Any]:
    """Return the symbols and the number that a size is a product of; [None] if it is none."""
    if size == 1:
        return []
    found = []
    for base, power in sympy.sympify(size).as_powers_dict().items():
        if not (base.is_Symbol or base.is_Integer):
            return [None]
        found += [base] * int(power)
    return sorted(found, key=str)


def _reductions(v: Value, values: Sequence[Value]) -> Iterator[Move]:
    names = ["sum", "amax", "amin"] + (["mean", "logsumexp", "std"] if v.is_float else [])
    rank = len(v.shape)
    for dim in range(0 if v.is_float else rank):
        rest = v.shape[:dim] + v.shape[dim + 1 :]
        yield Move(f"({v.name} > 0).any({dim}) * 2", rest, False, (v.name,))
    for name, dim in itertools.product(names, range(rank)):
        rest = v.shape[:dim] + v.shape[dim + 1 :]
        kept = (*v.shape[:dim], sympy.Integer(1), *v.shape[dim + 1 :])
        yield Move(f"{v.name}.{name}({dim})", rest, v.is_float, (v.name,))
        yield Move(f"{v.name}.{name}({dim}, keepdim=True)", kept, v.is_float, (v.name,))
    if rank > 1:
        for name in names:
            yield Move(f"{v.name}.{name}((0, -1))", v.shape[1:-1], v.is_float, (v.name,))


def _along(v: Value, values: Sequence[Value]) -> Iterator[Move]:
    """Ops that keep the shape and mix elements along one dim."""
    sources = ["{v}.cumsum({d})", "{v}.flip({d})", "{v}.roll(2, {d})", "{v}.sort({d}).values"]
    if v.is_float:
        sources += ["{v}.softmax({d})", "{v}.log_softmax({d})"]
    for source, dim in itertools.product(sources, range(len(v.shape))):
        yield Move(source.format(v=v.name, d=dim), v.shape, v.is_float, (v.name,))
    for dim in range(len(v.shape)):
        if v.shape[dim] != 1:
            topmost = (*v.shape[:dim], sympy.Integer(2), *v.shape[dim + 1 :])
            yield Move(f"{v.name}.topk(2, {dim}).values", topmost, v.is_float, (v.name,))
    if len(v.shape) >= 2:
        yield Move(f"{v.name}.tril()", v.shape, v.is_float, (v.name,))
    if v.is_float and v.shape and v.shape[-1] != 1:
        size = f"{v.name}.shape[-1:]"
        yield Move(f"torch.nn.functional.layer_norm({v.name}, {size})", v.shape, True, (v.name,))


def _slices(v: Value, values: Sequence[Value]) -> Iterator[Move]:
    for dim, size in enumerate(v.shape):
        before = ":, " * dim
        rest = v.shape[:dim], v.shape[dim + 1 :]
        if size == 1:
            continue
        for text, left in (
            ("1:", size - 1),
            (":-1", size - 1),
            ("-2:", sympy.Integer(2)),
            ("1::2", sympy.floor(size / 2)),
        ):
            yield Move(
                f"{v.name}[{before}{text}]", (*rest[0], left, *rest[1]), v.is_float, (v.name,)
            )
        for index in ("0", "-1", "-2"):
            yield Move(f"{v.name}[{before}{index}]", rest[0] + rest[1], v.is_float, (v.name,))


def _lookups(v: Value, values: Sequence[Value]) -> Iterator[Move]:
    rank = len(v.shape)
    for dim, size in enumerate(v.shape):
        if size == 1:
            continue
        before = ":, " * dim
        shape = (*v.shape[:dim], T, *v.shape[dim + 1 :])
        place = f"i % {v.name}.shape[{dim}]"
        yield Move(f"{v.name}.index_select({dim}, {place})", shape, v.is_float, (v.name,))
        negative = f"-1 - {place}"
        yield Move(f"{v.name}[{before}{negative}]", shape, v.is_float, (v.name,))
        if dim == rank - 1:
            lead = "".join(f"{v.name}.shape[{d}], " for d in range(dim))
            yield Move(
                f"{v.name}.gather({dim}, ({place}).expand({lead}t))", shape, v.is_float, (v.name,)
            )
            yield Move(
                f"{v.name}.scatter_add({dim}, ({place}).expand({lead}t), "
                f"{v.name}.index_select({dim}, {place}))",
                v.shape,
                v.is_float,
                (v.name,),
            )


def _pointwise(v: Value, values: Sequence[Value]) -> Iterator[Move]:
    if v.is_float:
        for source in ("{v}.sin()", "{v}.tanh()", "{v} * s", "{v} / b", "{v} + 2"):
            yield Move(source.format(v=v.name), v.shape, True, (v.name,))
    for w in values[::-1]:
        shape = _broadcast(v.shape, w.shape)
        if shape is None:
            continue
        is_float = v.is_float or w.is_float
        sources = ["{v} + {w}", "{v} * {w}", "torch.maximum({v}, {w})"]
        if is_float:
            sources.append("torch.where({v} > 0.3, {v}, {w})")
        for source in sources:
            text = source.format(v=v.name, w=w.name)
            yield Move(text, shape, is_float, (v.name, w.name))


def _broadcast(left: Shape, right: Shape) -> Shape | None:
    rank = max(len(left), len(right))
    one = sympy.Integer(1)
    pairs = zip(
        (*[one] * (rank - len(left)), *left), (*[one] * (rank - len(right)), *right), strict=True
    )
    shape = []
    for a, b in pairs:
        if a != b and 1 not in (a, b):
            return None
        shape.append(b if a == 1 else a)
    return tuple(shape)


def _products(v: Value, values: Sequence[Value]) -> Iterator[Move]:
    if not v.is_float or len(v.shape) < 2:
        return
    *lead, rows, columns = v.shape
    yield Move(f"{v.name} @ {v.name}.mT", (*lead, rows, rows), True, (v.name,))
    yield Move(f"{v.name}.mT @ {v.name}", (*lead, columns, columns), True, (v.name,))
    for w in values[::-1]:
        if not w.is_float or len(w.shape) < 2:
            continue
        batch = _broadcast(tuple(lead), w.shape[:-2])
        if batch is None:
            continue
        uses = (v.name, w.name)
        if w.shape[-2] == columns:
            yield Move(f"{v.name} @ {w.name}", (*batch, rows, w.shape[-1]), True, uses)
        if w.shape[-1] == columns:
            yield Move(f"{v.name} @ {w.name}.mT", (*batch, rows, w.shape[-2]), True, uses)


def _joins(v: Value, values: Sequence[Value]) -> Iterator[Move]:
    for w in values[::-1]:
        if len(w.shape) != len(v.shape) or v.is_float != w.is_float:
            continue
        for dim in range(len(v.shape)):
            rest = [
                (a, b) for d, (a, b) in enumerate(zip(v.shape, w.shape, strict=True)) if d != dim
            ]
            if all(a == b for a, b in rest):
                joined = (*v.shape[:dim], v.shape[dim] + w.shape[dim], *v.shape[dim + 1 :])
                text = f"torch.cat([{v.name}, {w.name}], {dim})"
                yield Move(text, joined, v.is_float, (v.name, w.name))
        if w is v:
            for dim, size in enumerate(v.shape):
                counts = ", ".join("2" if d == dim else "1" for d in range(len(v.shape)))
                twice = (*v.shape[:dim], 2 * size, *v.shape[dim + 1 :])
                yield Move(f"{v.name}.repeat({counts})", twice, v.is_float, (v.name,))
                text = f"{v.name}.repeat_interleave(2, {dim})"
                yield Move(text, twice, v.is_float, (v.name,))
        if w is v and v.shape:
            longer = (*v.shape[:-1], v.shape[-1] + 3)
            text = f"torch.nn.functional.pad({v.name}, (1, 2), value=5)"
            yield Move(text, longer, v.is_float, (v.name,))
        if w.shape == v.shape:
            for dim in (0, len(v.shape)):
                stacked = (*v.shape[:dim], sympy.Integer(2), *v.shape[dim:])
                text = f"torch.stack([{v.name}, {w.name}], {dim})"
                yield Move(text, stacked, v.is_float, (v.name, w.name))


KINDS = [_views, _reductions, _pointwise, _slices, _products, _joins, _lookups, _along]
"""The kinds of steps; a failing program shrinks to the first of them."""
