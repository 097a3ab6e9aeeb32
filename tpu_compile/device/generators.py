"""Random numbers of the device: a seed and a count, from which each random op takes a key.

The key is taken when the op is called, so that results depend neither on when ops run nor on what
they are fused with, and so that a checkpoint that restores the state draws the same numbers again.
"""

from __future__ import annotations

import hashlib
import struct
import threading

import torch

_STATE = struct.Struct("<QQ")


class Generator:
    """The state of the device's random numbers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seed: int | None = None
        self._count = 0

    def seed(self, seed: int) -> None:
        """Start anew from `seed`, a 64-bit number."""
        with self._lock:
            self._seed, self._count = seed % (1 << 64), 0

    @property
    def initial_seed(self) -> int:
        """The seed of the numbers drawn now; torch's own until one is set."""
        with self._lock:
            return self._seeded()

    def _seeded(self) -> int:
        if self._seed is None:
            self._seed = torch.initial_seed() % (1 << 64)
        return self._seed

    def next_key(self) -> bytes:
        """Return 8 bytes that no other call of this seed gets."""
        with self._lock:
            state = _STATE.pack(self._seeded(), self._count)
            self._count += 1
        return hashlib.blake2b(state, digest_size=8).digest()

    def get_state(self) -> torch.Tensor:
        """Return the state as uint8[16] on the CPU."""
        with self._lock:
            data = _STATE.pack(self._seeded(), self._count)
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)

    def set_state(self, state: torch.Tensor) -> None:
        """Go back to a state that `get_state` gave.

        Raises:
            ValueError: it is no such state.
        """
        if state.dtype is not torch.uint8 or state.numel() != _STATE.size:
            raise ValueError(f"a state of the tpu's generator is uint8[{_STATE.size}]")
        with self._lock:
            self._seed, self._count = _STATE.unpack(bytes(state.cpu().tolist()))


DEFAULT = Generator()


def next_key(generator: torch.Generator | None) -> bytes:
    """Return the key of one random op, from the user's generator where one is given."""
    if generator is None:
        return DEFAULT.next_key()
    word = torch.empty((1,), dtype=torch.int64, device="cpu").random_(generator=generator)
    return struct.pack("<q", word.item())
