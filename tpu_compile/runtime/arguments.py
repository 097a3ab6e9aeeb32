"""All arguments of one program at a time, for a client whose arrays alias host memory.

A call of a small program is short, and most of it would go into describing each tensor to jaxlib.
So arrays are made once and used again wherever that is true to the tensors:

- a parameter's array lies on the parameter's memory, and is true as long as that does not move;
- a small input is copied to memory of ours that an array lies on already;
- only a large input gets a new array at each call, on its own memory.
"""

from __future__ import annotations

import collections
import math
import operator
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tpu_compile.runtime.pjrt import Client, Put
from tpu_compile.runtime.residency import is_kept

# Copying this much takes less time than making an array does.
_MOST_COPIED_BYTES = 16 * 1024

_data_ptr = torch.Tensor.data_ptr


class HostArgument:
    """One argument that is a CPU tensor of the call, with what its arrays are made from."""

    __slots__ = ("copies", "index", "order", "place", "plan", "shape")

    def __init__(
        self,
        client: Client,
        place: int,
        index: int,
        physical: tuple[Sequence[int], torch.dtype],
        order: Sequence[int],
    ) -> None:
        """Describe an argument.

        Args:
            client: where the program runs.
            place: its position among the program's arguments.
            index: its position among the values of a call.
            physical: shape and dtype in memory order.
            order: the logical dims from the slowest to the fastest in memory.
        """
        self.place = place
        self.index = index
        self.shape, dtype = tuple(physical[0]), physical[1]
        self.order = None if tuple(order) == tuple(range(len(order))) else tuple(order)
        self.plan: Put = client.put_plan(self.shape, dtype)
        size = math.prod(self.shape) * dtype.itemsize
        self.copies = 0 < size <= _MOST_COPIED_BYTES and client.shares(dtype)

    def in_order(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor with its dims as they lie in memory."""
        return tensor if self.order is None else tensor.permute(self.order)


@dataclass(frozen=True)
class _Ways:
    """Which way each argument is brought; the same for every call until a tensor says otherwise."""

    kept: tuple[HostArgument, ...]
    copied: tuple[HostArgument, ...]
    other: tuple[HostArgument, ...]
    select_kept: Callable[[Sequence[Any]], Sequence[torch.Tensor]]


class _Bundle:
    """The arrays of one call; lent to one call at a time."""

    __slots__ = ("arrays", "copies", "epoch", "pointers", "ways")

    def __init__(self, ways: _Ways, arrays: list[Any], epoch: int) -> None:
        self.ways = ways
        self.arrays = arrays
        self.pointers: list[int] = []
        self.copies: list[torch.Tensor] = []
        self.epoch = epoch


class HostArguments:
    """Brings the arguments of one program to a client whose arrays alias host memory."""

    def __init__(
        self,
        client: Client,
        arguments: Sequence[HostArgument],
        constants: Sequence[tuple[int, Any]],
    ) -> None:
        """Take the tensors of the call, and each constant's array with its place."""
        self._client = client
        self._arguments = list(arguments)
        self._constants: list[Any] = [None] * (len(arguments) + len(constants))
        for place, array in constants:
            self._constants[place] = array
        self._ways: _Ways | None = None
        self._idle: collections.deque[_Bundle] = collections.deque()
        self._watched: list[weakref.ref[torch.Tensor]] = []
        self._epoch = 0

    def bring(self, args: Sequence[Any]) -> _Bundle:
        """Return the arrays of a call with the placeholders' values `args`."""
        try:
            bundle = self._idle.pop()
        except IndexError:
            bundle = self._new_bundle(args)
        else:
            if list(map(_data_ptr, bundle.ways.select_kept(args))) != bundle.pointers:
                bundle = self._new_bundle(args)
        arrays, ways = bundle.arrays, bundle.ways
        for way, copy in zip(ways.copied, bundle.copies, strict=True):
            copy.copy_(way.in_order(args[way.index]))
        for way in ways.other:
            arrays[way.place] = self._put(way, args[way.index])
        return bundle

    def give_back(self, bundle: _Bundle) -> None:
        """Take a bundle whose program has run: the next call writes to the memory of its arrays."""
        for way in bundle.ways.other:
            # It holds the memory of a tensor that is the user's to let go of.
            bundle.arrays[way.place] = None
        if bundle.epoch == self._epoch:
            self._idle.append(bundle)

    def _put(self, way: HostArgument, tensor: torch.Tensor) -> Any:
        return self._client.put(way.in_order(tensor).contiguous(), way.plan)

    def _new_bundle(self, args: Sequence[Any]) -> _Bundle:
        ways = self._ways
        if ways is None:
            ways = self._ways = _ways([(way, is_kept(args[way.index])) for way in self._arguments])
        while True:
            bundle = _Bundle(ways, list(self._constants), self._epoch)
            moved = self._keep(bundle, args)
            if not moved:
                break
            ways = self._ways = _ways(
                [(way, way in ways.kept and way not in moved) for way in self._arguments]
            )
        # Bundles of other ways or of memory that is no longer a parameter's are not worth keeping.
        self._idle.clear()
        self._add_copies(bundle)
        return bundle

    def _keep(self, bundle: _Bundle, args: Sequence[Any]) -> list[HostArgument]:
        """Make the arrays of the parameters; return those that cannot lie on their memory."""
        failed = []
        tensors = []
        for way in bundle.ways.kept:
            tensor = args[way.index]
            pointer = tensor.data_ptr()
            dense = way.in_order(tensor).contiguous()
            array = self._client.put(dense, way.plan)
            if dense.data_ptr() != pointer or not self._client.aliases(array, dense):
                failed.append(way)
                continue
            bundle.arrays[way.place] = array
            bundle.pointers.append(pointer)
            tensors.append(tensor)
        if not failed:
            self._watched = [weakref.ref(tensor, self._forget) for tensor in tensors]
        return failed

    def _add_copies(self, bundle: _Bundle) -> None:
        # A tensor that is made in inference mode could not be written to outside of it.
        with torch.inference_mode(False):
            for way in bundle.ways.copied:
                copy = torch.empty(way.shape, dtype=way.plan.dtype, device="cpu")
                array = self._client.put(copy, way.plan)
                assert self._client.aliases(array, copy), "memory of torch's own is aligned"
                bundle.arrays[way.place] = array
                bundle.copies.append(copy)

    def _forget(self, _: object = None) -> None:
        """Let go of the arrays on a parameter that is no more: they hold its memory."""
        self._epoch += 1
        self._watched = []
        self._idle.clear()


def _ways(arguments: Sequence[tuple[HostArgument, bool]]) -> _Ways:
    kept = tuple([way for way, is_kept in arguments if is_kept])
    rest = [way for way, is_kept in arguments if not is_kept]
    return _Ways(
        kept,
        tuple([way for way in rest if way.copies]),
        tuple([way for way in rest if not way.copies]),
        _selector([way.index for way in kept]),
    )


def _selector(indices: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[torch.Tensor]]:
    """Return what takes the items at `indices` out of a sequence."""
    if len(indices) > 1:
        return operator.itemgetter(*indices)
    if indices:
        (only,) = indices
        return lambda args: (args[only],)
    return lambda args: ()
