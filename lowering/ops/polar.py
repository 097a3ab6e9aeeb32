"""The polar decomposition of square matrices by Halley's iteration with dynamical weights (QDWH).

Nakatsukasa, Bai, Gygi: "Optimizing Halley's iteration for computing the matrix polar
decomposition", SIAM J. Matrix Anal. Appl. 31, 2010. Every step is a QR factorization of
[sqrt(c) X; I], which is backward stable; the singular values of X come to 1 in six or so steps.
"""

from __future__ import annotations

import torch

from lowering import hlo
from lowering.context import LoweringContext
from lowering.dtypes import spec_of
from lowering.hlo_custom_calls import xla_product_of_reflectors, xla_qr
from lowering.mlir import ir, stablehlo
from lowering.ops import matrices


def halley_weights(smallest: float, epsilon: float) -> list[tuple[float, float, float]]:
    """Return (a, b, c) of each step that brings singular values in [smallest, 1] to 1."""
    weights = []
    while abs(smallest - 1) > 10 * epsilon:
        square = smallest * smallest
        d = (4 * (1 - square) / (square * square)) ** (1 / 3)
        root = (1 + d) ** 0.5
        a = root + 0.5 * (8 - 4 * d + 8 * (2 - square) / (square * root)) ** 0.5
        b = (a - 1) ** 2 / 4
        c = a + b - 1
        weights.append((a, b, c))
        smallest = min(smallest * (a + b * square) / (1 + c * square), 1.0)
    return weights


def polar_factors(ctx: LoweringContext, matrix: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return W with orthonormal columns and H, positive semi-definite, with matrix = W @ H.

    Singular values below epsilon of the largest count as that, so the number of steps is known:
    the steps are unrolled, without a test of convergence.
    """
    spec = spec_of(matrix)
    epsilon = torch.finfo(spec.dtype).eps
    current, _ = matrices.normalized(matrix)
    # The Frobenius norm bounds the largest singular value, from above by sqrt(order) at most.
    square = stablehlo.abs(current)
    dims = [spec.rank - 2, spec.rank - 1]
    norm = stablehlo.sqrt(hlo.reduce_sum(stablehlo.multiply(square, square), dims))
    current = matrices.divided(current, norm)
    for weights in halley_weights(epsilon / spec.shape[-1] ** 0.5, epsilon):
        current = _halley_step(ctx, current, *weights)
    positive = matrices.product(ctx, matrices.adjoint(current), matrix)
    half = hlo.full_like(positive, 0.5)
    positive = stablehlo.multiply(stablehlo.add(positive, matrices.adjoint(positive)), half)
    return current, positive


def _halley_step(ctx: LoweringContext, x: ir.Value, a: float, b: float, c: float) -> ir.Value:
    """Return b/c X + (a - b/c) / sqrt(c) Q1 Q2^H, where [sqrt(c) X; I] = [Q1; Q2] R."""
    spec = spec_of(x)
    order = spec.shape[-1]
    scaled = stablehlo.multiply(x, hlo.full_like(x, c**0.5))
    stacked = hlo.concatenate([scaled, matrices.identity(spec.shape, spec.dtype)], spec.rank - 2)
    packed, taus = xla_qr(stacked)
    q = xla_product_of_reflectors(packed, taus)
    upper = matrices.rows(q, order)
    lower = hlo.slice_in_dim(q, order, 2 * order, dim=spec.rank - 2)
    moved = matrices.product(ctx, upper, matrices.adjoint(lower))
    moved = stablehlo.multiply(moved, hlo.full_like(moved, (a - b / c) / c**0.5))
    return stablehlo.add(stablehlo.multiply(x, hlo.full_like(x, b / c)), moved)
