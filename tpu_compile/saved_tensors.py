"""Tensors saved for backward, which stay padded on their way from the forward graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import sympy
import torch

from lowering.bucketing.bounds import Bounds
from lowering.importer import padded_layout
from lowering.sizes import Bindings
from tpu_compile.framing import Fit, evaluator

# Far more than any model saves; an entry is a few words.
_MOST_TENSORS = 1 << 16


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


class Call(NamedTuple):
    """The sizes of one call of a forward graph, by symbol, and the buckets that it ran in."""

    sizes: Mapping[sympy.Expr, int]
    buckets: Mapping[sympy.Expr, int]


@dataclass
class Family:
    """What a forward graph tells its backward: how the tensors that it leaves padded lie."""

    layouts: dict[int, tuple[tuple[Any, ...], ...]] = field(default_factory=dict)
    """By placeholder of the backward: the sizes of the atoms of each dim."""
    calls: dict[int, Call] = field(default_factory=dict)
    """By the address of a tensor left padded, the forward call that left it so. A tensor that is
    still there is the last that was put at its address."""
    backward: Any = None
    """The `GraphExecutable` of the backward, if it is one."""

    def leave(self, tensors: Sequence[torch.Tensor], call: Call | None) -> None:
        """Note which call left these tensors padded; None if they have real sizes."""
        for tensor in tensors:
            self.calls.pop(tensor.data_ptr(), None)
            if call is not None:
                self.calls[tensor.data_ptr()] = call
        while len(self.calls) > _MOST_TENSORS:
            self.calls.pop(next(iter(self.calls)), None)

    def buckets_of(
        self, args: Sequence[Any], bindings: Bindings
    ) -> Mapping[sympy.Expr, int] | None:
        """Return the buckets of the forward call that left padding in these arguments.

        None if none did: the user's hooks saw the saved tensors, so they were never padded.
        """
        for index, dims in self.layouts.items():
            call = self.calls.get(args[index].data_ptr())
            if call is None or any(
                call.sizes.get(symbol, size) != size for symbol, size in bindings.items()
            ):
                return None
            if _physical_shape(dims, Bounds(call.buckets)) != tuple(args[index].shape):
                return None
            return call.buckets
        return None

    def without_padding(self, args: Sequence[Any], bindings: Bindings) -> list[Any]:
        """Return a backward's arguments with what the forward left padded cut to real sizes."""
        given = list(args)
        buckets = self.buckets_of(args, bindings)
        if buckets is None:
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
