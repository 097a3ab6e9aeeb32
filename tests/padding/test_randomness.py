"""Random numbers do not depend on the bucket: padded programs draw what exact ones draw."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import tpu_compile
from tests.padding.checking import FILLS
from tpu_compile.framing import padding_filled

SIZES = [(3, 5), (6, 9), (8, 16), (17, 3)]


def draws(x: torch.Tensor) -> Any:
    b, s, _ = x.shape
    return (
        torch.rand(b, s),
        torch.randn(s, b, 2),
        torch.rand_like(x),
        torch.randn_like(x.reshape(-1, 4).double()),
        torch.randint(3, 1000, (s, b)),
        torch.randint(0, s, (b, 3)),
        torch.randint_like(x, 70000),
        torch.randn(b, dtype=torch.complex64),
    )


def fills(x: torch.Tensor) -> Any:
    flat = x.reshape(-1)
    return (
        torch.empty_like(x).uniform_(-2, 3),
        flat.clone().exponential_(),
        x.clone().normal_(1, 2),
        torch.normal(x, 2.0),
        torch.normal(x[:, :1], x.abs()),
        x.transpose(0, 1).clone().cauchy_(),
        x.clone().geometric_(0.25),
    )


def choices(x: torch.Tensor) -> Any:
    p = x.sigmoid()
    return (
        torch.bernoulli(p),
        p.clone().bernoulli_(0.3),
        torch.bernoulli(p.reshape(-1, 4)),
        F.dropout(x, 0.4),
        F.dropout(x.reshape(-1, 2), 0.4),
        F.rrelu(x, training=True),
        torch.randperm(x.shape[1]),
        torch.randperm(x.shape[0] * x.shape[1]),
    )


def categories(x: torch.Tensor) -> Any:
    weights = x.abs().sum(2)
    return (
        weights.multinomial(2),
        weights.multinomial(7, replacement=True),
        x[..., 0].T.abs().multinomial(1),
        x.abs().reshape(-1, 4).multinomial(3),
    )


def rejected(x: torch.Tensor) -> Any:
    positive = x.abs() + 0.1
    return (
        torch.poisson(positive * 20),
        torch._standard_gamma(positive.reshape(-1)),
    )


FUNCTIONS = [draws, fills, choices, categories, rejected]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_numbers_are_those_of_the_exact_shape(function: Callable[..., Any]) -> None:
    inputs = [torch.randn(b, s, 4) for b, s in SIZES]
    wanted = [_called(function, "exact", x, "zero") for x in inputs]
    assert tpu_compile.stats().exact_graphs == 0
    tpu_compile.reset()
    for x, outcome in zip(inputs, wanted, strict=True):
        for fill in FILLS:
            found = _called(function, "pow2", x, fill)
            for a, b in zip(found, outcome, strict=True):
                assert a.dtype == b.dtype
                assert torch.equal(a, b)
    assert tpu_compile.stats().exact_graphs == 0


def _called(
    function: Callable[..., Any], buckets: str, x: torch.Tensor, fill: str
) -> list[torch.Tensor]:
    compiled = torch.compile(
        function, backend="tpu", fullgraph=True, options={"fallback": "error", "buckets": buckets}
    )
    x = x.clone()
    torch._dynamo.mark_dynamic(x, [0, 1])
    torch.manual_seed(7)
    with padding_filled(FILLS[fill]):
        return pytree.tree_leaves(compiled(x))


def test_dropout_drops_the_same_gradients() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x * x.shape[1], 0.5)

    for b, s in SIZES:
        x = torch.randn(b, s, requires_grad=True)
        torch._dynamo.mark_dynamic(x, [0, 1])
        compiled = torch.compile(function, backend="tpu", options={"buckets": "pow2"})
        result = compiled(x)
        (gradient,) = torch.autograd.grad(result.sum(), x)
        assert torch.equal(gradient != 0, result != 0)
        assert 0 < int((result == 0).sum()) < b * s
