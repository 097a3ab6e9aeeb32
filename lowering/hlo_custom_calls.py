"""Custom calls that compute factorizations: LAPACK on the CPU, XLA's own targets on TPUs.

The CPU targets are those of XLA's typed FFI (`api_version` 4) that jaxlib brings; the run time
registers them. They take and give matrices in column-major order and batches of them in one call.
Each gives LAPACK's `info`, i32 with the batch's shape. Only builders are here: which factorization
a platform has, and what empty matrices give, is `lowering.hlo_linalg`'s business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import torch

from lowering.dtypes import TensorSpec, real_dtype, spec_of, tensor_type
from lowering.mlir import ir, stablehlo

_PREFIXES = {
    torch.float32: "s",
    torch.float64: "d",
    torch.complex64: "c",
    torch.complex128: "z",
}
_TYPED_FFI = 4
_ORIGINAL = 1


def _layout(shape: Sequence[int], batch: int) -> ir.Attribute:
    """Return the minor-to-major order: column-major for matrices, row-major for the rest."""
    order = list(reversed(range(len(shape))))
    if len(shape) == batch + 2:
        order[0], order[1] = order[1], order[0]
    array: Any = numpy.array(order, dtype=numpy.int64)
    return ir.DenseIntElementsAttr.get(array, type=ir.IndexType.get())


def _call_lapack(
    routine: str,
    operands: Sequence[ir.Value],
    results: Sequence[TensorSpec],
    config: Mapping[str, str | bool],
    *,
    in_place: Mapping[int, int],
) -> list[ir.Value]:
    """Return the results of a LAPACK target, such as `"getrf"`, on the dtype of operand 0.

    A string in `config` is one character, which LAPACK takes as such; `in_place` says which result
    overwrites which operand.
    """
    spec = spec_of(operands[0])
    batch = spec.rank - 2
    i32 = ir.IntegerType.get_signless(32)
    byte = ir.IntegerType.get_unsigned(8)
    attributes: dict[str, ir.Attribute] = {
        name: ir.BoolAttr.get(value)
        if isinstance(value, bool)
        else ir.IntegerAttr.get(byte, ord(value))
        for name, value in config.items()
    }
    call = stablehlo.CustomCallOp(
        [tensor_type(result) for result in results],
        list(operands),
        f"lapack_{_PREFIXES[spec.dtype]}{routine}_ffi",
        backend_config=ir.DictAttr.get(attributes),
        api_version=ir.IntegerAttr.get(i32, _TYPED_FFI),
        operand_layouts=ir.ArrayAttr.get(
            [_layout(operand.type.shape, batch) for operand in operands]
        ),
        result_layouts=ir.ArrayAttr.get([_layout(result.shape, batch) for result in results]),
        output_operand_aliases=ir.ArrayAttr.get(
            [
                stablehlo.OutputOperandAlias.get(
                    output_tuple_indices=[result] if len(results) > 1 else [],
                    operand_index=operand,
                    operand_tuple_indices=[],
                )
                for result, operand in in_place.items()
            ]
        ),
    )
    return list(call.results)


def _info(spec: TensorSpec) -> TensorSpec:
    return TensorSpec(spec.shape[:-2], torch.int32)


def _vector(spec: TensorSpec, size: int, dtype: torch.dtype | None = None) -> TensorSpec:
    return TensorSpec((*spec.shape[:-2], size), spec.dtype if dtype is None else dtype)


def _matrix(spec: TensorSpec, rows: int, columns: int) -> TensorSpec:
    return TensorSpec((*spec.shape[:-2], rows, columns), spec.dtype)


# --- the CPU ---------------------------------------------------------------------------------


def potrf(operand: ir.Value, *, lower: bool) -> tuple[ir.Value, ir.Value]:
    """Return the Cholesky factor in one triangle (the other is the operand's), and info."""
    spec = spec_of(operand)
    factor, info = _call_lapack(
        "potrf",
        [operand],
        [spec, _info(spec)],
        {"uplo": "L" if lower else "U"},
        in_place={0: 0},
    )
    return factor, info


def getrf(operand: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Return L and U in one matrix, the pivots (rows counted from 1, i32) and info."""
    spec = spec_of(operand)
    pivots = _vector(spec, min(spec.shape[-2:]), torch.int32)
    factors, rows, info = _call_lapack(
        "getrf", [operand], [spec, pivots, _info(spec)], {}, in_place={0: 0}
    )
    return factors, rows, info


def geqrf(operand: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return R above the Householder vectors, and the vectors' factors tau."""
    spec = spec_of(operand)
    packed, taus = _call_lapack(
        "geqrf", [operand], [spec, _vector(spec, min(spec.shape[-2:]))], {}, in_place={0: 0}
    )
    return packed, taus


def orgqr(packed: ir.Value, taus: ir.Value) -> ir.Value:
    """Return the first columns of the product of the reflectors that `geqrf` gave."""
    spec = spec_of(packed)
    routine = "ungqr" if spec.dtype.is_complex else "orgqr"
    (product,) = _call_lapack(routine, [packed, taus], [spec], {}, in_place={0: 0})
    return product


def ormqr(
    packed: ir.Value, taus: ir.Value, other: ir.Value, *, left: bool, transpose: bool
) -> ir.Value:
    """Return Q @ other, or other @ Q, without forming Q; `transpose` takes Q's adjoint."""
    spec = spec_of(packed)
    (product,) = _call_lapack(
        "unmqr" if spec.dtype.is_complex else "ormqr",
        [packed, taus, other],
        [spec_of(other)],
        {"left": left, "transpose": transpose},
        in_place={0: 2},
    )
    return product


def trsm(
    matrix: ir.Value,
    other: ir.Value,
    *,
    left: bool,
    lower: bool,
    transpose: str,
    unit: bool,
) -> ir.Value:
    """Return the solution of a triangular system; `transpose` is N, T or C (adjoint)."""
    (solution,) = _call_lapack(
        "trsm",
        [matrix, other],
        [spec_of(other)],
        {
            "side": "L" if left else "R",
            "uplo": "L" if lower else "U",
            "trans_x": transpose,
            "diag": "U" if unit else "N",
        },
        in_place={0: 1},
    )
    return solution


def syevd(operand: ir.Value, *, lower: bool, vectors: bool) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Return the eigenvalues in ascending order, the eigenvectors (or garbage), and info."""
    spec = spec_of(operand)
    values = _vector(spec, spec.shape[-1], real_dtype(spec.dtype))
    matrix, values_, info = _call_lapack(
        "heevd" if spec.dtype.is_complex else "syevd",
        [operand],
        [spec, values, _info(spec)],
        {"mode": "V" if vectors else "N", "uplo": "L" if lower else "U"},
        in_place={0: 0},
    )
    return values_, matrix, info


def gesdd(
    operand: ir.Value, *, vectors: bool, full: bool
) -> tuple[ir.Value, ir.Value, ir.Value, ir.Value]:
    """Return U, the singular values in descending order, V's adjoint, and info.

    Without `vectors`, U and V are garbage; with `full` they are square.
    """
    spec = spec_of(operand)
    rows, columns = spec.shape[-2:]
    rank = min(rows, columns)
    left, right = (rows, columns) if full or not vectors else (rank, rank)
    _, values, u, vh, info = _call_lapack(
        "gesdd",
        [operand],
        [
            spec,
            _vector(spec, rank, real_dtype(spec.dtype)),
            _matrix(spec, rows, left),
            _matrix(spec, right, columns),
            _info(spec),
        ],
        {"mode": ("A" if full else "S") if vectors else "N"},
        in_place={0: 0},
    )
    return u, values, vh, info


def geev(operand: ir.Value, *, vectors: bool) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Return complex eigenvalues, right eigenvectors (or garbage), and info."""
    spec = spec_of(operand)
    complex_dtype = spec.dtype.to_complex()
    order = spec.shape[-1]
    matrix = TensorSpec(spec.shape, complex_dtype)
    parts = [_vector(spec, order)] * (1 if spec.dtype.is_complex else 2)
    *values, _, right, info = _call_lapack(
        "geev",
        [operand],
        [*parts, matrix, matrix, _info(spec)],
        {"compute_left": "N", "compute_right": "V" if vectors else "N"},
        in_place={},
    )
    joined = values[0] if len(values) == 1 else stablehlo.complex(*values)
    return joined, right, info


# --- TPUs ------------------------------------------------------------------------------------

# What XLA's expander takes as "sweeps at most" and "tolerance" of the Jacobi iteration.
_EIGH_SWEEPS = 100
_EIGH_TOLERANCE = 1e-6


def _call_xla(
    target: str, operands: Sequence[ir.Value], results: Sequence[TensorSpec], config: str = ""
) -> list[ir.Value]:
    i32 = ir.IntegerType.get_signless(32)
    call = stablehlo.CustomCallOp(
        [tensor_type(result) for result in results],
        list(operands),
        target,
        backend_config=ir.StringAttr.get(config),
        api_version=ir.IntegerAttr.get(i32, _ORIGINAL),
    )
    return list(call.results)


def xla_eigh(operand: ir.Value, *, lower: bool) -> tuple[ir.Value, ir.Value]:
    """Return ascending eigenvalues and eigenvectors of a self-adjoint matrix."""
    spec = spec_of(operand)
    config = f"{int(lower)},1,{_EIGH_SWEEPS},{_EIGH_TOLERANCE}"
    values = _vector(spec, spec.shape[-1], real_dtype(spec.dtype))
    matrix, values_ = _call_xla("Eigh", [operand], [spec, values], config)
    return values_, matrix


def xla_qr(operand: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return what `geqrf` does."""
    spec = spec_of(operand)
    packed, taus = _call_xla("Qr", [operand], [spec, _vector(spec, min(spec.shape[-2:]))])
    return packed, taus


def xla_product_of_reflectors(packed: ir.Value, taus: ir.Value) -> ir.Value:
    """Return what `orgqr` does."""
    (product,) = _call_xla(
        "ProductOfElementaryHouseholderReflectors", [packed, taus], [spec_of(packed)]
    )
    return product


def xla_lu(operand: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return L and U in one matrix, and the pivots (rows counted from 0, i32)."""
    spec = spec_of(operand)
    rows = _vector(spec, min(spec.shape[-2:]), torch.int32)
    order = _vector(spec, spec.shape[-2], torch.int32)
    factors, pivots, _ = _call_xla("LuDecomposition", [operand], [spec, rows, order])
    return factors, pivots
