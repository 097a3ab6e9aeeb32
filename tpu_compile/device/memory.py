"""How much memory the device's arrays take: `torch.tpu.memory_allocated` and its kin.

A TPU counts its memory itself. The CPU client does not; there it is the sum over the arrays that
live, and the peak is the largest sum that was seen when someone asked.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from tpu_compile.device.client import device_client
from tpu_compile.device.trace import LOCK, flush
from tpu_compile.errors import DeviceError

# PJRT's name of a count -> torch's.
_NAMES = {
    "bytes_in_use": "allocated_bytes.all.current",
    "peak_bytes_in_use": "allocated_bytes.all.peak",
    "bytes_reserved": "reserved_bytes.all.current",
    "peak_bytes_reserved": "reserved_bytes.all.peak",
    "num_allocs": "allocation.all.allocated",
    "largest_alloc_size": "largest_allocation_bytes",
    "bytes_limit": "limit_bytes",
}
_CURRENT = _NAMES["bytes_in_use"]
_PEAK = _NAMES["peak_bytes_in_use"]

# The largest sum that was seen where the client does not count.
_seen_peak = 0


def memory_stats(device: Any = None) -> OrderedDict[str, int]:
    """The counts of the device's memory by name, sorted; sizes in bytes."""
    global _seen_peak
    with LOCK:
        flush()
        client = device_client()
        counts = client.memory_counts()
        stats = {_NAMES[name]: count for name, count in counts.items() if name in _NAMES}
        if _CURRENT not in stats:
            stats[_CURRENT] = client.live_bytes()
            _seen_peak = max(_seen_peak, stats[_CURRENT])
            stats[_PEAK] = _seen_peak
    return OrderedDict(sorted(stats.items()))


def memory_allocated(device: Any = None) -> int:
    """The bytes that arrays on the device take now."""
    return memory_stats()[_CURRENT]


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes that arrays took; on the CPU, the most that a call of these functions saw."""
    return memory_stats()[_PEAK]


def memory_reserved(device: Any = None) -> int:
    """The bytes that the client holds: what arrays take, where it does not count others."""
    stats = memory_stats()
    return stats.get(_NAMES["bytes_reserved"], stats[_CURRENT])


def max_memory_reserved(device: Any = None) -> int:
    """The most bytes that the client held."""
    stats = memory_stats()
    return stats.get(_NAMES["peak_bytes_reserved"], stats[_PEAK])


def reset_peak_memory_stats(device: Any = None) -> None:
    """Start the peak anew where the client leaves the counting to us; a TPU keeps its own."""
    global _seen_peak
    _seen_peak = 0


reset_accumulated_memory_stats = reset_peak_memory_stats


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """The free and the total bytes of the device.

    Raises:
        DeviceError: the client does not tell, as on the CPU.
    """
    stats = memory_stats()
    total = stats.get(_NAMES["bytes_limit"])
    if total is None:
        raise DeviceError(
            "The size of the device's memory is not known",
            why=f"the PJRT client for {device_client().platform!r} does not tell",
        )
    return total - stats[_CURRENT], total


def empty_cache() -> None:
    """Nothing: PJRT keeps no memory that other programs could have."""
