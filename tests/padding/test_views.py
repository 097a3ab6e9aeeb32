"""Padding rules of what cuts, joins, repeats and reorders tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.padding.checking import check

SIZES = [(3, 5), (6, 9), (8, 16), (17, 4)]


def matrix(*shape: int) -> Callable[..., list[torch.Tensor]]:
    """Give a float tensor of the two dynamic sizes and then `shape`."""
    return lambda b, s: [torch.randn(b, s, *shape)]


def flat(x: torch.Tensor) -> torch.Tensor:
    """Merge the two dynamic dims: real positions are not the first."""
    return x.reshape(-1, x.shape[-1])


def split_dynamic(x: torch.Tensor) -> Any:
    b, s = x.shape[:2]
    return (
        *x.split([1, s - 1], 1),
        *x.split([s - 2, 2], 1),
        *flat(x).split([b, b * s - b]),
        *x.chunk(2, 2),
        *torch.unbind_copy(x, 2),
        *torch.split_copy(x, 2, 2),
        torch.narrow_copy(x, 1, 1, s - 2),
        torch.narrow_copy(x, 0, b - 2, 2),
    )


def sliced(x: torch.Tensor) -> Any:
    s = x.shape[1]
    return (
        x[:, s - 2 :],
        flat(x)[2:],
        flat(x)[-3:],
        flat(x)[::3],
        flat(x)[-1],
        flat(x)[s:],
        x[:, 1:-1, 1:3].sum(1),
        x[-2:, : s - 1],
    )


def repeated(x: torch.Tensor) -> Any:
    return (
        x.repeat(2, 1, 1),
        x.repeat(3, 1, 2, 1),
        x.repeat(1, 2, 1).sum(1),
        flat(x).repeat(2, 1).softmax(0),
        x[:, 0].repeat(x.shape[1], 1, 1).sum(0),
        torch.stack([x, x * 2], 1).sum(2),
        torch.cat([flat(x), flat(x)[:2], flat(x)]).sum(0),
        x.repeat_interleave(2, 1),
    )


def reordered(x: torch.Tensor) -> Any:
    return (
        x.flip(0),
        x.flip(0, 1),
        x.flip(2, -2),
        flat(x).flip(0),
        x.roll(1, 1),
        x.roll((2, -3), (0, 1)),
        x.roll(5),
        flat(x).roll(-4, 0),
        x.rot90(1, [0, 1]),
        x.roll(x.shape[0], 1),
        x.roll(x.shape[1] // 2, 1),
    )


def written(x: torch.Tensor) -> Any:
    s = x.shape[1]
    return (
        x.slice_scatter(x[:, 1:] * 2, 1, 0, s - 1),
        x.slice_scatter(x[:, :-1] * 2, 1, 1),
        x.slice_scatter(x[:, ::2] * 2, 1, 0, None, 2),
        x.slice_scatter(x[-2:] * 3, 0, -2),
        x.slice_scatter(x[..., :2] * 3, 2, 2),
        x.select_scatter(x[:, 0] * 2, 1, -1),
        flat(x).slice_scatter(flat(x)[1:3], 0, 2, 4),
        flat(x).slice_scatter(flat(x)[1:], 0, 0, -1),
    )


def windows(x: torch.Tensor) -> Any:
    return (
        x.unfold(1, 3, 1),
        x.unfold(1, 2, 2).sum(1),
        x.unfold(0, 3, 2),
        flat(x).unfold(0, 2, 3),
        x.unfold(2, 2, 1),
    )


def strided(x: torch.Tensor) -> Any:
    b, s = x.shape[:2]
    return (
        x.as_strided((b, s), (4 * s, 4)),
        x.as_strided((b, 3), (1, 2), 1),
        x.transpose(0, 1).as_strided((s, b), (4, 4 * s), 2),
        x.as_strided_scatter(x[..., 0] * 2, (b, s), (4 * s, 4), 1),
        x.detach().transpose(0, 1).as_strided_scatter(x[:, :3, 0].detach(), (b, 3), (4 * s, 1)),
    )


def diagonals(x: torch.Tensor) -> Any:
    square = x[:, :, 0].mT @ x[:, :, 0]
    return (
        square.diagonal(),
        square.diagonal(1),
        square.diagonal(-2).sum(),
        square.diagonal_scatter(square[0] * 2),
        square.diagonal_scatter(square[0, 1:] * 2, 1),
        torch.diag_embed(x[:, 0]),
        square.tril() + square.triu(1),
        square.trace(),
    )


CASES = [split_dynamic, sliced, repeated, reordered, written, windows, strided, diagonals]


@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_padding_does_not_show(function: Callable[..., Any]) -> None:
    check(function, matrix(4), SIZES, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_padding_does_not_show_in_gradients(function: Callable[..., Any]) -> None:
    check(function, matrix(4), SIZES[:3], gradients=True, rtol=1e-4, atol=1e-4)
