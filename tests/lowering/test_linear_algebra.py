"""Factorizations and what is computed by them, against eager PyTorch.

Eigenvectors and singular vectors are compared by what does not depend on their signs.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from lowering.errors import UnsupportedOpError
from tests.lowering.running import assert_same, check, run

aten = torch.ops.aten
DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)
TOLERANCES = {
    torch.float32: 5e-5,
    torch.complex64: 5e-5,
    torch.float64: 1e-11,
    torch.complex128: 1e-11,
}


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def positive(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Return positive definite matrices with noise in the upper triangle, which nothing reads."""
    root = torch.randn(*shape, dtype=dtype)
    matrix = root @ root.mH + 2 * torch.eye(shape[-1], dtype=dtype)
    return matrix + torch.randn(shape, dtype=dtype).triu(1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_cholesky(dtype: torch.dtype) -> None:
    check(
        lambda a, upper, factor, b: (
            *aten.linalg_cholesky_ex(a),
            *aten.linalg_cholesky_ex(upper, upper=True),
            aten.cholesky(upper, True),
            aten.cholesky_solve(b, factor),
            aten.cholesky_solve(b, factor.mH, True),
            aten.cholesky_inverse(factor),
            aten.cholesky_inverse(factor.mH, True),
        ),
        positive(2, 3, 4, 4, dtype=dtype),
        positive(4, 4, dtype=dtype).mH,
        torch.linalg.cholesky(positive(3, 4, 4, dtype=dtype)),
        torch.randn(2, 1, 4, 2, dtype=dtype),
        tolerance=TOLERANCES[dtype],
    )


def test_cholesky_of_what_is_not_positive_definite() -> None:
    """The info is the order of the failing minor; `cholesky`, where eager raises, gives NaN."""
    bad = torch.eye(4).repeat(3, 1, 1)
    bad[0, 2, 2], bad[2, 0, 0] = -1.0, 0.0
    _, info = run(lambda a: tuple(aten.linalg_cholesky_ex(a)), bad)
    assert info.tolist() == [3, 0, 1]
    (factor,) = run(aten.cholesky, bad)
    assert factor.isnan().flatten(1).all(1).tolist() == [True, False, True]


@pytest.mark.parametrize("dtype", DTYPES)
def test_lu(dtype: torch.dtype) -> None:
    tall, wide = torch.randn(2, 5, 3, dtype=dtype), torch.randn(3, 5, dtype=dtype)
    factors, pivots = torch.linalg.lu_factor(torch.randn(3, 4, 4, dtype=dtype))
    check(
        lambda tall, wide, factors, pivots, b, row: (
            *aten.linalg_lu_factor_ex(tall),
            *aten.linalg_lu_factor_ex(wide),
            *aten.linalg_lu(tall),
            *aten.linalg_lu(wide),
            *aten.lu_unpack(factors, pivots),
            *aten.lu_unpack(factors, pivots, unpack_data=False),
            *aten.lu_unpack(factors, pivots, unpack_pivots=False),
            aten.linalg_lu_solve(factors, pivots, b),
            aten.linalg_lu_solve(factors, pivots, b, adjoint=True),
            aten.linalg_lu_solve(factors, pivots, row, left=False),
            aten.linalg_lu_solve(factors, pivots, row, left=False, adjoint=True),
        ),
        tall,
        wide,
        factors,
        pivots,
        torch.randn(2, 3, 4, 2, dtype=dtype),
        torch.randn(3, 2, 4, dtype=dtype),
        tolerance=TOLERANCES[dtype],
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_solutions_and_determinants(dtype: torch.dtype) -> None:
    """LU and pivots count too: the gradient formulas read them."""
    check(
        lambda a, b, vector, row: (
            *aten._linalg_solve_ex(a, b),
            *aten._linalg_solve_ex(a, vector),
            *aten._linalg_solve_ex(a.mT, row, left=False),
            *aten.linalg_inv_ex(a),
            *aten._linalg_det(a),
            *aten._linalg_det(a.mT),
            *aten._linalg_slogdet(a),
            *aten._linalg_slogdet(a.mT),
        ),
        torch.randn(2, 4, 4, dtype=dtype),
        torch.randn(3, 2, 4, 2, dtype=dtype),
        torch.randn(2, 4, dtype=dtype),
        torch.randn(2, 3, 4, dtype=dtype),
        tolerance=TOLERANCES[dtype],
    )


def test_singular_matrices() -> None:
    singular = torch.tensor([[[1.0, 2.0], [2.0, 4.0]], [[0.0, 0.0], [0.0, 1.0]]])
    check(
        lambda a: (
            aten._linalg_det(a)[0],
            *aten._linalg_slogdet(a)[:2],
            aten.linalg_inv_ex(a)[1],
            aten._linalg_solve_ex(a, a)[3],
        ),
        singular,
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_triangular_systems(dtype: torch.dtype) -> None:
    """The other triangle holds NaN: it is not read."""
    lower = torch.randn(3, 4, 4, dtype=dtype).tril() + 3 * torch.eye(4, dtype=dtype)
    lower = torch.where(torch.ones(4, 4).triu(1) > 0, math.nan, lower)
    check(
        lambda a, b, row, unit: (
            aten.linalg_solve_triangular(a, b, upper=False),
            aten.linalg_solve_triangular(a, row, upper=False, left=False),
            aten.linalg_solve_triangular(unit, b, upper=False, unitriangular=True),
            aten.linalg_solve_triangular(a.mH, b, upper=True),
            aten.triangular_solve(b, a, upper=False)[0],
            aten.triangular_solve(b, a, upper=False, transpose=True)[0],
            aten.triangular_solve(b, unit, upper=False, unitriangular=True)[0],
        ),
        lower,
        torch.randn(2, 1, 4, 2, dtype=dtype),
        torch.randn(3, 2, 4, dtype=dtype),
        torch.where(torch.eye(4) > 0, math.nan, lower * 0.25),
        tolerance=TOLERANCES[dtype],
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_qr(dtype: torch.dtype) -> None:
    tall, wide = torch.randn(2, 5, 3, dtype=dtype), torch.randn(3, 5, dtype=dtype)
    packed, taus = torch.geqrf(tall)
    check(
        lambda tall, wide, packed, taus, b, row: (
            *(part for mode in ("reduced", "complete", "r") for part in aten.linalg_qr(tall, mode)),
            *(part for mode in ("reduced", "complete", "r") for part in aten.linalg_qr(wide, mode)),
            *aten.geqrf(wide),
            aten.linalg_householder_product(packed, taus),
            aten.linalg_householder_product(packed, taus[..., :2]),
            aten.ormqr(packed, taus, b),
            aten.ormqr(packed, taus, b, True, True),
            aten.ormqr(packed, taus, row, False),
            aten.ormqr(packed, taus, row, False, True),
        ),
        tall,
        wide,
        packed,
        taus,
        torch.randn(2, 5, 4, dtype=dtype),
        torch.randn(2, 4, 5, dtype=dtype),
        tolerance=TOLERANCES[dtype],
    )


def assert_decomposed(
    matrix: torch.Tensor, parts: list[torch.Tensor], *, full: bool = False
) -> None:
    """Assert that U, S, V' are a singular value decomposition of `matrix`."""
    u, values, vh = parts
    rank = min(matrix.shape[-2:])
    limit = TOLERANCES[matrix.dtype]
    assert_same(values, torch.linalg.svdvals(matrix), tolerance=limit)
    rebuilt = u[..., :rank] * values.unsqueeze(-2) @ vh[..., :rank, :]
    assert_same(rebuilt, matrix, tolerance=limit)
    for basis in (u, vh.mH):
        identity = torch.eye(basis.shape[-1], dtype=basis.dtype).expand((*basis.mH.shape[:-1], -1))
        assert_same(basis.mH @ basis, identity.contiguous(), tolerance=limit)
    if full:
        assert u.shape[-1] == matrix.shape[-2]
        assert vh.shape[-2] == matrix.shape[-1]


@pytest.mark.parametrize("dtype", DTYPES)
def test_svd(dtype: torch.dtype) -> None:
    tall, wide = torch.randn(2, 5, 3, dtype=dtype), torch.randn(3, 5, dtype=dtype)
    actual = run(
        lambda tall, wide: [
            part
            for matrix in (tall, wide)
            for full in (False, True)
            for part in aten._linalg_svd(matrix, full)
        ],
        tall,
        wide,
    )
    for position, matrix in enumerate((tall, tall, wide, wide)):
        parts = actual[3 * position : 3 * position + 3]
        assert_decomposed(matrix, parts, full=position % 2 == 1)
    check(lambda a: tuple(aten._linalg_svd(a, False, False)), tall, tolerance=TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_eigenvalues(dtype: torch.dtype) -> None:
    matrix = torch.randn(2, 4, 4, dtype=dtype)
    limit = TOLERANCES[dtype]
    lower, basis, upper, upper_basis, values, none, general, general_basis, only = run(
        lambda a: (
            *aten._linalg_eigh(a),
            *aten._linalg_eigh(a, "U"),
            *aten._linalg_eigh(a, "L", False),
            *aten.linalg_eig(a),
            aten._linalg_eigvals(a),
        ),
        matrix,
    )
    assert_same(lower, torch.linalg.eigvalsh(matrix), tolerance=limit)
    assert_same(upper, torch.linalg.eigvalsh(matrix, UPLO="U"), tolerance=limit)
    assert_same(values, lower, tolerance=limit)
    assert none.shape == (0,)
    for vectors, diagonal, triangle in ((basis, lower, "L"), (upper_basis, upper, "U")):
        half = matrix.tril(-1) if triangle == "L" else matrix.triu(1)
        middle = torch.diag_embed(matrix.diagonal(dim1=-2, dim2=-1).real).to(dtype)
        rebuilt = vectors * diagonal.unsqueeze(-2) @ vectors.mH
        assert_same(rebuilt, half + half.mH + middle, tolerance=limit)
    assert_same(general, torch.linalg.eigvals(matrix), tolerance=limit)
    assert_same(only, general, tolerance=limit)
    wide = matrix.to(general.dtype)
    assert_same(wide @ general_basis, general_basis * general.unsqueeze(-2), tolerance=limit)


@pytest.mark.parametrize("dtype", DTYPES)
def test_pseudo_inverse(dtype: torch.dtype) -> None:
    low_rank = torch.randn(2, 5, 2, dtype=dtype) @ torch.randn(2, 4, dtype=dtype)
    square = low_rank[..., :4, :] + low_rank[..., :4, :].mH
    check(
        lambda a, s, limits: (
            torch.linalg.pinv(a),
            torch.linalg.pinv(a, atol=limits, rtol=limits * 0 + 0.01),
            torch.linalg.pinv(a, atol=limits * 0 + 0.5),
            torch.linalg.pinv(s, hermitian=True, rtol=1e-3),
        ),
        low_rank,
        square,
        torch.tensor([0.1, 0.0], dtype=dtype.to_real()),
        tolerance=1e-3 if dtype.itemsize // (1 + dtype.is_complex) == 4 else 1e-10,
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hermitian", [False, True])
def test_ldl(dtype: torch.dtype, hermitian: bool) -> None:
    """Zeros on the diagonal bring blocks of order 2; pivots are LAPACK's to the number."""
    matrix = torch.randn(2, 3, 7, 7, dtype=dtype)
    matrix[0].diagonal(dim1=-2, dim2=-1).zero_()
    matrix[1, 1] = 0
    regular = matrix[0]
    factors, pivots = torch.linalg.ldl_factor(regular, hermitian=hermitian)
    assert (pivots < 0).any()
    check(
        lambda a, factors, pivots, b: (
            *aten.linalg_ldl_factor_ex(a, hermitian=hermitian),
            aten.linalg_ldl_solve(factors, pivots, b, hermitian=hermitian),
        ),
        matrix,
        factors,
        pivots,
        torch.randn(3, 7, 2, dtype=dtype),
        tolerance=50 * TOLERANCES[dtype],
    )


def test_ldl_solve_broadcasts() -> None:
    """Eager (2.13) reads outside its memory here, so the system itself is the judge."""
    matrix = torch.randn(3, 5, 5, dtype=torch.float64)
    matrix = matrix + matrix.mT
    factors, pivots = torch.linalg.ldl_factor(matrix)
    other = torch.randn(2, 3, 5, 2, dtype=torch.float64)
    (solution,) = run(aten.linalg_ldl_solve, factors, pivots, other)
    assert_same(matrix @ solution, other, tolerance=1e-10)


@pytest.mark.parametrize("dtype", DTYPES)
def test_matrix_exponential(dtype: torch.dtype) -> None:
    sizes = torch.tensor([0.0, 0.1, 1.0, 12.0]).view(4, 1, 1)
    matrix = torch.randn(4, 5, 5, dtype=dtype) * sizes
    infinite = torch.tensor([[math.inf, 0.0], [0.0, 1.0]], dtype=dtype)
    actual = run(
        lambda *parts: [aten.linalg_matrix_exp(part) for part in parts], matrix, *matrix, infinite
    )
    for ours, theirs in zip(actual[:5], (matrix, *matrix), strict=True):
        # The error of the largest is relative to itself.
        assert_same(ours, torch.linalg.matrix_exp(theirs), tolerance=10 * TOLERANCES[dtype])
    assert not actual[5].isfinite().all()


EMPTY: dict[str, Any] = {
    "cholesky": lambda a: tuple(aten.linalg_cholesky_ex(a)),
    "inverse of a factor": aten.cholesky_inverse,
    "lu": lambda a: (*aten.linalg_lu_factor_ex(a), *aten.linalg_lu(a)),
    "solution": lambda a: tuple(aten._linalg_solve_ex(a, a)),
    "inverse": lambda a: tuple(aten.linalg_inv_ex(a)),
    "determinant": lambda a: (*aten._linalg_det(a), *aten._linalg_slogdet(a)),
    "qr": lambda a: (*aten.linalg_qr(a, "complete"), *aten.geqrf(a)),
    "eigh": lambda a: tuple(aten._linalg_eigh(a)),
    "eig": lambda a: tuple(aten.linalg_eig(a)),
    "svd": lambda a: tuple(aten._linalg_svd(a, True)),
    "pinv": torch.linalg.pinv,
    "ldl": lambda a: tuple(aten.linalg_ldl_factor_ex(a)),
    "triangular": lambda a: aten.linalg_solve_triangular(a, a, upper=True),
    "exponential": aten.linalg_matrix_exp,
}


def test_empty_matrices() -> None:
    """No rows, and no matrices in the batch."""
    check(
        lambda none, few: [part for op in EMPTY.values() for part in (op(none), op(few))],
        torch.randn(2, 0, 0),
        torch.randn(0, 3, 3),
    )
    check(
        lambda flat, thin: (
            *aten.linalg_qr(flat, "complete"),
            *aten.linalg_qr(thin, "complete"),
            *aten._linalg_svd(flat, True),
            *aten._linalg_svd(thin, True),
            torch.linalg.pinv(flat),
            torch.linalg.pinv(thin),
        ),
        torch.randn(2, 0, 3),
        torch.randn(3, 0),
    )


# --- the algorithms for TPUs, which XLA runs on the CPU as well ----------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_xla_algorithms(dtype: torch.dtype) -> None:
    square, tall = torch.randn(2, 4, 4, dtype=dtype), torch.randn(2, 5, 3, dtype=dtype)
    definite = positive(2, 4, 4, dtype=dtype)
    definite[1, 1, 1] = -5.0
    packed, taus = torch.geqrf(tall)
    other = torch.randn(2, 5, 4, dtype=dtype)

    def function(
        square: torch.Tensor, tall: torch.Tensor, definite: torch.Tensor, *rest: torch.Tensor
    ) -> list[torch.Tensor]:
        return [
            *aten._linalg_eigh(square, "U"),
            *aten.linalg_qr(tall, "complete"),
            *aten.linalg_cholesky_ex(definite),
            aten.ormqr(*rest, True, True),
            aten.linalg_solve_triangular(definite, square, upper=False),
        ]

    inputs = (square, tall, definite, packed, taus, other)
    actual = run(function, *inputs, platform="tpu")
    expected = function(*inputs)
    failed = actual[5].tolist()
    assert failed[0] == 0
    assert 1 <= failed[1] <= 2
    for position in (0, 2, 3, 6, 7):
        assert_same(actual[position], expected[position], tolerance=5e-5)
    assert_same(actual[4][0], expected[4][0], tolerance=5e-5)
    assert actual[4][1].isnan().any()
    basis, values = actual[1], actual[0]
    half = square.triu(1)
    middle = torch.diag_embed(square.diagonal(dim1=-2, dim2=-1).real).to(dtype)
    rebuilt = basis * values.unsqueeze(-2) @ basis.mH
    assert_same(rebuilt, half + half.mH + middle, tolerance=5e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_svd_from_polar_factors(dtype: torch.dtype) -> None:
    """Matrices of low rank, graded and zero ones leave U and V orthonormal."""
    low_rank = torch.randn(2, 6, 2, dtype=dtype) @ torch.randn(2, 5, dtype=dtype)
    graded = torch.diag(torch.tensor([1.0, 1e-4, 1e-8, 0.0])).to(dtype)
    tiny, zero = 1e-20 * torch.randn(3, 3, dtype=dtype), torch.zeros(3, 3, dtype=dtype)
    matrices = (low_rank, graded, torch.randn(3, 5, dtype=dtype), tiny, zero)
    actual = run(
        lambda *given: [part for matrix in given for part in aten._linalg_svd(matrix, True)],
        *matrices,
        platform="tpu",
    )
    for position, matrix in enumerate(matrices):
        assert_decomposed(matrix, actual[3 * position : 3 * position + 3], full=True)


def test_what_a_platform_lacks_is_declined() -> None:
    matrix = torch.randn(3, 3)
    with pytest.raises(UnsupportedOpError, match="no eigenvalues of general matrices"):
        run(lambda a: tuple(aten.linalg_eig(a)), matrix, platform="tpu")
    with pytest.raises(UnsupportedOpError, match="no LU decomposition"):
        run(lambda a: tuple(aten.linalg_lu(a)), matrix, platform="other")
