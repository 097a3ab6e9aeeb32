"""Ops whose output sizes depend on data: programs of static shapes, cut to size on the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import tpu_compile
from tests.tpu_compile.comparing import STRICT

NAN = float("nan")
INTEGERS = torch.tensor([[3, 0, 3, 3], [2, 2, 0, 3], [3, 0, 3, 3]])
FLOATS = torch.tensor([[1.0, NAN, -0.0], [0.0, NAN, 1.0], [1.0, NAN, -0.0], [2.0, 0.5, 0.5]])
REPEATS = torch.tensor([2, 0, 3, 1])


@pytest.fixture(autouse=True)
def capture_sizes() -> Iterator[None]:
    with torch._dynamo.config.patch(
        capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True
    ):
        yield


def check(function: Callable[..., Any], *calls: tuple[torch.Tensor, ...]) -> None:
    compiled = torch.compile(function, backend="tpu", fullgraph=True, options=STRICT)
    for args in calls:
        expected = pytree.tree_leaves(function(*args))
        for ours, eager in zip(pytree.tree_leaves(compiled(*args)), expected, strict=True):
            if isinstance(eager, torch.Tensor):
                torch.testing.assert_close(ours, eager, rtol=0, atol=0, equal_nan=True)
            else:
                assert ours == eager
    assert tpu_compile.stats().fallback_ops == {}


def test_nonzero() -> None:
    check(
        torch.nonzero, (INTEGERS,), (FLOATS.ne(FLOATS),), (torch.zeros(3, 4),), (torch.tensor(2),)
    )
    check(lambda x: x.nonzero(as_tuple=True), (INTEGERS,))
    check(lambda x: torch.nonzero(x[:0]).sum(), (INTEGERS,))


def test_masks() -> None:
    check(torch.masked_select, (FLOATS, FLOATS > 0.5), (FLOATS, torch.zeros(3) > 0))
    check(lambda x, m: (x[m], x[:, m[0]] * 2, x[m].sum()), (FLOATS, FLOATS.isnan()))


def test_unique() -> None:
    def all_of_them(x, y):  # type: ignore[no-untyped-def]
        return (
            torch.unique(x, return_inverse=True, return_counts=True),
            torch.unique(x, dim=0, return_inverse=True, return_counts=True),
            torch.unique(x, dim=1),
            torch.unique_consecutive(x, return_inverse=True, return_counts=True),
            torch.unique_consecutive(x, dim=1, return_counts=True),
            torch.unique(y),
            torch.unique(y, dim=0),
        )

    check(all_of_them, (INTEGERS, FLOATS), (INTEGERS.flip(0), FLOATS[1:]))


def test_repeats_and_bins() -> None:
    check(
        lambda x, r: torch.repeat_interleave(x, r, dim=0), (FLOATS, REPEATS), (FLOATS, REPEATS // 2)
    )
    check(torch.bincount, (REPEATS,), (torch.tensor([7, 7, 0, 1]),))
    check(lambda x, w: torch.bincount(x, w, minlength=6), (REPEATS, torch.rand(4)))


def test_numbers_read_from_tensors() -> None:
    check(lambda x: (x.sum().item(), x * x.max().item()), (INTEGERS,), (INTEGERS * 2,))


def test_gradients_through_a_mask() -> None:
    def loss(x, m):  # type: ignore[no-untyped-def]
        return (x[m] ** 2).sum() + torch.masked_select(x, m).exp().sum()

    for seed in range(2):
        torch.manual_seed(seed)
        x, mask = torch.randn(4, 5), torch.randn(4, 5) > 0
        ours, eager = x.clone().requires_grad_(), x.clone().requires_grad_()
        torch.compile(loss, backend="tpu", fullgraph=True, options=STRICT)(ours, mask).backward()
        loss(eager, mask).backward()
        torch.testing.assert_close(ours.grad, eager.grad)


def test_a_new_count_compiles_nothing() -> None:
    compiled = torch.compile(torch.nonzero, backend="tpu", fullgraph=True, options=STRICT)
    compiled(torch.tensor([1, 0, 1, 0]))
    with tpu_compile.expect_compiles(0):
        assert compiled(torch.tensor([0, 0, 0, 1])).tolist() == [[3]]
        assert compiled(torch.tensor([1, 1, 1, 1])).shape == (4, 1)


def test_gradients_that_need_unique_indices() -> None:
    def loss(x, index):  # type: ignore[no-untyped-def]
        return (x.index_fill(0, index, 3.0) ** 2).sum() + x.sgn().sum()

    x, index = torch.randn(4, 3), torch.tensor([2, 0, 2])
    ours, eager = x.clone().requires_grad_(), x.clone().requires_grad_()
    torch.compile(loss, backend="tpu", fullgraph=True, options=STRICT)(ours, index).backward()
    loss(eager, index).backward()
    torch.testing.assert_close(ours.grad, eager.grad)
