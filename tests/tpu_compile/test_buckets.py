"""Bucket policies, and the options that name them."""

from __future__ import annotations

import copy
import doctest
import math
import pickle
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpu_compile import buckets as buckets_module
from tpu_compile.buckets import (
    DEFAULT_MAX_PADDING,
    AutoBuckets,
    BucketPolicy,
    Dimension,
    ListBuckets,
    PolicyByName,
    policy_of,
)
from tpu_compile.errors import OptionError
from tpu_compile.options import CompileOptions

FREE = Dimension("x.size(0)")
LADDER = [8, 16, 32, 64, 128, 256, 384, 512, 640, 768, 896, 1024]


@dataclass  # not frozen: compared by value, but without a hash
class Odd:
    """A user's policy: the next odd size."""

    weighs_cost: bool = False

    def bucket(self, size: int, dimension: Dimension) -> int:
        return size | 1


def buckets_up_to(policy: BucketPolicy, largest: int, dimension: Dimension = FREE) -> list[int]:
    return sorted({policy.bucket(size, dimension) for size in range(largest + 1)})


# Policies


def test_auto_has_powers_of_two_then_multiples_then_four_steps_a_doubling() -> None:
    beyond = [1280, 1536, 1792, 2048, 2560, 3072, 3584, 4096]
    assert buckets_up_to(AutoBuckets(), 4096) == LADDER + beyond


@pytest.mark.parametrize(
    ("buckets", "expected"),
    [
        ("exact", {0: 0, 1: 1, 7: 7, 1000: 1000}),
        ("pow2", {0: 1, 1: 1, 2: 2, 3: 4, 8: 8, 9: 16, 1025: 2048}),
        (24, {0: 24, 1: 24, 24: 24, 25: 48}),
        ((16, 100), {0: 16, 16: 16, 17: 100, 101: 200, 201: 300}),
        ("auto", {0: 8, 8: 8, 9: 16, 129: 256, 257: 384}),
    ],
)
def test_policies(buckets: Any, expected: dict[int, int]) -> None:
    policy = policy_of(buckets)
    assert {size: policy.bucket(size, FREE) for size in expected} == expected
    assert isinstance(policy, BucketPolicy)
    assert policy.weighs_cost == (buckets == "auto")


@pytest.mark.parametrize(
    ("max_padding", "expected"),
    [
        (0, [8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]),
        (0.25, [8, 12, 16, 22]),
        (0.75, [8, 32]),
        (1, [8, 128]),
    ],
)
def test_max_padding_sets_the_steps(max_padding: float, expected: list[int]) -> None:
    assert buckets_up_to(policy_of("auto", max_padding), 20) == expected


def test_max_padding_above_a_half_leaves_powers_of_two() -> None:
    assert buckets_up_to(AutoBuckets(0.6), 1024) == [8, 16, 32, 64, 128, 256, 512, 1024]


POLICIES = st.one_of(
    st.sampled_from(["auto", "pow2", "exact"]),
    st.integers(1, 300),
    st.lists(st.integers(1, 3000), min_size=1, max_size=6).map(lambda s: tuple(sorted(set(s)))),
)


@given(
    buckets=POLICIES,
    max_padding=st.one_of(st.none(), st.floats(0, 1)),
    size=st.integers(0, 5000),
    other=st.integers(0, 5000),
    maximum=st.one_of(st.none(), st.integers(1, 5000)),
)
def test_buckets_are_upper_bounds_monotone_idempotent_and_clamped(
    buckets: Any, max_padding: float | None, size: int, other: int, maximum: int | None
) -> None:
    if maximum is not None:
        size, other = min(size, maximum), min(other, maximum)
    dimension = Dimension("x", 0, maximum)
    policy = policy_of(buckets, max_padding)
    bucket = policy.bucket(size, dimension)
    assert bucket >= size
    assert maximum is None or bucket <= maximum
    assert policy.bucket(bucket, dimension) == bucket
    smaller, larger = sorted((size, other))
    assert policy.bucket(smaller, dimension) <= policy.bucket(larger, dimension)


def test_a_size_above_its_maximum_is_padded_without_it() -> None:
    for buckets in ("auto", "pow2", 16, (16,)):
        assert policy_of(buckets).bucket(20, Dimension("x", 0, 10)) >= 20


@given(st.integers(9, 10**7), st.one_of(st.none(), st.floats(0.01, 15 / 16)))
def test_auto_keeps_to_max_padding(size: int, max_padding: float | None) -> None:
    allowed = DEFAULT_MAX_PADDING if max_padding is None else max_padding
    assert 1 - size / AutoBuckets(max_padding).bucket(size, FREE) <= allowed + 1e-9


@given(st.integers(1025, 10**9))
def test_auto_pads_large_sizes_by_a_fifth_at_most(size: int) -> None:
    assert 1 - size / AutoBuckets().bucket(size, FREE) <= 0.2


@given(st.integers(4, 24), st.floats(0.05, 1))
def test_the_number_of_buckets_is_logarithmic(doublings: int, max_padding: float) -> None:
    policy, count, size = AutoBuckets(max_padding), 0, 0
    while size < 1 << doublings:
        size = policy.bucket(size + 1, FREE)
        count += 1
    # Rounding to what XLA can tile gives up less than half of the logarithm of a step.
    steps_a_doubling = max(1 / -math.log2(1 - min(max_padding, 0.5)), 4)
    assert count <= 2 * doublings * steps_a_doubling


def test_a_mapping_has_a_policy_for_each_name() -> None:
    policy = policy_of({"batch": "exact", "time": (100, 200)}, 0.75)
    assert policy.bucket(5, Dimension("batch")) == 5
    assert policy.bucket(5, Dimension("time")) == 100
    assert policy.bucket(9, Dimension("other")) == 32  # auto, by max_padding
    assert policy.bucket(9, Dimension(None)) == 32
    assert policy.weighs_cost
    rest = policy_of({"batch": 3, "*": "pow2"})
    assert rest.bucket(9, Dimension("other")) == 16
    assert not rest.weighs_cost
    assert policy_of(Odd()) == Odd()


def test_the_rest_of_a_mapping_is_auto() -> None:
    policy = policy_of({"a": (4,)})
    assert isinstance(policy, PolicyByName)
    assert isinstance(policy.of(Dimension("a")), ListBuckets)
    assert isinstance(policy.of(Dimension("b")), AutoBuckets)


# Options


@pytest.mark.parametrize(
    ("buckets", "word"),
    [
        ({}, "as keys"),
        ({3: "auto"}, "as keys"),
        ({"batch": "pow3"}, "'pow3'"),
        ({"batch": 0}, 'buckets["batch"]'),
        ({"batch": {"inner": 1}}, "inner"),
        (Odd, "weighs_cost"),
        (object(), "weighs_cost"),
        (type("NoFlag", (), {"bucket": lambda self, size, dimension: size})(), "weighs_cost"),
    ],
)
def test_bad_options(buckets: Any, word: str) -> None:
    with pytest.raises(OptionError) as caught:
        CompileOptions(buckets=buckets)
    assert word in str(caught.value)
    assert "buckets" in str(caught.value)


@pytest.mark.parametrize(
    ("one", "equal", "other"),
    [
        (
            {"batch": [8, 4], "*": "auto"},
            {"*": "auto", "batch": (4, 8)},
            {"*": "pow2", "batch": (4, 8)},
        ),
        ({"batch": Odd()}, {"batch": Odd()}, {"batch": Odd(weighs_cost=True)}),
        (Odd(), Odd(), Odd(weighs_cost=True)),
    ],
)
def test_options_with_mappings_and_policies_are_compared_by_value(
    one: Any, equal: Any, other: Any
) -> None:
    options = CompileOptions(buckets=one)
    for same in (
        CompileOptions(buckets=equal),
        copy.deepcopy(options),
        pickle.loads(pickle.dumps(options)),
    ):
        assert same == options
        assert hash(same) == hash(options)
    assert CompileOptions(buckets=other) != options


def test_a_mapping_given_as_option_cannot_be_changed_afterwards() -> None:
    given_buckets = {"batch": 8}
    options = CompileOptions(buckets=given_buckets)
    given_buckets["batch"] = 9
    assert options.buckets == {"batch": 8}
    with pytest.raises(TypeError):
        options.buckets["batch"] = 9  # type: ignore[index]


def test_examples() -> None:
    results = doctest.testmod(buckets_module)
    assert results.attempted
    assert not results.failed
