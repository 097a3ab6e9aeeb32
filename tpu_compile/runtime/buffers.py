"""Slots: each brings one argument of a program to the device, uploading only what changed.

Two kinds of client, two rules. The CPU client's arrays alias a tensor's memory, so a parameter's
array stays true through any write and is replaced when the tensor moves to other memory. A device
holds copies, see `tpu_compile.runtime.residency`.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from tpu_compile.runtime.pjrt import Client
from tpu_compile.runtime.residency import Resident, is_kept


class AliasSlot:
    """Brings one argument to a client whose arrays alias host memory."""

    __slots__ = (
        "_identity",
        "_is_kept",
        "_kept",
        "_order",
        "_plan",
        "_put",
        "_reference",
        "_shares",
    )

    def __init__(
        self, client: Client, shape: Sequence[int], dtype: torch.dtype, order: Sequence[int]
    ) -> None:
        self._put = client.put
        self._shares = client.aliases
        self._order = tuple(order)
        self._identity = self._order == tuple(range(len(self._order)))
        self._plan = client.put_plan([shape[dim] for dim in order], dtype)
        self._kept: tuple[int | None, Any] = (None, None)
        self._reference: weakref.ref[torch.Tensor] | None = None
        # Whether this argument lives from call to call is the same for every tensor given for it.
        self._is_kept: bool | None = None

    def array(self, tensor: torch.Tensor) -> Any:
        """Return an array with the tensor's present data."""
        # The kept array holds the memory, so no other tensor can have come to lie there. Address
        # and array are one tuple because another thread may replace them at any moment.
        pointer, array = self._kept
        if tensor.data_ptr() == pointer:
            return array
        dense = (tensor if self._identity else tensor.permute(self._order)).contiguous()
        array = self._put(dense, self._plan)
        if self._is_kept is None:
            self._is_kept = is_kept(tensor)
        if self._is_kept:
            self._keep(tensor, dense, array)
        return array

    def _keep(self, tensor: torch.Tensor, dense: torch.Tensor, array: Any) -> None:
        pointer = tensor.data_ptr()
        if dense.data_ptr() == pointer and self._shares(array, dense):
            self._kept = (pointer, array)
            self._reference = weakref.ref(tensor, self._forget)

    def _forget(self, _: object = None) -> None:
        self._kept = (None, None)
        self._reference = None


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
