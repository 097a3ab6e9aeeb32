"""Bucket policies: to which size a dynamic dimension is padded.

Policies have no state that matters: what is compiled, and whether a call should rather run in a
larger bucket, is `tpu_compile.chooser`'s. Plain Python: nothing here knows torch or XLA.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from tpu_compile.errors import OptionError

REST = "*"
"""Key of a mapping of policies that stands for the dimensions it does not name."""

DEFAULT_MAX_PADDING = 0.5
"""What powers of two keep to. It leaves 3 buckets up to 32 and 12 up to 1024; a quarter would
make that 6 and 22, each of which may cost a compile of minutes."""

SMALLEST_BUCKET = 8
"""Of `auto`: the rows of a TPU register, so that a smaller bucket saves nothing there."""

_LANES = 128  # columns of a TPU register
_LAST_MULTIPLE = 1024  # up to here a step of 128 makes few buckets
_STEPS_PER_OCTAVE = 4  # beyond it; padding there is at most a fifth
_MOST_PADDING = 15 / 16  # of `max_padding`: a step of any size would fit no memory


@dataclass(frozen=True)
class Dimension:
    """One dynamic dimension of a graph: a symbol."""

    name: str | None
    """The user's name if there is one, else a readable source such as `"x.size(1)"`."""

    minimum: int = 0
    """Smallest size that the graph is guarded to take."""

    maximum: int | None = None
    """Largest size declared or guarded; None if there is no bound."""


@runtime_checkable
class BucketPolicy(Protocol):
    """Says to which size a dimension is padded; implement it for a policy of your own.

    Pass an instance as the option `buckets`, or as a value of a mapping given there. It is called
    at every call of the compiled function, perhaps from several threads: be quick, and give the
    same answer for the same arguments.

    >>> class Even:
    ...     weighs_cost = False
    ...
    ...     def bucket(self, size: int, dimension: Dimension) -> int:
    ...         even = size + size % 2
    ...         return even if dimension.maximum is None else min(even, dimension.maximum)
    >>> import tpu_compile
    >>> options = tpu_compile.CompileOptions(buckets={"batch": Even(), "*": "auto"})
    >>> policy_of(options.buckets).bucket(7, Dimension("batch", maximum=32))
    8
    """

    @property
    def weighs_cost(self) -> bool:
        """Whether a call may run in a larger compiled bucket instead of compiling its own.

        False makes every call run in exactly the bucket of its sizes: predictable, and a compile
        for each bucket that is met. A plain class attribute will do.
        """

    def bucket(self, size: int, dimension: Dimension) -> int:
        """Return the size that `size` is padded to.

        At least `size`, at most `dimension.maximum` where there is one, never less for a larger
        `size`, and itself when given a bucket. Anything else raises `OptionError` at the call
        where it is noticed.
        """


def _clamp(bucket: int, size: int, dimension: Dimension) -> int:
    """Return `bucket` or the dimension's maximum if less; a maximum below `size` is no maximum."""
    maximum = dimension.maximum
    return bucket if maximum is None or maximum < size else min(bucket, maximum)


@dataclass(frozen=True)
class ExactBuckets:
    """No padding: a program for every size."""

    weighs_cost = False

    def bucket(self, size: int, dimension: Dimension) -> int:
        """Return `size`."""
        return size


@dataclass(frozen=True)
class PowerOfTwoBuckets:
    """The next power of two: 1, 2, 4, 8 and so on."""

    weighs_cost = False

    def bucket(self, size: int, dimension: Dimension) -> int:
        """Return the least power of two that is not below `size`; the maximum if that is less."""
        return _clamp(1 << max(size - 1, 0).bit_length(), size, dimension)


@dataclass(frozen=True)
class MultipleBuckets:
    """Multiples of `step`, from `step` itself."""

    step: int
    weighs_cost = False

    def bucket(self, size: int, dimension: Dimension) -> int:
        """Return the next multiple of the step; the maximum if that is less."""
        return _clamp(max(-(-size // self.step), 1) * self.step, size, dimension)


@dataclass(frozen=True)
class ListBuckets:
    """The sizes of a list; beyond its largest, multiples of that."""

    sizes: tuple[int, ...]
    """In increasing order, not empty."""

    weighs_cost = False

    def bucket(self, size: int, dimension: Dimension) -> int:
        """Return the least listed size that is not below `size`; the maximum if that is less."""
        if size > self.sizes[-1]:
            return MultipleBuckets(self.sizes[-1]).bucket(size, dimension)
        return _clamp(self.sizes[bisect.bisect_left(self.sizes, size)], size, dimension)


class AutoBuckets:
    """Few sizes, none of which pads much; whether each is worth its compile is the Chooser's.

    Powers of two from 8 to 128, multiples of 128 up to 1024, then four steps in each doubling,
    which pad by a fifth at most. A `max_padding` below a half, its default, makes the steps
    finer; one above a half makes them powers of two, then of four, and so on.

    Args:
        max_padding: the largest share of the elements of a bucket that may be padding,
            `1 - size / bucket`, for every size above the smallest bucket, 8. With 0 every size
            above 8 is a bucket; more than 15/16 counts as that. Room left for growth is not
            counted.
    """

    weighs_cost = True

    def __init__(self, max_padding: float | None = None) -> None:
        chosen = DEFAULT_MAX_PADDING if max_padding is None else max_padding
        self.max_padding = min(chosen, _MOST_PADDING)
        self._ladder: tuple[int, ...] = (SMALLEST_BUCKET,)

    def __repr__(self) -> str:
        return f"AutoBuckets(max_padding={self.max_padding})"

    def bucket(self, size: int, dimension: Dimension) -> int:
        """Return the least step that is not below `size`; the maximum if that is less."""
        if self.max_padding == 0:
            return _clamp(max(size, SMALLEST_BUCKET), size, dimension)
        ladder = self._ladder
        if size > ladder[-1]:
            ladder = self._longer(ladder, size)
        return _clamp(ladder[bisect.bisect_left(ladder, size)], size, dimension)

    def _longer(self, ladder: tuple[int, ...], size: int) -> tuple[int, ...]:
        """Return the ladder up to `size`, and keep it: threads that race here agree on it."""
        steps = list(ladder)
        while steps[-1] < size:
            steps.append(self._step_after(steps[-1]))
        self._ladder = tuple(steps)
        return self._ladder

    def _step_after(self, step: int) -> int:
        # The smallest size of the next bucket is step + 1, hence the largest bucket for it.
        limit = int((step + 1) / (1 - self.max_padding))
        if step < _LANES:
            preferred = 1 << step.bit_length()
        else:
            octave = 1 << (step.bit_length() - 1)
            unit = _LANES if step < _LAST_MULTIPLE else octave // _STEPS_PER_OCTAVE
            preferred = (step // unit + 1) * unit
        if self.max_padding > DEFAULT_MAX_PADDING:
            return max(preferred, 1 << (limit.bit_length() - 1))
        if preferred <= limit:
            return preferred
        # Rounded down, by less than half of the way, to what XLA can tile.
        unit = 1 << (max((limit - step) // 2, 1).bit_length() - 1)
        return limit // unit * unit


@dataclass(frozen=True)
class PolicyByName:
    """A policy for each dimension, by its name; `"*"` for the rest, or else `auto`."""

    policies: Mapping[str, BucketPolicy]

    @property
    def weighs_cost(self) -> bool:
        """Whether the policy of any dimension does."""
        return any(policy.weighs_cost for policy in self.policies.values())

    def of(self, dimension: Dimension) -> BucketPolicy:
        """Return the policy of one dimension."""
        named = self.policies.get(dimension.name) if dimension.name is not None else None
        return named or self.policies[REST]

    def bucket(self, size: int, dimension: Dimension) -> int:
        """Return what the dimension's own policy says."""
        return self.of(dimension).bucket(size, dimension)


def policy_of(buckets: Any, max_padding: float | None = None) -> BucketPolicy:
    """Return the policy for the options `buckets` and `max_padding`, which `auto` alone heeds.

    Args:
        buckets: a value that `CompileOptions` has checked: `"auto"`, `"pow2"`, `"exact"`, an int
            (multiples of it), a tuple of sizes in increasing order, a `BucketPolicy`, or a mapping
            from the name of a dimension, or `"*"` for the rest, to any of these.
        max_padding: see `AutoBuckets`.

    >>> policy_of((16, 64)).bucket(17, Dimension("batch"))
    64
    """
    if isinstance(buckets, Mapping):
        policies = {name: policy_of(value, max_padding) for name, value in buckets.items()}
        return PolicyByName({REST: AutoBuckets(max_padding), **policies})
    if isinstance(buckets, int):
        return MultipleBuckets(buckets)
    if isinstance(buckets, (tuple, list)):
        return ListBuckets(tuple(sorted(buckets)))
    if buckets == "pow2":
        return PowerOfTwoBuckets()
    if buckets == "exact":
        return ExactBuckets()
    if buckets == "auto":
        return AutoBuckets(max_padding)
    return buckets


def require_bucket(bucket: Any, size: int, dimension: Dimension, policy: BucketPolicy) -> None:
    """Raise `OptionError` if a policy's answer is not a bucket of `size`."""
    name = dimension.name or "a dimension"
    if type(bucket) is not int or bucket < size:
        why = f"a bucket is an int that is at least the size, {size}"
    elif dimension.maximum is not None and size <= dimension.maximum < bucket:
        why = f"the dimension is at most {dimension.maximum}"
    else:
        return
    raise OptionError(
        f"The bucket policy {policy!r} pads {name} from {size} to {bucket!r}",
        why=why,
        ways_out=("see tpu_compile.buckets.BucketPolicy", 'buckets="auto"'),
    )
