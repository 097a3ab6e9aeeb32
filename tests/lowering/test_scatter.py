"""Writing by index tensors."""

from __future__ import annotations

import pytest
import torch

from lowering.registry import unsupported_reason
from tests.lowering.running import check, trace
from tests.lowering.test_indexing import positions
from tests.lowering.test_views import DTYPES, numbers

aten = torch.ops.aten
MODES = ["sum", "prod", "mean", "amax", "amin"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_scatter(dtype):
    def function(x, index, src, zero_dim, zero):
        return [
            x.scatter(1, index, src),
            x.scatter(0, index[:2], src),
            x.scatter(-1, index, 1),
            x.scatter(1, index[:, :0], src),
            x[0].scatter(0, zero, 7),
            zero_dim.scatter(0, zero, zero_dim + zero_dim),
            zero_dim.scatter(0, zero.expand(2), src[0]),
        ]

    x = numbers(3, 4, dtype=dtype)
    src = (20 + numbers(4, 5, dtype=torch.int64)).to(dtype)
    index = positions([2, 1, 0], [0, 1, 2], [1, 0, 2])
    check(function, x, index, src, x[1, 1], torch.tensor(0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.uint8, torch.bool])
def test_scatter_add(dtype):
    def function(x, index, src):
        return [
            x.scatter_add(1, index, src),
            x.scatter_add(0, index, src),
            x[0].scatter_add(0, index[0, 0], src[0, 0]),
            x.scatter_add(1, index[:0], src),
        ]

    x, src = numbers(3, 4, dtype=dtype), numbers(3, 5, dtype=dtype)
    check(function, x, positions([0, 0, 0, 2], [1, 2, 1, 2]), src)


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_scatter_reduce(dtype, include_self):
    def function(x, index, src):
        return [x.scatter_reduce(1, index, src, mode, include_self=include_self) for mode in MODES]

    x = torch.tensor([[-5, 7, 3, 2], [1, -1, 4, 0]]).to(dtype)
    src = torch.tensor([[-2, -4, 1, 3], [3, 2, -7, 5]]).to(dtype)
    check(function, x, positions([0, 0, 1, 0], [3, 3, 0, 1]), src)


@pytest.mark.filterwarnings("ignore:The reduce argument")
def test_scatter_reduce_special_values():
    def function(x, index, src, flags, other):
        return [
            *(x.scatter_reduce(0, index, src, mode) for mode in MODES),
            *(x.scatter_reduce(0, index, src, mode, include_self=False) for mode in MODES),
            *(flags.scatter_reduce(0, index, other, mode) for mode in MODES if mode != "mean"),
            x.scatter(0, index, src, reduce="add"),
            x.scatter(0, index, src, reduce="multiply"),
            x.scatter(0, index, 3, reduce="add"),
            x.scatter(0, index, 3, reduce="multiply"),
        ]

    check(
        function,
        torch.tensor([torch.nan, 0.0, -torch.inf, torch.inf]),
        positions(0, 1, 1, 2, 3),
        torch.tensor([1.0, torch.nan, 2.0, -torch.inf, -torch.inf]),
        torch.tensor([True, False, True, False]),
        torch.tensor([False, True, False, True, False]),
    )


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.filterwarnings("ignore:index_reduce")
def test_index_reduce(include_self):
    def function(x, index, source, zero_dim, zero):
        results = []
        for mode in MODES[1:]:
            results += [
                x.index_reduce(0, index, source, mode, include_self=include_self),
                x.index_reduce(1, index[:2], source[:2, :2], mode, include_self=include_self),
                zero_dim.index_reduce(0, zero, zero_dim, mode, include_self=include_self),
            ]
        return results

    x, source = torch.tensor([[-5, 7], [3, 2]]), torch.tensor([[-2, 4], [3, 2], [-7, 5]])
    for dtype in (torch.float16, torch.int64):
        given = x.to(dtype)
        check(function, given, positions(1, 0, 1), source.to(dtype), given[0, 0], torch.tensor(0))


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.uint8, torch.bool])
def test_index_put(dtype, accumulate):
    """Index dims of the values stand as in `x[...]`; single values and rows broadcast."""

    def function(x, i, j, column, value, zero_dim):
        return [
            x.index_put((i,), value, accumulate),
            x.index_put((i, j), value[0, 0], accumulate),
            aten.index_put(x, [None, i, j], zero_dim, accumulate),
            aten.index_put(x, [i, None, j], value[0, :2, :3], accumulate),
            aten.index_put(x, [None, j], value[:2, :2, :1], accumulate),
            x.index_put((column, i), zero_dim, accumulate),
            x.index_put((i[:0],), zero_dim, accumulate),
            aten.index_put(x[:0], [None, i], zero_dim, accumulate),
        ]

    x, value = numbers(2, 3, 4, dtype=dtype), numbers(2, 3, 4, dtype=dtype)
    i, j = positions(0, -1), positions(-2, 0)
    check(function, x, i, j, positions([1], [0]), value, x[0, 1, 1])


def test_index_put_accumulates_repeated_places():
    def function(x, i, value, flags):
        return [
            x.index_put((i,), value, accumulate=True),
            aten.index_put(x, [None, i], value[:, :1], accumulate=True),
            flags.index_put((i,), flags[i], accumulate=True),
        ]

    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        value, flags = numbers(4, 4, dtype=dtype), torch.tensor([False, True, False, False])
        x = numbers(4, 4, dtype=dtype)
        check(function, x, positions(1, 0, 1, -3), value, flags)


@pytest.mark.parametrize("accumulate", [False, True])
def test_index_put_mask(accumulate):
    def function(x, full, rows, columns, zero_dim, line, entries, pieces):
        return [
            x.index_put((full,), zero_dim, accumulate),
            x.index_put((rows,), zero_dim, accumulate),
            x.index_put((rows,), line, accumulate),
            aten.index_put(x, [None, columns], zero_dim, accumulate),
            x.index_put((full,), entries, accumulate),
            aten.index_put(x, [None, columns], pieces, accumulate),
            aten.index_put(x[:0], [rows[:0]], zero_dim, accumulate),
        ]

    full = torch.tensor([[True, False, True, True], [False] * 4, [True, False, False, True]])
    rows, columns = torch.tensor([True, False, True]), torch.tensor([False, True, True, False])
    for dtype in (torch.float32, torch.int64):
        x = numbers(3, 4, dtype=dtype)
        line, entries = 50 + numbers(1, 4, dtype=dtype), 70 + numbers(5, dtype=dtype)
        check(
            function,
            x,
            full,
            rows,
            columns,
            x[2, 3],
            line,
            entries,
            90 + numbers(3, 2, dtype=dtype),
        )


def test_mask_beside_index_is_declined():
    graph = trace(lambda x, i: [x.index_put((i, i), x[0, 0])], numbers(3, 4), positions(1, 0))
    node = next(node for node in graph.graph.nodes if node.target is aten.index_put.default)
    assert unsupported_reason(node, "cpu") is None
    node.args[1][0].meta["val"] = node.args[1][0].meta["val"].bool()
    assert "boolean" in unsupported_reason(node, "cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_put(dtype):
    def function(x, index, source):
        return [
            x.put(index[:, :1], source[:, :1]),
            x.put(index, source, accumulate=True),
            x.put(index[:0], source[:0]),
        ]

    index = positions([0, -1], [5, 0])
    check(function, numbers(3, 4, dtype=dtype), index, 30 + numbers(2, 2, dtype=dtype))
