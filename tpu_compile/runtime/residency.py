"""The copies of parameters and buffers that a device holds, and when one is stale.

A copy is reused while the tensor is the same object, at the same address, with the same version
counter. Optimizers, `load_state_dict` and every in-place op raise the version; writes through
`.data`, NumPy or dlpack do not, which is what `tpu_compile.invalidate` is for.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from typing import Any

import torch


class Resident:
    """A device copy of a tensor, with what tells whether it is still true."""

    __slots__ = ("array", "pointer", "reference", "version")

    def __init__(self, tensor: torch.Tensor, array: Any, reference: Any) -> None:
        self.reference = reference
        self.version = tensor._version
        self.pointer = tensor.data_ptr()
        self.array = array

    def is_true_for(self, tensor: torch.Tensor, ahead: int = 0) -> bool:
        """Whether the copy holds the present data of `tensor`.

        `ahead` is how far the caller knows the version to have been raised without a write.
        """
        return (
            self.reference() is tensor
            and self.version + ahead == tensor._version
            and self.pointer == tensor.data_ptr()
        )


class Residency:
    """The device copies of parameters and buffers, shared by every program of a client."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._residents: dict[tuple[int, tuple[int, ...]], Resident] = {}

    def find(self, tensor: torch.Tensor, order: tuple[int, ...], ahead: int = 0) -> Resident | None:
        """Return the copy of `tensor` in memory order `order` if it is still true."""
        resident = self._residents.get((id(tensor), order))
        if resident is None or not resident.is_true_for(tensor, ahead):
            return None
        return resident

    def take(self, tensor: torch.Tensor, order: tuple[int, ...], ahead: int = 0) -> Any:
        """Return the array of the true copy of `tensor` and forget it: it will be donated.

        None if there is no true copy.
        """
        with self._lock:
            resident = self.find(tensor, order, ahead)
            if resident is None:
                return None
            del self._residents[(id(tensor), order)]
            # Slots hold residents too: a version that no tensor has makes them stale there.
            resident.version = -1
            return resident.array

    def store(self, tensor: torch.Tensor, order: tuple[int, ...], array: Any) -> Resident | None:
        """Keep `array` as the copy of `tensor`; None for inference tensors (no version)."""
        if tensor.is_inference():
            return None
        key = (id(tensor), order)

        def forget(reference: Any) -> None:
            with self._lock:
                resident = self._residents.get(key)
                if resident is not None and resident.reference is reference:
                    del self._residents[key]

        with self._lock:
            resident = Resident(tensor, array, weakref.ref(tensor, forget))
            self._residents[key] = resident
            return resident

    def drop(self, tensors: Iterable[torch.Tensor]) -> None:
        """Forget the copies of `tensors`, so that the next call uploads them anew."""
        identities = {id(tensor) for tensor in tensors}
        with self._lock:
            for key in [key for key in self._residents if key[0] in identities]:
                # Slots hold residents too: a version that no tensor has makes them stale there.
                resident = self._residents.pop(key)
                resident.version = -1
                # torch does not swap a tensor that has weak references.
                resident.reference = _gone


def _gone() -> None:
    return None


def is_kept(tensor: torch.Tensor) -> bool:
    """Whether a tensor lives from call to call: a parameter, or a buffer that Dynamo marked."""
    return isinstance(tensor, torch.nn.Parameter) or hasattr(tensor, "_dynamo_static_input_type")
