"""Tensors saved for backward, which stay padded on their way from the forward graph."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch

from lowering.bucketing.bounds import Bounds
from lowering.importer import padded_layout
from lowering.sizes import Bindings
from tpu_compile.framing import Fit, evaluator

# Saved tensors that wait for their backward: more than any model has, of a step or two.
_MOST_ORIGINS = 4096


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
    _origins: collections.OrderedDict[int, dict[sympy.Expr, int]] = field(
        default_factory=collections.OrderedDict
    )
    """By address of a saved tensor: the buckets that it was left padded in. The latest ones."""

    def left(self, saved: torch.Tensor, buckets: dict[sympy.Expr, int]) -> None:
        """Note in which buckets a saved tensor was left padded."""
        address = saved.data_ptr()
        self._origins[address] = buckets
        self._origins.move_to_end(address)
        if len(self._origins) > _MOST_ORIGINS:
            self._origins.popitem(last=False)

    def buckets_of(self, args: Sequence[Any], bindings: Bindings) -> dict[sympy.Expr, int] | None:
        """Return the buckets of the forward program that left padding in these arguments.

        None if none did. Several programs may leave the same physical shapes (4 * 8 is 8 * 4, or
        they differ in a size that no saved tensor has), so the one that was noted comes first.
        """
        noted = [self._origins.get(args[index].data_ptr()) for index in self.layouts]
        for buckets in [*noted[:1], *reversed(self.buckets)]:
            if buckets is not None and self._lie_in(args, Bounds(buckets), bindings):
                return buckets
        return None

    def _lie_in(self, args: Sequence[Any], bounds: Bounds, bindings: Bindings) -> bool:
        """Whether the saved tensors among the arguments may be padded so."""
        if any(
            _physical_shape(dims, bounds) != tuple(args[index].shape)
            for index, dims in self.layouts.items()
        ):
            return False
        value_of = evaluator(bindings)
        sizes = {size for dims in self.layouts.values() for dim in dims for size in dim}
        return all(value_of(size) <= bounds.bound(size) for size in sizes)

    def without_padding(self, args: Sequence[Any], bindings: Bindings) -> list[Any]:
        """Return a backward's arguments with what the forward left padded cut to real sizes."""
        given = list(args)
        buckets = self.buckets_of(args, bindings) if self.layouts else None
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
