"""The `tpu` device: importing this module makes it one of torch's.

Without a TPU the device is the CPU, through XLA.
"""

from __future__ import annotations

from tpu_compile.device.fallback import set_fallback
from tpu_compile.device.modes import Mode, get_mode, mode, set_mode
from tpu_compile.device.registration import enable

__all__ = ["Mode", "enable", "get_mode", "mode", "set_fallback", "set_mode"]

enable()
