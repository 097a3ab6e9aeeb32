"""Tensors saved for backward, which stay padded on their way from the forward graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy

from lowering.bucketing.bounds import Bounds
from lowering.importer import padded_layout
from lowering.sizes import Bindings
from tpu_compile.framing import Fit, evaluator


@dataclass(frozen=True)
class Saved:
    """Which outputs of a forward graph are saved for its backward, and where they come in there."""

    first: int
    """Position of the first saved tensor among the outputs."""
    count: int
    placeholder: int
    """Position of the first saved tensor among the backward's placeholders."""
    are_seen: Callable[[], bool]
    """Whether something else than the backward looks at the saved tensors of this call."""


@dataclass
class Family:
    """What a forward graph tells its backward: how the tensors that it leaves padded lie."""

    layouts: dict[int, tuple[tuple[Any, ...], ...]] = field(default_factory=dict)
    """By placeholder of the backward: the sizes of the atoms of each dim."""
    buckets: list[dict[sympy.Expr, int]] = field(default_factory=list)
    """The physical size of each symbol, for each program of the forward."""
    backward: Any = None
    """The `GraphExecutable` of the backward, if it is one."""

    def buckets_of(self, args: Sequence[Any]) -> dict[sympy.Expr, int] | None:
        """Return the buckets of the forward program that left padding in these arguments."""
        for buckets in reversed(self.buckets):
            bounds = Bounds(buckets)
            if all(
                _physical_shape(dims, bounds) == tuple(args[index].shape)
                for index, dims in self.layouts.items()
            ):
                return buckets
        return None

    def without_padding(self, args: Sequence[Any], bindings: Bindings) -> list[Any]:
        """Return a backward's arguments with what the forward left padded cut to real sizes."""
        given = list(args)
        buckets = self.buckets_of(args) if self.layouts else None
        if buckets is None:
            # The user's hooks saw the saved tensors, so they were never padded.
            return given
        bounds = Bounds(buckets)
        for index, dims in self.layouts.items():
            layout = padded_layout(dims, bounds)
            order = range(len(layout.dims))
            fit = Fit(layout, order, evaluator(bindings), poisons=False)
            given[index] = fit.cut(args[index])
        return given


def _physical_shape(dims: Sequence[Sequence[Any]], bounds: Bounds) -> tuple[int, ...]:
    return tuple([math.prod([bounds.bound(size) for size in dim]) for dim in dims])
