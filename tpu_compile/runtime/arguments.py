"""All arguments of one program at a time, for a client whose arrays alias host memory.

A call of a small program is short, and most of it would go into describing each tensor to jaxlib.
So arrays are made once and used again wherever that is true to the tensors:

- a parameter's array lies on the parameter's memory, and is true as long as that does not move;
- a small input is copied to memory of ours that an array lies on already;
- only a large input gets a new array at each call, on its own memory.
"""

from __future__ import annotations

import collections
import functools
import math
import operator
import threading
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
    """Which way each argument is brought."""

    kept: tuple[HostArgument, ...]
    copied: tuple[HostArgument, ...]
    other: tuple[HostArgument, ...]
    kept_of: Callable[[Sequence[Any]], Sequence[torch.Tensor]]
    """Takes the tensors of `kept` out of the values of a call."""

    @staticmethod
    def of(arguments: Sequence[HostArgument], kept: Sequence[HostArgument]) -> _Ways:
        rest = [way for way in arguments if way not in kept]
        return _Ways(
            tuple(kept),
            tuple([way for way in rest if way.copies]),
            tuple([way for way in rest if not way.copies]),
            _selector([way.index for way in kept]),
        )


class _Owners:
    """The parameters of some calls, and the arrays that lie on their memory."""

    __slots__ = ("arrays", "idle", "is_known", "pointers", "watched", "ways")

    def __init__(self, ways: _Ways, pointers: list[int], arrays: list[Any]) -> None:
        self.ways = ways
        self.pointers = pointers
        self.arrays = arrays
        self.idle: collections.deque[_Bundle] = collections.deque()
        self.watched: list[weakref.ref[torch.Tensor]] = []
        self.is_known = True

    def drop(self) -> None:
        """Let go of everything; what is lent still is not taken back."""
        self.is_known = False
        self.watched = []
        self.idle.clear()


class _Bundle:
    """The arrays of one call; lent to one call at a time."""

    __slots__ = ("arrays", "copies", "owners")

    def __init__(self, owners: _Owners) -> None:
        self.owners = owners
        self.arrays = list(owners.arrays)
        self.copies: list[torch.Tensor] = []


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
        self._lock = threading.Lock()
        # By the identities of the parameters: layers of one structure share a program.
        self._known: dict[tuple[int, ...], _Owners] = {}
        self._latest: _Owners | None = None

    def bring(self, args: Sequence[Any]) -> _Bundle:
        """Return the arrays of a call with the placeholders' values `args`."""
        owners = self._latest
        # The arrays hold the memory, so nothing else can have come to lie there.
        if owners is None or list(map(_data_ptr, owners.ways.kept_of(args))) != owners.pointers:
            owners = self._latest = self._owners(args)
        try:
            bundle = owners.idle.pop()
        except IndexError:
            bundle = self._new_bundle(owners)
        arrays, ways = bundle.arrays, owners.ways
        for way, copy in zip(ways.copied, bundle.copies, strict=True):
            copy.copy_(way.in_order(args[way.index]))
        for way in ways.other:
            arrays[way.place] = self._put(way, args[way.index])
        return bundle

    def give_back(self, bundle: _Bundle) -> None:
        """Take a bundle whose program has run: the next call writes to the memory of its arrays."""
        owners = bundle.owners
        for way in owners.ways.other:
            # It holds the memory of a tensor that is the user's to let go of.
            bundle.arrays[way.place] = None
        if owners.is_known:
            owners.idle.append(bundle)

    def _put(self, way: HostArgument, tensor: torch.Tensor) -> Any:
        return self._client.put(way.in_order(tensor).contiguous(), way.plan)

    def _owners(self, args: Sequence[Any]) -> _Owners:
        """Return what lies on the parameters of this call, made anew if one has moved."""
        with self._lock:
            if self._ways is None:
                kept = [way for way in self._arguments if is_kept(args[way.index])]
                self._ways = _Ways.of(self._arguments, kept)
            tensors = self._ways.kept_of(args)
            key = tuple(map(id, tensors))
            owners = self._known.get(key)
            if owners is not None:
                if list(map(_data_ptr, owners.ways.kept_of(args))) == owners.pointers:
                    return owners
                owners.drop()
            owners = self._known[key] = self._new_owners(self._ways.kept, args)
            forget = functools.partial(_forget, weakref.ref(self), key)
            owners.watched = [weakref.ref(tensor, forget) for tensor in tensors]
            return owners

    def _new_owners(self, kept: Sequence[HostArgument], args: Sequence[Any]) -> _Owners:
        arrays, pointers = list(self._constants), []
        lying = []
        for way in kept:
            tensor = args[way.index]
            pointer = tensor.data_ptr()
            dense = way.in_order(tensor).contiguous()
            array = self._client.put(dense, way.plan)
            # Else the data was copied, and is brought at each call like that of any input.
            if dense.data_ptr() == pointer and self._client.aliases(array, dense):
                arrays[way.place] = array
                pointers.append(pointer)
                lying.append(way)
        return _Owners(_Ways.of(self._arguments, lying), pointers, arrays)

    def _new_bundle(self, owners: _Owners) -> _Bundle:
        bundle = _Bundle(owners)
        # A tensor that is made in inference mode could not be written to outside of it.
        with torch.inference_mode(False):
            for way in owners.ways.copied:
                copy = torch.empty(way.shape, dtype=way.plan.dtype, device="cpu")
                array = self._client.put(copy, way.plan)
                assert self._client.aliases(array, copy), "memory of torch's own is aligned"
                bundle.arrays[way.place] = array
                bundle.copies.append(copy)
        return bundle

    def forget(self, key: tuple[int, ...]) -> None:
        """Let go of the arrays on parameters of which one is no more: they hold its memory."""
        # No lock: garbage is collected at any moment, also within `_owners`.
        owners = self._known.pop(key, None)
        if owners is not None:
            owners.drop()
            if self._latest is owners:
                self._latest = None


def _forget(
    arguments: weakref.ref[HostArguments], key: tuple[int, ...], _: weakref.ref[torch.Tensor]
) -> None:
    owner = arguments()
    if owner is not None:
        owner.forget(key)


def let_go_of(tensor: torch.Tensor) -> None:
    """Forget the arrays that lie on a parameter's memory, and with them the weak references to it.

    torch does not swap a tensor that has any.
    """
    for reference in weakref.getweakrefs(tensor):
        callback = reference.__callback__
        if isinstance(callback, functools.partial) and callback.func is _forget:
            callback(reference)


def _selector(indices: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[torch.Tensor]]:
    """Return what takes the items at `indices` out of a sequence."""
    if len(indices) > 1:
        return operator.itemgetter(*indices)
    if indices:
        (only,) = indices
        return lambda args: (args[only],)
    return lambda args: ()
