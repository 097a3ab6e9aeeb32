"""Random numbers drawn by rejection."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from scipy import stats

from tests.lowering.running import run

aten = torch.ops.aten
COUNT = 20_000
# The keys are fixed, so a right program always passes: this only has to catch wrong ones.
LIKELY = 1e-3


def assert_counts(drawn, distribution):
    """Assert by a chi-square test that whole numbers follow `distribution`."""
    drawn = drawn.double().numpy()
    low, high = (int(distribution.ppf(p)) for p in (0.001, 0.999))
    edges = sorted({int(edge) for edge in torch.linspace(low, high, 30).tolist()})
    bounds = [-math.inf, *(edge + 0.5 for edge in edges), math.inf]
    cumulated = [0.0, *distribution.cdf(edges), 1.0]
    observed, expected = [], []
    for (left, right), (below, above) in zip(
        itertools.pairwise(bounds), itertools.pairwise(cumulated), strict=True
    ):
        found = int(((drawn > left) & (drawn <= right)).sum())
        if above > below:
            observed.append(found)
            expected.append((above - below) * len(drawn))
        else:
            assert found == 0
    assert stats.chisquare(observed, expected).pvalue > LIKELY


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gamma(dtype):
    parameters = [0.1, 0.7, 1.0, 2.5, 1000.0]
    drawn = run(
        lambda x: [aten._standard_gamma(x)],
        torch.tensor(parameters, dtype=dtype)[:, None].expand(-1, COUNT).contiguous(),
    )[0]
    assert drawn.dtype is dtype
    assert drawn.min() > 0
    for numbers, parameter in zip(drawn, parameters, strict=True):
        assert stats.kstest(numbers.double(), stats.gamma(parameter).cdf).pvalue > LIKELY
    assert stats.pearsonr(drawn[2][::2], drawn[2][1::2]).pvalue > LIKELY


def test_gamma_corners():
    nothing, special = run(
        lambda x, y: [aten._standard_gamma(x), aten._standard_gamma(y)],
        torch.empty(0, 3),
        torch.tensor([math.nan, 1e-3, 0.0, 2.0]),
    )
    assert nothing.shape == (0, 3)
    assert special[0].isnan()
    assert (special[1:] > 0).all()


def test_dirichlet():
    """Each share follows a beta distribution; tiny parameters leave one share near 1."""
    even, tiny = run(
        lambda x, y: [aten._sample_dirichlet(x), aten._sample_dirichlet(y)],
        torch.tensor([0.5, 2.0, 4.0]).repeat(COUNT, 1),
        torch.full((2000, 4), 1e-3),
    )
    torch.testing.assert_close(even.sum(-1), torch.ones(COUNT))
    for dim, parameter in enumerate([0.5, 2.0, 4.0]):
        marginal = stats.beta(parameter, 6.5 - parameter)
        assert stats.kstest(even[:, dim].double(), marginal.cdf).pvalue > LIKELY
    assert (tiny.max(-1).values > 0.99).double().mean() > 0.95
    assert stats.chisquare(torch.bincount(tiny.argmax(-1), minlength=4)).pvalue > LIKELY


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_poisson(dtype):
    means = [0.02, 0.8, 4.0, 9.9, 10.0, 30.0, 1e5]
    drawn = run(
        lambda x: [aten.poisson(x)],
        torch.tensor(means, dtype=dtype)[:, None].expand(-1, COUNT).contiguous(),
    )[0]
    for counts, mean in zip(drawn, means, strict=True):
        # The mean as the dtype holds it.
        assert_counts(counts, stats.poisson(torch.tensor(mean, dtype=dtype).item()))


def test_poisson_corners():
    (drawn,) = run(lambda x: [aten.poisson(x)], torch.tensor([0.0, math.nan, math.inf, 1e10]))
    assert drawn[0] == 0
    assert drawn[1:3].isnan().all()
    assert drawn[3] == pytest.approx(1e10, rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_binomial(dtype):
    cases = [(1, 0.3), (10, 0.5), (20, 0.97), (40, 0.25), (41, 0.75), (1000, 0.4), (100_000, 0.6)]
    cases.append((1000, 0.002))
    trials, chances = (torch.tensor(part, dtype=dtype) for part in zip(*cases, strict=True))
    (drawn,) = run(
        lambda n, p: [aten.binomial(n, p)],
        trials[:, None].expand(-1, COUNT).contiguous(),
        chances[:, None].expand(-1, COUNT).contiguous(),
    )
    for counts, n, p in zip(drawn, trials.tolist(), chances.tolist(), strict=True):
        assert_counts(counts, stats.binom(n, p))


def test_binomial_corners():
    trials = torch.tensor([0.0, 5.0, 5.0, 5.0, 7.0])
    chances = torch.tensor([0.5, 0.0, 1.0, math.nan, 1.0])
    nothing, drawn = run(
        lambda n, p, x: [aten.binomial(x, x), aten.binomial(n, p)], trials, chances, torch.empty(0)
    )
    assert nothing.shape == (0,)
    torch.testing.assert_close(drawn, torch.tensor([0.0, 0.0, 5.0, math.nan, 7.0]), equal_nan=True)


def test_numbers_depend_on_the_index_alone():
    """However many rounds the others take."""

    def function(x):
        return [aten._standard_gamma(x), aten.poisson(x)]

    short = run(function, torch.full((5,), 3.0))
    long = run(function, torch.cat([torch.full((5,), 3.0), torch.full((3000,), 0.2)]))
    for few, many in zip(short, long, strict=True):
        assert torch.equal(few, many[:5])
