"""Random fills: the bits, the distributions, and that draws depend on key, op and index alone."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from lowering.threefry import KEY_PARITY, ROTATIONS
from tests.lowering.running import check, run

aten = torch.ops.aten
COUNT = 20_000
# The keys are fixed, so a right program always passes: this only has to catch wrong ones.
LIKELY = 1e-3


def reference(key, counter):
    """Return Threefry-2x32 with 20 rounds on Python integers."""
    schedule = (*key, key[0] ^ key[1] ^ KEY_PARITY)
    left, right = ((c + k) % 2**32 for c, k in zip(counter, key, strict=True))
    for group in range(5):
        for distance in ROTATIONS[group % 2]:
            left = (left + right) % 2**32
            right = left ^ ((right << distance | right >> (32 - distance)) % 2**32)
        left = (left + schedule[(group + 1) % 3]) % 2**32
        right = (right + schedule[(group + 2) % 3] + group + 1) % 2**32
    return left, right


@pytest.mark.parametrize(
    ("key", "counter", "words"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((2**32 - 1,) * 2, (2**32 - 1,) * 2, (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_reference_gives_the_published_words(key, counter, words):
    assert reference(key, counter) == words


def test_bits():
    """All 64 bits of the second op's elements; the harness's key is (1, 2)."""
    shape = (3, 5)
    _, drawn = run(lambda: [torch.rand(2), torch.randint(-(2**63), 2**63 - 1, shape)])
    for index, number in enumerate(drawn.flatten().tolist()):
        left, right = reference((1, 2), (index, 2 << 2))
        assert (number + 2**63) % 2**64 == left << 32 | right


def test_numbers_depend_on_the_index_alone():
    def function():
        return [torch.rand(4, 6), torch.rand(4, 6)]

    first, second = run(function)
    assert not torch.equal(first, second)
    assert torch.equal(run(function)[1], second)
    (longer,) = run(lambda: [torch.rand(9, 2, 3)])
    assert torch.equal(longer.flatten()[:24], first.flatten())


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64]
)
def test_shapes_and_dtypes(dtype):
    """Nothing but shape, dtype and range can be compared with eager."""

    def function(x):
        return [
            torch.rand(3, 2, dtype=dtype),
            torch.randn(3, 2, dtype=dtype),
            torch.rand_like(x),
            torch.randn_like(x),
            torch.rand((), dtype=dtype),
            torch.randn(0, 3, dtype=dtype),
        ]

    x = torch.zeros(2, 3, dtype=dtype)
    for ours, eager in zip(run(function, x), function(x), strict=True):
        assert (ours.dtype, ours.shape) == (eager.dtype, eager.shape)
        assert (
            torch.view_as_real(ours).isfinite().all() if dtype.is_complex else ours.isfinite().all()
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_uniform(dtype):
    unit, ranged = run(
        lambda x: [torch.rand(COUNT, dtype=dtype), aten.uniform(x, -2.0, 3.0)],
        torch.empty(COUNT, dtype=dtype),
    )
    for drawn, low, high in ((unit, 0, 1), (ranged, -2, 3)):
        assert drawn.min() >= low
        assert drawn.max() <= high
        assert drawn.double().mean() == pytest.approx((low + high) / 2, abs=0.03)
    assert unit.max() < 1
    if dtype.itemsize > 2:
        assert stats.kstest(unit.double(), "uniform").pvalue > LIKELY
        assert stats.kstest(ranged.double(), "uniform", (-2, 5)).pvalue > LIKELY
        pairs = torch.histogramdd(unit.double().reshape(-1, 2), [8, 8], range=[0, 1, 0, 1]).hist
        assert stats.chisquare(pairs.flatten()).pvalue > LIKELY


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_continuous_distributions(dtype):
    def function(x):
        return [
            torch.randn(COUNT, dtype=dtype),
            aten.normal_functional(x, 3.0, 0.5),
            aten.exponential(x, 2.0),
            aten.cauchy(x, 1.0, 0.5),
            aten.log_normal(x, 0.5, 0.25),
        ]

    drawn = run(function, torch.empty(COUNT, dtype=dtype))
    expected = [
        stats.norm(),
        stats.norm(3, 0.5),
        stats.expon(scale=0.5),
        stats.cauchy(1, 0.5),
        stats.lognorm(0.25, scale=math.exp(0.5)),
    ]
    for numbers, distribution in zip(drawn, expected, strict=True):
        assert numbers.dtype is dtype
        assert stats.kstest(numbers.double(), distribution.cdf).pvalue > LIKELY
    assert drawn[2].min() > 0
    assert stats.pearsonr(drawn[0][::2], drawn[0][1::2]).pvalue > LIKELY


def test_complex_normal():
    (drawn,) = run(lambda: [torch.randn(COUNT, dtype=torch.complex64)])
    for part in (drawn.real, drawn.imag):
        assert stats.kstest(part.double(), stats.norm(0, math.sqrt(0.5)).cdf).pvalue > LIKELY
    assert stats.pearsonr(drawn.real, drawn.imag).pvalue > LIKELY


def test_normal_by_element():
    def function(mean, std):
        return [
            torch.normal(mean, std),
            torch.normal(mean, 2.0),
            torch.normal(1.0, std),
            torch.normal(5.0, 0.1, (3, 4)),
        ]

    mean, std = torch.linspace(-3, 3, COUNT), torch.linspace(0, 2, COUNT)
    both, by_mean, by_std, filled = run(function, mean, std)
    assert both[0] == mean[0]
    assert stats.kstest(((both - mean) / std)[1:], "norm").pvalue > LIKELY
    assert stats.kstest((by_mean - mean) / 2, "norm").pvalue > LIKELY
    assert stats.kstest(((by_std - 1) / std)[1:], "norm").pvalue > LIKELY
    assert filled.shape == (3, 4)
    assert filled.mean() == pytest.approx(5.0, abs=0.2)


def test_integers():
    def function(x):
        return [
            torch.randint(7, (COUNT,)),
            torch.randint(-3, 4, (COUNT,), dtype=torch.int32),
            torch.randint_like(x, 7),
            torch.randint_like(x, -3, 4),
            aten.random.to(x, 7),
            torch.randint(100_000 * 7, (COUNT,)) // 100_000,
            torch.randint(2**40 * 7, (COUNT,)) // 2**40,
            torch.randint(0, 7, (COUNT,), dtype=torch.float32),
            torch.randint_like(x, torch.tensor(7)),
        ]

    x = torch.empty(COUNT, dtype=torch.int16)
    for ours, eager in zip(run(function, x), function(x), strict=True):
        assert ours.dtype is eager.dtype
        counts = torch.bincount((ours - eager.min()).long(), minlength=7)
        assert len(counts) == 7
        assert stats.chisquare(counts).pvalue > LIKELY


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int64, torch.bool, torch.float32])
def test_whole_range(dtype):
    (drawn,) = run(lambda x: [aten.random(x)], torch.empty(COUNT, dtype=dtype))
    assert drawn.dtype is dtype
    end = (
        2
        if dtype is torch.bool
        else 2**24
        if dtype.is_floating_point
        else torch.iinfo(dtype).max + 1
    )
    assert stats.kstest((drawn.double() + 0.5) / end, "uniform").statistic < (
        0.6 if end == 2 else 0.02
    )


def test_geometric():
    (fair,) = run(lambda x: [aten.geometric(x, 0.3)], torch.empty(COUNT))
    assert fair.min() == 1
    expected = stats.geom(0.3).pmf(range(1, 9)) * COUNT
    counts = torch.bincount(fair.long())[1:9].double().numpy()
    assert stats.chisquare(counts, expected * counts.sum() / expected.sum()).pvalue > LIKELY


def test_random_leaky_relu():
    def function(x, noise, training):
        return list(aten.rrelu_with_noise_functional(x, noise, 0.1, 0.3, training))

    x, noise = torch.randn(COUNT), torch.zeros(COUNT)
    check(lambda x, noise: function(x, noise, False), x, noise)
    result, slope = run(lambda x, noise: function(x, noise, True), x, noise)
    assert (slope[x > 0] == 1).all()
    assert torch.equal(result, x * slope)
    assert stats.kstest(slope[x <= 0], "uniform", (0.1, 0.2)).pvalue > LIKELY
