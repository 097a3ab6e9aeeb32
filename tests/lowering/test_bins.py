"""searchsorted, bucketize, histc."""

from __future__ import annotations

import pytest
import torch

from lowering.ops import bins
from tests.lowering.running import check


@pytest.fixture(params=["compare", "search"])
def _either_way(request, monkeypatch):
    if request.param == "search":
        monkeypatch.setattr(bins, "FEW", 0)


@pytest.mark.usefixtures("_either_way")
def test_searchsorted():
    def function(line, rows, values, sorter, whole):
        return [
            torch.searchsorted(line, values),
            torch.searchsorted(line, values, right=True, out_int32=True),
            torch.searchsorted(line, values, side="right"),
            torch.searchsorted(rows, values),
            torch.searchsorted(rows, values, right=True),
            torch.searchsorted(line.flip(0), values, sorter=sorter),
            torch.searchsorted(line, 2.0),
            torch.searchsorted(whole, 2.5),
            torch.searchsorted(line[:0], values),
            torch.searchsorted(line, values[:0]),
        ]

    line = torch.tensor([-torch.inf, 1.0, 2.0, 2.0, 5.0])
    rows = torch.stack([line, line + 1])
    values = torch.tensor([[2.0, torch.nan, 0.0, 9.0], [1.0, -torch.inf, torch.inf, 5.5]])
    sorter = torch.arange(4, -1, -1)
    check(function, line, rows, values, sorter, torch.tensor([1, 2, 3]))


@pytest.mark.usefixtures("_either_way")
def test_bucketize():
    def function(x, i, half, bounds, whole):
        return [
            torch.bucketize(x, bounds),
            torch.bucketize(x, bounds, right=True, out_int32=True),
            torch.bucketize(i, whole),
            torch.bucketize(i, whole, right=True),
            torch.bucketize(x, whole),
            torch.bucketize(half, half),
            torch.bucketize(2.5, whole),
            torch.bucketize(x[0, 0], bounds),
        ]

    x = torch.tensor([[0.5, 2.5], [torch.nan, 3.0]])
    half = torch.tensor([0.5, 1.5, 2.5], dtype=torch.bfloat16)
    whole = torch.tensor([1, 2, 3])
    check(function, x, torch.tensor([0, 2, 4]), half, torch.tensor([0.5, 2.5, 3.0]), whole)


@pytest.mark.usefixtures("_either_way")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_histc(dtype):
    def function(x, experts, same):
        return [
            torch.histc(x, 37, 0, 13.3),
            torch.histc(x, 5, -3, 100),
            torch.histc(experts, 8, 0, 7),
            torch.histc(experts, 4),
            torch.histc(same, 3),
            torch.histc(same[:0], 3),
        ]

    generator = torch.Generator().manual_seed(0)
    # Eager counts bfloat16 in bfloat16, which ends at 256 a thread.
    x = (torch.randint(-20, 120, (250,), generator=generator) / 7).to(dtype)
    x[3], x[5], x[7] = torch.nan, torch.inf, 13.3
    experts = torch.randint(0, 8, (40, 2), generator=generator).to(dtype)
    check(function, x, experts, torch.ones(3, dtype=dtype))
