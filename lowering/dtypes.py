"""torch dtypes and their MLIR element types, in both directions.

StableHLO has signless integers that mean signed ones (`i32`), unsigned ones (`ui32`), and `i1`
for booleans. A dtype that is missing here has no StableHLO counterpart (quantized and packed
types): ops on it are unsupported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from lowering.mlir import ir, memo

_ELEMENT_TYPES: dict[torch.dtype, Callable[[], ir.Type]] = {
    torch.bool: lambda: ir.IntegerType.get_signless(1),
    torch.int8: lambda: ir.IntegerType.get_signless(8),
    torch.int16: lambda: ir.IntegerType.get_signless(16),
    torch.int32: lambda: ir.IntegerType.get_signless(32),
    torch.int64: lambda: ir.IntegerType.get_signless(64),
    torch.uint8: lambda: ir.IntegerType.get_unsigned(8),
    torch.uint16: lambda: ir.IntegerType.get_unsigned(16),
    torch.uint32: lambda: ir.IntegerType.get_unsigned(32),
    torch.uint64: lambda: ir.IntegerType.get_unsigned(64),
    torch.float8_e4m3fn: lambda: ir.Float8E4M3FNType.get(),
    torch.float8_e4m3fnuz: lambda: ir.Float8E4M3FNUZType.get(),
    torch.float8_e5m2: lambda: ir.Float8E5M2Type.get(),
    torch.float8_e5m2fnuz: lambda: ir.Float8E5M2FNUZType.get(),
    torch.float16: lambda: ir.F16Type.get(),
    torch.bfloat16: lambda: ir.BF16Type.get(),
    torch.float32: lambda: ir.F32Type.get(),
    torch.float64: lambda: ir.F64Type.get(),
    torch.complex64: lambda: ir.ComplexType.get(ir.F32Type.get()),
    torch.complex128: lambda: ir.ComplexType.get(ir.F64Type.get()),
}

_DTYPES_BY_NAME: dict[str, torch.dtype] = {
    "i1": torch.bool,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "ui8": torch.uint8,
    "ui16": torch.uint16,
    "ui32": torch.uint32,
    "ui64": torch.uint64,
    "f8E4M3FN": torch.float8_e4m3fn,
    "f8E4M3FNUZ": torch.float8_e4m3fnuz,
    "f8E5M2": torch.float8_e5m2,
    "f8E5M2FNUZ": torch.float8_e5m2fnuz,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
    "complex<f32>": torch.complex64,
    "complex<f64>": torch.complex128,
}

# Wider than 32 bits in floating point: XLA's TPU compiler has no such arithmetic.
TPU_MISSING = frozenset({torch.float64, torch.complex128})


# Wide enough to hold every product and sum of two values of the narrow type before it rounds.
_OPMATH = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


class TensorSpec(NamedTuple):
    """Shape and dtype of a dense tensor; what a value is, without its data."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"


def is_supported(dtype: torch.dtype) -> bool:
    """Whether `dtype` has a StableHLO element type."""
    return dtype in _ELEMENT_TYPES


def missing_on(platform: str) -> frozenset[torch.dtype]:
    """Return the dtypes that StableHLO has but XLA on `platform` (a PJRT name) has not."""
    return TPU_MISSING if platform == "tpu" else frozenset()


def element_type(dtype: torch.dtype) -> ir.Type:
    """Return the MLIR element type of `dtype`; needs a current MLIR context.

    Raises:
        KeyError: `dtype` has no StableHLO counterpart (see `is_supported`).
    """
    return _ELEMENT_TYPES[dtype]()


def torch_dtype(element: ir.Type) -> torch.dtype:
    """Return the torch dtype of an MLIR element type."""
    return _DTYPES_BY_NAME[str(element)]


def tensor_type(spec: TensorSpec) -> ir.RankedTensorType:
    """Return `tensor<shape x element>` for `spec`; needs a current MLIR context."""
    known = memo()
    found = known.get(spec)
    if found is None:
        found = ir.RankedTensorType.get(spec.shape, element_type(spec.dtype))
        known[spec], known[found] = found, spec
    return found


def spec_of(value: ir.Value) -> TensorSpec:
    """Return shape and dtype of an MLIR tensor value."""
    kind = value.type
    known = memo()
    spec: TensorSpec | None = known.get(kind)
    if spec is None:
        spec = TensorSpec(tuple(kind.shape), torch_dtype(kind.element_type))
        known[spec], known[kind] = kind, spec
    return spec


def is_unsigned(dtype: torch.dtype) -> bool:
    """Whether `dtype` is an unsigned integer type (bool is not one)."""
    return dtype in (torch.uint8, torch.uint16, torch.uint32, torch.uint64)


def is_integer(dtype: torch.dtype) -> bool:
    """Whether `dtype` is an integer type, signed or not (bool is not one)."""
    return not dtype.is_floating_point and not dtype.is_complex and dtype is not torch.bool


def real_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the real part of a complex dtype; any other dtype as it is."""
    return dtype.to_real() if dtype.is_complex else dtype


def opmath_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which torch's CPU kernels compute for tensors of `dtype`."""
    return _OPMATH.get(dtype, dtype)
