"""Interpolation and its gradients against eager PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lowering import lower_graph
from lowering.errors import UnsupportedOpError
from tests.lowering.running import check, trace

aten = torch.ops.aten

BY_RANK: dict[int, list[str]] = {
    1: ["upsample_linear1d"],
    2: [
        "upsample_bilinear2d",
        "upsample_bicubic2d",
        "_upsample_bilinear2d_aa",
        "_upsample_bicubic2d_aa",
    ],
    3: ["upsample_trilinear3d"],
}
NAMES = [(rank, name) for rank, names in BY_RANK.items() for name in names]
SIZES = ([4, 9, 5], [12, 3, 10], [12, 3, 10], [1, 5, 7])
ALIGNED = (False, False, True, True)
DECOMPOSED = ("upsample_linear1d",)


def cases(rank: int) -> list[tuple[Any, ...]]:
    """Return (output size, align corners, factors...) with and without scale factors."""
    plain = [(size[:rank], align) for size, align in zip(SIZES, ALIGNED, strict=True)]
    return [*plain, ([13, 4, 6][:rank], False, *[2.2, 0.8, 0.9][:rank])]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize(
    ("rank", "name", "dtype"),
    [*((*name, torch.float32) for name in NAMES), (2, "upsample_bilinear2d", torch.float64)],
)
def test_interpolation_and_its_gradient(rank: int, name: str, dtype: torch.dtype) -> None:
    operand = torch.randn(2, 3, *[6, 5, 7][:rank], dtype=dtype)
    forward, backward = getattr(aten, name), getattr(aten, f"{name}_backward")
    grads = [torch.randn(2, 3, *case[0], dtype=dtype) for case in cases(rank)]
    check(
        lambda x, *grads: (
            [] if name in DECOMPOSED else [forward(x, *case) for case in cases(rank)],
            [
                backward(grad, case[0], list(x.shape), *case[1:])
                for grad, case in zip(grads, cases(rank), strict=True)
            ],
        ),
        operand,
        *grads,
        tolerance=1e-5 if dtype is torch.float32 else None,
    )


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("name", ["upsample_nearest", "_upsample_nearest_exact"])
def test_gradient_of_nearest(rank: int, name: str) -> None:
    backward = getattr(aten, f"{name}{rank}d_backward")
    plain = [(case[0], *case[2:]) for case in cases(rank)]
    shape = [2, 3, *[6, 5, 7][:rank]]
    check(
        lambda *grads: [
            backward(grad, case[0], shape, *case[1:])
            for grad, case in zip(grads, plain, strict=True)
        ],
        *(torch.randn(2, 3, *case[0]) for case in plain),
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_interpolation(dtype: torch.dtype) -> None:
    check(
        lambda x: (
            aten.upsample_bilinear2d(x, [7, 9], False),
            aten.upsample_bicubic2d(x, [7, 9], True),
        ),
        torch.randn(2, 3, 4, 5, dtype=dtype),
    )


def test_interpolate_through_its_composite() -> None:
    check(
        lambda x: torch.nn.functional.interpolate(x, scale_factor=1.7, mode="bilinear"),
        torch.randn(1, 2, 5, 6),
        tolerance=5e-6,
    )


def test_integers_are_refused() -> None:
    graph = trace(
        lambda x: aten.upsample_bilinear2d(x, [4, 4], False),
        torch.zeros(1, 1, 2, 2, dtype=torch.uint8),
    )
    with pytest.raises(UnsupportedOpError, match="fixed point"):
        lower_graph(graph)
