"""Run PyTorch on TPUs: `torch.compile(model, backend="tpu")`.

Importing this package opens no device, starts no thread and changes nothing of torch.
"""

from __future__ import annotations

from tpu_compile._version import __version__
from tpu_compile.buckets import BucketPolicy, Dimension
from tpu_compile.errors import (
    CompilationError,
    DeviceError,
    FallbackWarning,
    LoweringError,
    OptionError,
    RecompileError,
    TpuCompileError,
    TpuCompileWarning,
    UnsupportedOpError,
)
from tpu_compile.options import CompileOptions
from tpu_compile.public import (
    explain,
    invalidate,
    lower,
    register_lowering,
    reset,
    wait_for_compiles,
    warmup,
)
from tpu_compile.registration import register_backends
from tpu_compile.runtime.platforms import set_platform
from tpu_compile.statistics import (
    CompileRecord,
    CompileStats,
    expect_compiles,
    reset_stats,
    stats,
)

__all__ = [
    "BucketPolicy",
    "CompilationError",
    "CompileOptions",
    "CompileRecord",
    "CompileStats",
    "DeviceError",
    "Dimension",
    "FallbackWarning",
    "LoweringError",
    "OptionError",
    "RecompileError",
    "TpuCompileError",
    "TpuCompileWarning",
    "UnsupportedOpError",
    "__version__",
    "expect_compiles",
    "explain",
    "invalidate",
    "lower",
    "register_lowering",
    "reset",
    "reset_stats",
    "set_platform",
    "stats",
    "wait_for_compiles",
    "warmup",
]

register_backends()
