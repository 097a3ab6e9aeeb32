"""Padding with constants, mirror images and edges."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from tests.lowering.running import check
from tests.lowering.test_views import DTYPES, numbers


@pytest.mark.parametrize("dtype", DTYPES)
def test_constant(dtype):
    def function(x):
        return [
            functional.pad(x, (1, 2)),
            functional.pad(x, (1, 0, 0, 3), value=1),
            functional.pad(x, (-1, 2, 1, -2), value=2),
            functional.pad(x, ()),
            functional.pad(x, (-2, -2)),
            functional.pad(x[:0], (1, 1, 2, 0)),
        ]

    check(function, numbers(3, 4, dtype=dtype))


def test_constant_fill_values():
    def function(x, i):
        return [
            functional.pad(x, (1, 1), value=float("-inf")),
            functional.pad(x, (1, 1), value=float("nan")),
            functional.pad(i, (1, 1), value=-3),
        ]

    check(function, torch.tensor([-0.0, torch.nan]), numbers(2, dtype=torch.int32))


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_continued(mode):
    def function(line, plane, space):
        return [
            functional.pad(line, (2, 1), mode),
            functional.pad(line[0], (0, 3), mode),
            functional.pad(plane, (1, 2, 3, 0), mode),
            functional.pad(space, (1, 1, 0, 2, 1, 0), mode),
            functional.pad(line, (-1, 2), mode),
            functional.pad(line, (3, -2), mode),
        ]

    check(function, numbers(1, 2, 5), numbers(1, 2, 4, 5), numbers(1, 2, 3, 4, 5))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64])
def test_continued_dtypes(dtype):
    def function(x):
        results = [functional.pad(x, (1, 2), "replicate")]
        if dtype.is_floating_point:
            results.append(functional.pad(x, (1, 2), "reflect"))
        return results

    check(function, numbers(1, 2, 5, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_replication_backward(dtype):
    def function(line, plane, space):
        results = []
        for grad, cut, pad in (
            (line, line[..., :5], [-1, 3]),
            (line, line[..., :4], [2, 1]),
            (plane, plane[..., :2, :3], [1, 2, 3, 0]),
            (space, space[..., :2, :2, :3], [1, 1, 0, 2, 1, 0]),
        ):
            dims = len(pad) // 2
            backward = getattr(torch.ops.aten, f"replication_pad{dims}d_backward")
            results.append(backward(grad, cut, pad))
        return results

    check(
        function,
        torch.randn(1, 2, 7).to(dtype),
        torch.randn(1, 2, 5, 6).to(dtype),
        torch.randn(1, 2, 3, 4, 5).to(dtype),
    )
