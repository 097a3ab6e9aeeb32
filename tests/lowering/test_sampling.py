"""Dropout, coin flips, permutations, draws from given probabilities."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from tests.lowering.running import check, run
from tests.lowering.test_random import COUNT, LIKELY

aten = torch.ops.aten


def same(ours, eager):
    return torch.equal(ours.nan_to_num(-1), eager.nan_to_num(-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout(dtype):
    x = torch.linspace(-3, 3, COUNT).to(dtype)
    x[:20] = torch.nan
    result, mask = run(lambda x: list(aten.native_dropout(x, 0.3, True)), x)
    assert mask.dtype is torch.bool
    assert same(result, (x * mask) * (1 / 0.7))
    assert stats.binomtest(int(mask.sum()), COUNT, 0.7).pvalue > LIKELY


def test_dropout_edges():
    """What is certain is as in eager, where no training is asked for too."""

    def function(x):
        return [
            *aten.native_dropout(x, 0.0, True),
            *aten.native_dropout(x, 1.0, True),
            *aten.native_dropout(x, 0.5, False),
            aten.native_dropout(x[:0], 0.5, True)[0],
        ]

    check(function, torch.tensor([1.0, torch.nan, -torch.inf]))


def test_coin_flips():
    def function(x, i, p):
        return [
            torch.bernoulli(x, 0.25),
            aten.bernoulli.p(i, 0.25),
            aten.bernoulli.Tensor(i, p),
            torch.bernoulli(p),
            aten.bernoulli.p(x, 0.0),
            aten.bernoulli.p(x, 1.0),
            aten.bernoulli.Tensor(x, torch.zeros(())),
            aten.bernoulli.Tensor(x, torch.ones((), dtype=torch.float64)),
        ]

    x, p = torch.empty(COUNT), torch.full((COUNT,), 0.25)
    i = torch.empty(COUNT, dtype=torch.int64)
    *quarter, never, always, no, yes = run(function, x, i, p)
    for drawn in quarter:
        assert stats.binomtest(int(drawn.sum()), COUNT, 0.25).pvalue > LIKELY
    assert [drawn.dtype for drawn in quarter[:3]] == [torch.float32, torch.int64, torch.int64]
    assert not never.any()
    assert not no.any()
    assert always.all()
    assert yes.all()


def test_permutations():
    drawn, narrow, none = run(
        lambda: [torch.randperm(500), torch.randperm(6, dtype=torch.int32), torch.randperm(0)]
    )
    assert torch.equal(drawn.sort().values, torch.arange(500))
    assert abs(stats.spearmanr(drawn, torch.arange(500)).statistic) < 0.15
    assert sorted(narrow.tolist()) == list(range(6))
    assert narrow.dtype is torch.int32
    assert none.shape == (0,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_multinomial(dtype):
    def function(line, rows):
        return [
            torch.multinomial(line, COUNT, replacement=True),
            torch.multinomial(rows, 1)[:, 0],
            torch.multinomial(rows, 3),
            torch.multinomial(rows, 1, replacement=True)[:, 0],
        ]

    weights = torch.tensor([0.0, 1.0, 4.0, 0.0, 3.0, 0.0], dtype=dtype)
    many, single, several, again = run(function, weights, weights.expand(COUNT, 6))
    for drawn in (many, single, several[:, 0], again):
        counts = torch.bincount(drawn, minlength=6)
        assert counts[[0, 3, 5]].sum() == 0
        assert (
            stats.chisquare(counts[[1, 2, 4]], torch.tensor([1, 4, 3]) * COUNT / 8).pvalue > LIKELY
        )
    assert torch.equal(several.sort(1).values, torch.tensor([1, 2, 4]).expand(COUNT, 3))
