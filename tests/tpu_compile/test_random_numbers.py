"""Random numbers through torch.compile: seeds, masks, gradients, torch.distributions."""

from __future__ import annotations

import pytest
import torch
from scipy import stats
from torch import distributions
from torch.nn import functional

from tests.tpu_compile.comparing import compiled

# Dynamo makes an object of the autograd function in torch.distributions.dirichlet.
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")

COUNT = 5000
# The seeds are fixed, so a right program always passes.
LIKELY = 1e-3


def test_seeds():
    function = compiled(lambda x: [torch.rand_like(x), torch.randperm(50), torch.randn(3)])
    x = torch.zeros(100)
    torch.manual_seed(3)
    first, second = function(x), function(x)
    torch.manual_seed(3)
    again = function(x)
    for one, other, repeated in zip(first, second, again, strict=True):
        assert not torch.equal(one, other)
        assert torch.equal(one, repeated)


@pytest.mark.parametrize("name", ["dropout", "alpha_dropout", "feature_dropout", "rrelu"])
def test_gradient_uses_the_same_mask(name):
    def function(x):
        if name == "rrelu":
            return functional.rrelu(x, 0.1, 0.3, training=True)
        if name == "feature_dropout":
            return functional.dropout2d(x, 0.4)
        return getattr(functional, name)(x, 0.4, training=True)

    x = torch.randn(4, 5, 6, 7, generator=torch.Generator().manual_seed(0)).requires_grad_()
    torch.manual_seed(0)
    result = compiled(function)(x)
    (gradient,) = torch.autograd.grad(result.sum(), x)
    assert len(gradient.unique()) > 1
    if name == "alpha_dropout":
        dropped = gradient == 0
        assert len(result[dropped].unique()) == 1
        assert 0.3 < dropped.double().mean() < 0.5
    else:
        torch.testing.assert_close(gradient * x, result)
    if name == "feature_dropout":
        planes = (gradient == 0).flatten(2)
        assert (planes.all(-1) == planes.any(-1)).all()


@pytest.mark.parametrize(
    ("ours", "law"),
    [
        (lambda: distributions.Gamma(2.5, 2.0), stats.gamma(2.5, scale=0.5)),
        (lambda: distributions.Beta(0.5, 2.0), stats.beta(0.5, 2)),
        (lambda: distributions.StudentT(4.0), stats.t(4)),
        (lambda: distributions.Chi2(3.0), stats.chi2(3)),
        (lambda: distributions.Laplace(1.0, 2.0), stats.laplace(1, 2)),
        (lambda: distributions.Gumbel(1.0, 2.0), stats.gumbel_r(1, 2)),
        (lambda: distributions.Weibull(2.0, 1.5), stats.weibull_min(1.5, scale=2)),
        (lambda: distributions.Pareto(1.0, 3.0), stats.pareto(3)),
    ],
    ids=["gamma", "beta", "student", "chi2", "laplace", "gumbel", "weibull", "pareto"],
)
def test_distributions(ours, law):
    torch.manual_seed(0)
    # The parameters are tensors of the graph.
    drawn = compiled(lambda x: ours().sample(x.shape))(torch.empty(COUNT))
    assert stats.kstest(drawn.double(), law.cdf).pvalue > LIKELY


def test_counts():
    def function(x):
        shape = x.shape
        return [
            distributions.Poisson(6.0).sample(shape),
            distributions.Binomial(9, torch.tensor(0.4)).sample(shape),
            distributions.Categorical(torch.tensor([0.1, 0.6, 0.3])).sample(shape),
        ]

    torch.manual_seed(1)
    laws = [
        stats.poisson(6),
        stats.binom(9, 0.4),
        stats.rv_discrete(values=([0, 1, 2], [0.1, 0.6, 0.3])),
    ]
    for drawn, law in zip(compiled(function)(torch.empty(COUNT)), laws, strict=True):
        counts = torch.bincount(drawn.long(), minlength=3)[:10].double().numpy()
        expected = law.pmf(range(len(counts)))
        expected = expected * counts.sum() / expected.sum()
        assert stats.chisquare(counts, expected).pvalue > LIKELY


def test_gradients_of_samples():
    """By the mean: the derivative of E[x] is 1 by a gamma parameter, and so on."""

    def function(alpha):
        return [
            distributions.Gamma(alpha, torch.ones_like(alpha)).rsample(),
            distributions.Dirichlet(alpha.reshape(-1, 2)).rsample()[:, 0],
        ]

    alpha = torch.full((COUNT, 2), 3.0, requires_grad=True)
    torch.manual_seed(0)
    gamma, dirichlet = compiled(function)(alpha)
    (slope,) = torch.autograd.grad(gamma.sum(), alpha, retain_graph=True)
    assert slope.mean() == pytest.approx(1.0, abs=0.02)
    (slope,) = torch.autograd.grad(dirichlet.sum(), alpha)
    assert slope[:, 0].mean() == pytest.approx(1 / 12, abs=0.003)
    assert slope[:, 1].mean() == pytest.approx(-1 / 12, abs=0.003)
