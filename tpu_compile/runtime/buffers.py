"""Arguments brought to the device one by one, each by a slot of its own.

For clients that hold copies of tensors, where only what changed is uploaded (see
`tpu_compile.runtime.residency`), and for programs that take tensors of our own device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch

from tpu_compile.runtime.pjrt import Client
from tpu_compile.runtime.residency import Resident, is_kept


class Slot(Protocol):
    """Brings the tensors of one argument."""

    def array(self, tensor: torch.Tensor) -> Any:
        """Return an array with the tensor's present data."""


class Brought(Protocol):
    """What is lent to one call."""

    @property
    def arrays(self) -> list[Any]:
        """The arrays in the order of the program's arguments."""


class Arguments(Protocol):
    """Brings the arguments of one program."""

    def bring(self, args: Sequence[Any]) -> Brought:
        """Return the arrays of a call with the placeholders' values `args`."""

    def give_back(self, brought: Any) -> None:
        """Take back what `bring` gave, for another call.

        The caller must have waited until the program has run.
        """


class _Arrays(NamedTuple):
    arrays: list[Any]


class SlotArguments:
    """Brings the arguments of one program, each through its slot."""

    def __init__(
        self, slots: Sequence[tuple[int, Slot]], constants: Sequence[tuple[int, Any]]
    ) -> None:
        """Take the index of each placeholder with its slot, and each constant with its place.

        Both are in the order of the program's arguments.
        """
        self._slots = list(slots)
        self._constants = list(constants)

    def bring(self, args: Sequence[Any]) -> _Arrays:
        """Return the arrays of a call with the placeholders' values `args`."""
        arrays = [slot.array(args[index]) for index, slot in self._slots]
        for place, constant in self._constants:
            arrays.insert(place, constant)
        return _Arrays(arrays)

    def give_back(self, brought: _Arrays) -> None:
        """Do nothing: none of these arrays is used for another call."""


class HostSlot:
    """Brings one argument to a client whose arrays alias host memory: a new array each time."""

    __slots__ = ("_client", "_order", "_plan")

    def __init__(
        self, client: Client, shape: Sequence[int], dtype: torch.dtype, order: Sequence[int]
    ) -> None:
        self._client = client
        self._order = tuple(order)
        self._plan = client.put_plan([shape[dim] for dim in order], dtype)

    def array(self, tensor: torch.Tensor) -> Any:
        """Return an array with the tensor's present data."""
        return self._client.put(tensor.permute(self._order).contiguous(), self._plan)


class CopySlot:
    """Brings one argument to a client that holds copies."""

    __slots__ = ("_ahead", "_client", "_mutated", "_order", "_plan", "_resident")

    def __init__(
        self,
        client: Client,
        shape: Sequence[int],
        dtype: torch.dtype,
        order: Sequence[int],
        *,
        mutated: bool = False,
        ahead: int = 0,
    ) -> None:
        """Make a slot for tensors of `shape` and `dtype` that lie in memory as `order`.

        A `mutated` tensor's copy may be donated, so it is looked up at each call; AOTAutograd
        raises the version of some by one (`ahead`) before the call that writes to them.
        """
        self._client = client
        self._order = tuple(order)
        self._plan = client.put_plan([shape[dim] for dim in order], dtype)
        self._resident: Resident | None = None
        self._mutated = mutated
        self._ahead = ahead

    def array(self, tensor: torch.Tensor) -> Any:
        """Return an array with the tensor's present data."""
        resident = self._resident
        if resident is not None and resident.is_true_for(tensor):
            return resident.array
        if not is_kept(tensor):
            return self._put(tensor)
        residency = self._client.residency
        if self._mutated:
            array = residency.take(tensor, self._order, self._ahead)
            return self._put(tensor) if array is None else array
        resident = residency.find(tensor, self._order, self._ahead)
        if resident is None:
            resident = residency.store(tensor, self._order, self._put(tensor))
        self._resident = resident
        return self._put(tensor) if resident is None else resident.array

    def _put(self, tensor: torch.Tensor) -> Any:
        return self._client.put(tensor.permute(self._order).contiguous(), self._plan)

    def replace(self, tensor: torch.Tensor, array: Any) -> None:
        """Make `array`, the new value of a mutated tensor, the copy of it."""
        if is_kept(tensor):
            self._client.residency.store(tensor, self._order, array)
