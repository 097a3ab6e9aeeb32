"""The exception classes that users catch; all under `TpuCompileError`."""

from __future__ import annotations

from lowering.errors import LoweringError, TpuCompileError, UnsupportedOpError

__all__ = [
    "CompilationError",
    "DeviceError",
    "FallbackWarning",
    "LoweringError",
    "OptionError",
    "RecompileError",
    "TpuCompileError",
    "TpuCompileWarning",
    "UnsupportedOpError",
]


class CompilationError(TpuCompileError):
    """XLA refused or failed to compile a module that passed StableHLO's verifier."""


class OptionError(TpuCompileError, ValueError):
    """An option, an environment variable or a mode has an unknown name or a bad value."""


class RecompileError(TpuCompileError):
    """More programs were compiled than `expect_compiles` allows."""


class DeviceError(TpuCompileError):
    """A platform, plugin, device, or the placement of a tensor is not what a call needs."""


class TpuCompileWarning(UserWarning):
    """Category of every warning of this project."""


class FallbackWarning(TpuCompileWarning):
    """An op runs in eager PyTorch between compiled parts; said once per op."""
