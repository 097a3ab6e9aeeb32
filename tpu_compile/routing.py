"""Which program of a graph a call runs in: the sizes that shape tensors, and their buckets."""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch import fx

from lowering.bucketing.bounds import Bounds, UnboundedSizeError
from lowering.sizes import UnboundSizeError, free_symbols, plain_size
from tpu_compile.buckets import BucketPolicy, Dimension
from tpu_compile.chooser import Choice, Chooser


class Router:
    """Which physical sizes a call runs in."""

    def __init__(
        self,
        graph_module: fx.GraphModule,
        symbols: Sequence[sympy.Expr],
        policy: BucketPolicy,
        dimensions: Callable[[Sequence[sympy.Expr]], list[Dimension]],
    ) -> None:
        """Choose for those of `symbols` that shape tensors of the graph.

        Args:
            graph_module: the graph.
            symbols: what the sizes of a call are values of, in their order.
            policy: gives the bucket of a size.
            dimensions: tells name and range of symbols.
        """
        self._symbols = tuple(symbols)
        self._shapes = _shapes(graph_module)
        shaping = {
            symbol for shape in self._shapes for size in shape for symbol in free_symbols(size)
        }
        self._places = [i for i, expr in enumerate(symbols) if shaping & free_symbols(expr)]
        self._costs: dict[tuple[int, ...], float] = {}
        self.dimensions = dimensions([symbols[place] for place in self._places])
        """Name and range of each symbol that is padded."""
        self.chooser = Chooser(policy, self.dimensions, self._cost)

    def _cost(self, chosen: tuple[int, ...]) -> float:
        """Return how many elements the tensors of the graph have when padded to `chosen`."""
        if chosen not in self._costs:
            bounds = Bounds(self.buckets(chosen))
            total = 1.0
            for shape, count in self._shapes.items():
                try:
                    total += count * math.prod(map(bounds.bound, shape))
                except (UnboundedSizeError, UnboundSizeError):
                    # What has no bound is not padded: it costs the same in every program.
                    continue
            self._costs[chosen] = total
        return self._costs[chosen]

    def choose(self, sizes: tuple[int, ...]) -> Choice:
        """Return the sizes of the program to run in, and those that have earned one."""
        return self.chooser.choose(self._shaping(sizes))

    def chosen(self, buckets: Mapping[sympy.Expr, int] | None) -> tuple[int, ...] | None:
        """Return the sizes for given buckets; None if they do not name each symbol."""
        if buckets is None or any(self._symbols[place] not in buckets for place in self._places):
            return None
        return tuple([buckets[self._symbols[place]] for place in self._places])

    def buckets_for(
        self, sizes: tuple[int, ...], named: Mapping[str, Sequence[int]]
    ) -> list[tuple[int, ...]]:
        """Return the buckets of these sizes, and of all combinations with `named` ones.

        Each once, the largest first.
        """
        choices = [
            named.get(dimension.name or "", [size])
            for dimension, size in zip(self.dimensions, self._shaping(sizes), strict=True)
        ]
        # One dimension after the other, or 31 batches by 1023 lengths would be 31,713 candidates.
        reduced = []
        for position, wanted in enumerate(choices):
            base = [sizes[0] for sizes in choices]
            seen = {}
            for size in wanted:
                at = tuple([*base[:position], size, *base[position + 1 :]])
                seen[self.chooser.candidate(at)[position]] = size
            reduced.append(list(seen.values()))
        found = {self.chooser.candidate(at) for at in itertools.product(*reduced)}
        return sorted(found, key=self._cost, reverse=True)

    def _shaping(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        return tuple([sizes[place] for place in self._places])

    def ran(self, sizes: tuple[int, ...], chosen: tuple[int, ...], seconds: float) -> None:
        """Account for a call."""
        self.chooser.ran(self._shaping(sizes), chosen, seconds)

    def buckets(self, chosen: tuple[int, ...]) -> dict[sympy.Expr, int]:
        """Return the physical size of every symbol; of those that shape nothing, 1."""
        sizes = dict(zip(self._places, chosen, strict=True))
        return {symbol: sizes.get(place, 1) for place, symbol in enumerate(self._symbols)}


def _shapes(graph_module: fx.GraphModule) -> collections.Counter[tuple[Any, ...]]:
    """Return the dynamic shapes of the graph's tensors, and how many tensors have each."""
    found: collections.Counter[tuple[Any, ...]] = collections.Counter()
    for node in graph_module.graph.nodes:
        value = node.meta.get("val")
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(item, torch.Tensor):
                shape = tuple(map(plain_size, item.shape))
                if any(map(free_symbols, shape)):
                    found[shape] += 1
    return found
