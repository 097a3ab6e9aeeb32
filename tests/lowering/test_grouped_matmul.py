"""Grouped and scaled matrix products against eager PyTorch."""

from __future__ import annotations

import pytest
import torch

from lowering import LoweringOptions, lower_graph
from tests.lowering.running import assert_same, check, run, trace

aten = torch.ops.aten
ENDS = torch.tensor([3, 3, 10, 16], dtype=torch.int32)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def test_groups() -> None:
    """The second group is empty. Traced graphs hold this op in bfloat16 only."""
    dtype = torch.bfloat16
    rows, weights = torch.randn(16, 8, dtype=dtype), torch.randn(4, 8, 24, dtype=dtype)
    check(
        lambda rows, weights, inner, ends: (
            aten._grouped_mm(rows, weights, ends),
            aten._grouped_mm(weights.mT, rows.mT, ends),
            aten._grouped_mm(rows.mT, inner, ends),
            aten._grouped_mm(weights.mT, weights),
        ),
        rows,
        weights,
        torch.randn(16, 24, dtype=dtype),
        ENDS,
    )


def test_rows_beyond_the_last_group_are_zero() -> None:
    rows, weights = torch.randn(16, 8).bfloat16(), torch.randn(2, 8, 8).bfloat16()
    rows[12:] = torch.inf
    ends = torch.tensor([5, 12], dtype=torch.int32)
    (product,) = run(aten._grouped_mm, rows, weights, ends)
    assert (product[12:] == 0).all()
    assert_same(product[:5], rows[:5] @ weights[0])
    assert_same(product[5:12], rows[5:12] @ weights[1])


def test_tpus_take_the_ragged_product() -> None:
    rows, weights, inner = (
        torch.randn(*shape, dtype=torch.bfloat16) for shape in ((16, 8), (4, 8, 24), (16, 24))
    )
    graph = trace(
        lambda a, w, i, e: (aten._grouped_mm(a, w, e), aten._grouped_mm(a.mT, i, e)),
        rows,
        weights,
        inner,
        ENDS,
    )
    text = lower_graph(graph, options=LoweringOptions(platform="tpu")).text()
    assert text.count('"chlo.ragged_dot"(') == 2
    assert "stablehlo.while" not in text


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_scaled_products(dtype: torch.dtype) -> None:
    left, right = (torch.randn(16, 32).to(dtype) for _ in range(2))
    check(
        lambda a, b, one, two, rows, columns, bias: (
            aten._scaled_mm(a, b.mT, one, two, out_dtype=torch.float32),
            aten._scaled_mm(a, b.mT, one, two, out_dtype=torch.bfloat16),
            aten._scaled_mm(a, b.mT, rows, columns, bias, out_dtype=torch.float32),
        ),
        left,
        right,
        torch.tensor(0.75),
        torch.tensor([2.5]),
        torch.rand(16, 1),
        torch.rand(1, 16),
        torch.randn(16),
        tolerance=1e-2 if dtype is torch.bfloat16 else 4e-3,
    )


def test_scale_of_a_float8_result() -> None:
    left, right = (torch.randn(16, 32).to(torch.float8_e4m3fn) for _ in range(2))
    check(
        lambda a, b, one, scale: aten._scaled_mm(
            a, b.mT, one, one, scale_result=scale, out_dtype=torch.float8_e4m3fn
        ).float(),
        left,
        right,
        torch.tensor(1.5),
        torch.tensor(0.25),
        tolerance=0.07,
    )


def test_product_with_activation() -> None:
    added, left, right = torch.randn(3), torch.randn(5, 4), torch.randn(4, 3)
    check(
        lambda c, a, b: (
            aten._addmm_activation(c, a, b),
            aten._addmm_activation(c, a, b, beta=0.5, alpha=2, use_gelu=True),
        ),
        added,
        left,
        right,
    )
