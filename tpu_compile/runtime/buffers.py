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

    __slots__ = ("_client", "_identity", "_kept", "_order", "_plan", "_reference")

    def __init__(
        self, client: Client, shape: Sequence[int], dtype: torch.dtype, order: Sequence[int]
    ) -> None:
        self._client = client
        self._order = tuple(order)
        self._identity = self._order == tuple(range(len(self._order)))
        self._plan = client.put_plan([shape[dim] for dim in order], dtype)
        self._forget()

    def array(self, tensor: torch.Tensor) -> Any:
        """Return an array with the tensor's present data."""
        # The kept array holds the memory, so no other tensor can have come to lie there. Address
        # and array are one tuple because another thread may replace them at any moment.
        pointer, array = self._kept
        if tensor.data_ptr() == pointer:
            return array
        dense = tensor if self._identity else tensor.permute(self._order)
        dense = dense.contiguous()
        array = self._client.put(dense, self._plan)
        if is_kept(tensor):
            self._keep(tensor, dense, array)
        return array

    def _keep(self, tensor: torch.Tensor, dense: torch.Tensor, array: Any) -> None:
        pointer = tensor.data_ptr()
        if dense.data_ptr() == pointer and self._client.aliases(array, dense):
            self._kept = (pointer, array)
            self._reference = weakref.ref(tensor, self._forget)

    def _forget(self, _: object = None) -> None:
        self._kept: tuple[int | None, Any] = (None, None)
        self._reference: object = None


class CopySlot:
    """Brings one argument to a client that holds copies."""

    __slots__ = ("_client", "_donated", "_order", "_plan", "_resident")

    def __init__(
        self,
        client: Client,
        shape: Sequence[int],
        dtype: torch.dtype,
        order: Sequence[int],
        *,
        donated: bool = False,
    ) -> None:
        self._client = client
        self._order = tuple(order)
        self._plan = client.put_plan([shape[dim] for dim in order], dtype)
        self._resident: Resident | None = None
        self._donated = donated

    def array(self, tensor: torch.Tensor) -> Any:
        """Return an array with the tensor's present data."""
        resident = self._resident
        if resident is not None and resident.is_true_for(tensor):
            return resident.array
        kept = is_kept(tensor) and not self._donated
        if is_kept(tensor):
            resident = self._client.residency.find(tensor, self._order)
            if resident is not None:
                self._resident = resident if kept else None
                return resident.array
        array = self._client.put(tensor.permute(self._order).contiguous(), self._plan)
        if kept:
            self._resident = self._client.residency.store(tensor, self._order, array)
        return array

    def replace(self, tensor: torch.Tensor, array: Any) -> None:
        """Make `array`, the new value of a mutated tensor, the copy of it."""
        if is_kept(tensor):
            self._client.residency.store(tensor, self._order, array)
