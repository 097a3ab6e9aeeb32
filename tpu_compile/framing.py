"""Host copies between the sizes of a call and those of a padded program.

A `Fit` belongs to one tensor: it pads a tensor of the call's sizes into a buffer of physical
sizes, and cuts a physical result to the call's. Neither compiles anything.
"""

from __future__ import annotations

import contextlib
import contextvars
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sympy
import torch

from lowering.bucketing.atoms import Layout
from lowering.sizes import Bindings

# What padding is filled with; None leaves in it whatever an earlier call left.
_FILL: contextvars.ContextVar[Callable[[torch.dtype], Any] | None] = contextvars.ContextVar(
    "padding_fill", default=None
)


def poison(dtype: torch.dtype) -> Any:
    """Return what no real element should be made of: NaN, the largest integer, or True."""
    if dtype.is_floating_point or dtype.is_complex:
        return math.nan
    return True if dtype is torch.bool else torch.iinfo(dtype).max


@contextlib.contextmanager
def padding_filled(fill: Callable[[torch.dtype], Any]) -> Iterator[None]:
    """Fill the padding of each call in the block with `fill(dtype)`: how tests look for leaks."""
    token = _FILL.set(fill)
    try:
        yield
    finally:
        _FILL.reset(token)


def evaluator(bindings: Bindings) -> Callable[[Any], int]:
    """Return the function that gives the value of a size, a number or an expression."""
    numbers = {symbol: sympy.sympify(value) for symbol, value in bindings.items()}

    def value_of(size: Any) -> int:
        return size if isinstance(size, int) else int(size.xreplace(numbers))

    return value_of


class Fit:
    """How one tensor of a call lies in its physical buffer."""

    def __init__(
        self, layout: Layout, order: Sequence[int], value_of: Callable[[Any], int], *, poisons: bool
    ) -> None:
        """Take the layout and memory order of the physical tensor.

        `value_of` gives the size of an atom in this call; `poisons` fills padding at every call.
        """
        self._order = tuple(order)
        self._inverse = [self._order.index(dim) for dim in range(len(self._order))]
        self.shape = layout.shape
        """The physical shape."""
        self._memory_shape = [self.shape[dim] for dim in self._order]
        self._physical_atoms = [atom.physical for dim in layout.dims for atom in dim]
        self._atoms = [value_of(atom.size) for dim in layout.dims for atom in dim]
        self.logical_shape = tuple(
            [math.prod([value_of(atom.size) for atom in dim]) for dim in layout.dims]
        )
        """The call's shape."""
        self._poisons = poisons
        self.is_exact = self._atoms == self._physical_atoms
        """Whether there is no padding."""

    @property
    def padding(self) -> int:
        """Number of padded elements."""
        return math.prod(self.shape) - self.useful

    @property
    def useful(self) -> int:
        """Number of real elements."""
        return math.prod(self.logical_shape)

    def new_buffer(self, dtype: torch.dtype) -> torch.Tensor:
        """Return a buffer to pad into, of the physical shape."""
        return torch.zeros(self._memory_shape, dtype=dtype).permute(self._inverse)

    def pad(self, tensor: torch.Tensor, buffer: torch.Tensor) -> None:
        """Copy a tensor of the call's shape into a buffer of the physical shape."""
        fill = _FILL.get() or (poison if self._poisons else None)
        if fill is not None:
            buffer.fill_(fill(buffer.dtype))
        target = self._real_part(buffer)
        target.copy_(tensor.reshape(target.shape))

    def cut(self, result: torch.Tensor) -> torch.Tensor:
        """Return a physical result, given in memory order, as a tensor of the call's shape.

        A view where the real elements lie together.
        """
        if self.is_exact:
            return result.permute(self._inverse)
        return self._real_part(result.permute(self._inverse)).reshape(self.logical_shape)

    def _real_part(self, physical: torch.Tensor) -> torch.Tensor:
        split = physical.view(self._physical_atoms)
        for dim, size in enumerate(self._atoms):
            if size != self._physical_atoms[dim]:
                split = split.narrow(dim, 0, size)
        return split
