"""Reading by index tensors."""

from __future__ import annotations

import pytest
import torch

from lowering.registry import unsupported_reason
from tests.lowering.running import check, trace
from tests.lowering.test_views import DTYPES, numbers

aten = torch.ops.aten


def positions(*values, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_index(dtype):
    """Index dims stand where the indices are adjacent, else in front; None keeps a dim."""

    def function(x, i, j, column):
        return [
            x[i],
            x[i, j],
            x[:, i, j],
            x[:, :, i, j],
            x[i, :, j],
            x[:, i, :, j],
            x[column, i],
            x[column, :, i],
            x[:, column],
            x[i, j, i, j],
            x[torch.ops.aten.view_copy(i, (1, 3)), column],
        ]

    x = numbers(2, 3, 4, 5, dtype=dtype)
    check(function, x, positions(0, -1, 1), positions(-2, 1, 0), positions(1, 0)[:, None])


def test_index_dtypes_and_empty():
    def function(x, i, none, zero):
        return [x[i], x[:, none], x[none, none], aten.index(x, [None, zero]), x[:0, i]]

    check(
        function,
        numbers(3, 4),
        positions(2, -3, dtype=torch.int32),
        positions(),
        torch.tensor(-1),
    )


def test_boolean_index_is_declined():
    node = next(
        node
        for node in trace(lambda x, i: [x[i]], numbers(3, 4), positions(1, 0)).graph.nodes
        if node.target is aten.index.Tensor
    )
    assert unsupported_reason(node, "cpu") is None
    index = node.args[1][0]
    index.meta["val"] = index.meta["val"].bool()
    assert "depends on data" in unsupported_reason(node, "cpu")


@pytest.mark.parametrize("dtype", DTYPES)
def test_gather(dtype):
    def function(x, index, zero_dim, zero):
        return [
            x.gather(1, index),
            x.gather(-1, index),
            x.gather(0, index[:1] + 1),
            x.gather(1, index[:, :0]),
            x[0].gather(0, index[0]),
            x[0].gather(0, zero),
            zero_dim.gather(0, zero),
            zero_dim.gather(-1, zero.expand(3)),
        ]

    x = numbers(3, 4, dtype=dtype)
    check(function, x, positions([0, 1, 1], [2, 0, 3 - 1]), x[1, 2], torch.tensor(0))


def test_index_select_and_embedding():
    def function(x, i, zero, zero_dim, empty):
        return [
            x.index_select(0, i),
            x.index_select(-1, i + 1),
            x.index_select(1, zero),
            x[0].index_select(0, zero),
            zero_dim.index_select(0, zero),
            x.index_select(0, empty),
            torch.nn.functional.embedding(i, x),
            torch.nn.functional.embedding(zero, x),
            torch.nn.functional.embedding(aten.view_copy(i, (1, 3)), x, padding_idx=1),
            torch.nn.functional.embedding(empty, x),
        ]

    i, zero, empty = positions(2, 0, 1), torch.tensor(0), positions()
    for x in (numbers(3, 4), numbers(3, 4, dtype=torch.bfloat16)):
        check(function, x, i, zero, x[0, 3], empty)
    check(function, numbers(3, 4), i.int(), zero.int(), numbers(1)[0], empty.int())


def test_masked_scatter():
    def function(x, mask, row, source):
        return [
            x.masked_scatter(mask, source),
            x.masked_scatter(row, source),
            x[:1].masked_scatter(mask, source),
            x[:0].masked_scatter(mask[:0], source),
        ]

    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(5, 7, generator=generator) < 0.4
    for dtype in (torch.float16, torch.int64):
        source = 100 + numbers(40, dtype=dtype)
        check(function, numbers(5, 7, dtype=dtype), mask, mask[0], source)


@pytest.mark.parametrize("size", [0, 2, 9])
def test_nonzero_static(size):
    def function(x, flags, zero_dim):
        return [
            aten.nonzero_static(x, size=size),
            aten.nonzero_static(flags, size=size, fill_value=7),
            aten.nonzero_static(zero_dim, size=size),
        ]

    x = torch.tensor([[0.0, torch.nan, -0.0], [1.0, 0.0, -2.0]])
    check(function, x, torch.tensor([True, False, True]), torch.tensor(3))
