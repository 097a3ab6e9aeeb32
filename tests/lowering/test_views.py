"""Views and their copies: shape, order and part of a tensor."""

from __future__ import annotations

import pytest
import torch

from tests.lowering.running import check

# Ops that move data treat every dtype alike; these are the ones XLA stores in its own way too.
DTYPES = [torch.bfloat16, torch.bool]


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return distinct numbers (alternating bools) of `shape`."""
    values = torch.arange(torch.Size(shape).numel())
    return (values % 2 == 0 if dtype is torch.bool else values).reshape(shape).to(dtype)


def used(value: torch.Tensor) -> torch.Tensor:
    """Return twice `value` (a bool as it is): a plain view would not be computed at all."""
    return value + value


@pytest.mark.parametrize("dtype", DTYPES)
def test_reordering(dtype):
    def function(x):
        y = x + x
        return [
            used(y.view(6, 4)),
            used(y.reshape(-1)),
            used(y.permute(2, 0, -2)),
            used(y[0].t()),
            used(y.unsqueeze(-1)),
            used(y[:1].squeeze(0)),
            used(y[:1, :, :1].squeeze((0, 2))),
            used(y[:1].squeeze(1)),
            used(y[:, :1].expand(-1, 5, -1)),
            used(y.expand(2, 2, 3, 4)),
        ]

    check(function, numbers(2, 3, 4, dtype=dtype))
    transposed = numbers(4, 3, 2, dtype=dtype).permute(2, 1, 0)
    check(lambda x: [used((x + x).permute(1, 0, 2)), used((x + x).unsqueeze(1))], transposed)


def test_copies():
    def function(x):
        return [
            torch.view_copy(x, (4, 3)),
            torch.permute_copy(x, (1, 0)),
            torch.select_copy(x, 1, -1),
            torch.slice_copy(x, 1, 1, None, 2),
            *torch.split_copy(x, 3, 1),
            *torch.unbind_copy(x, 1),
            torch.narrow_copy(x, 1, -3, 2),
            torch.detach_copy(x),
            torch.ops.aten._reshape_copy(x, [-1, 2]),
            torch.as_strided_copy(x, (2, 2), (1, 4)),
        ]

    check(function, numbers(3, 4))


def test_zero_dims_and_empty():
    def function(x, empty):
        x, empty = x + 1, empty + 1
        return [
            used(x.view(1, 1)),
            used(x.expand(3)),
            used(x.unsqueeze(-1)),
            used(x.squeeze()),
            used(x.permute(())),
            used(x.unfold(0, 1, 1)),
            used(x.unfold(-1, 0, 1)),
            used(empty.view(3, 0, 2)),
            used(empty.permute(1, 0)),
            used(empty.diagonal()),
            used(empty[1:]),
            *(used(piece) for piece in empty.split([1, 1])),
        ]

    check(function, torch.tensor(3.0), torch.empty(2, 0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_parts(dtype):
    def function(x):
        y = x + x
        return [
            used(y[-1]),
            used(y[:, 2]),
            used(y[1:]),
            used(y[-2:-1]),
            used(y[:, 1:100:2]),
            used(y[:, -100:3]),
            used(y[3:1]),
            used(y[:, ::3]),
            used(torch.ops.aten.slice.Tensor(y, -1)),
            *(used(piece) for piece in y.split([1, 0, 4], 1)),
            *(used(piece) for piece in y.split(2, -1)),
            *(used(piece) for piece in y.unbind(1)),
        ]

    check(function, numbers(4, 5, dtype=dtype))


@pytest.mark.parametrize(("offset", "dim1", "dim2"), [(0, 0, 1), (1, -1, 0), (-2, 2, 1), (9, 0, 1)])
def test_diagonal(offset, dim1, dim2):
    def function(x):
        return [used((x + 0).diagonal(offset, dim1, dim2))]

    special = numbers(3, 4, 5)
    special[0, 0, 0], special[1, 1, 1], special[2, 2, 2] = -0.0, torch.nan, torch.inf
    check(function, special)


@pytest.mark.parametrize(("size", "step"), [(1, 1), (3, 1), (2, 3), (7, 2), (40, 1)])
def test_unfold(size, step):
    def function(x):
        y = x + 1
        return [used(y.unfold(1, size, step)), used(y.transpose(0, 1).unfold(-2, size, step))]

    check(function, numbers(2, 45))
    check(function, numbers(2, 45, dtype=torch.int64))


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (torch.float32, torch.int32),
        (torch.float32, torch.bfloat16),
        (torch.int64, torch.uint8),
        (torch.int16, torch.float32),
        (torch.uint8, torch.int64),
        (torch.bool, torch.uint8),
        (torch.float16, torch.float16),
    ],
)
def test_view_dtype(source, target):
    check(lambda x: [torch.ops.aten.view_copy.dtype(x, target)], numbers(3, 16, dtype=source))
