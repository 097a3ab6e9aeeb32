"""The grouped products of transformers' own ops, and infinities in groups."""

from __future__ import annotations

import pytest
import torch
from transformers.integrations import moe

from tests.lowering.running import check

ops = torch.ops.transformers
assert moe is not None  # its import defines the ops

# Empty groups at both ends and in the middle, and everything inside some group.
ENDS = torch.tensor([0, 3, 3, 8, 8], dtype=torch.int32)


@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
def test_fallback_and_its_backward(kind: torch.dtype) -> None:
    rows, weight = torch.randn(11, 4), torch.randn(5, 4, 6)
    gradient = torch.randn(11, 6)
    # The last three rows belong to no group.
    ends = ENDS.to(kind)
    check(
        lambda r, w, e, g: (
            ops.grouped_mm_fallback(r, w, e),
            *ops.grouped_mm_fallback_backward(r, w, e, g),
        ),
        rows,
        weight,
        ends,
        gradient,
    )


def test_fallback_in_float64_and_bfloat16() -> None:
    for dtype in (torch.float64, torch.bfloat16):
        check(
            ops.grouped_mm_fallback,
            torch.randn(8, 4).to(dtype),
            torch.randn(5, 4, 6).to(dtype),
            ENDS,
        )


def test_infinities_stay_in_their_group() -> None:
    rows, weight, gradient = torch.randn(8, 4), torch.randn(5, 4, 6), torch.randn(8, 6)
    rows[1, 2] = torch.inf
    weight[3, 0, 1] = torch.inf
    weight[0] = torch.nan
    gradient[7, 3] = torch.nan
    check(
        lambda r, w, e, g: (
            ops.grouped_mm_fallback(r, w, e),
            *ops.grouped_mm_fallback_backward(r, w, e, g),
        ),
        rows,
        weight,
        ENDS,
        gradient,
    )


def test_no_rows_and_no_groups_in_use() -> None:
    weight = torch.randn(2, 4, 6)
    ends = torch.zeros(2, dtype=torch.int32)
    check(ops.grouped_mm_fallback, torch.randn(0, 4), weight, ends)
    check(ops.grouped_mm_fallback, torch.randn(3, 4), weight, ends)
