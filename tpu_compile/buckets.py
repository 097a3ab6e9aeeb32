"""Bucket policies, and the choice of the compiled sizes in which a call runs.

A policy says to which size a dynamic dimension is padded. A `Chooser` keeps account of one graph:
which sizes are compiled, what running in larger ones has wasted, and so when a tighter program has
earned its compile. Plain Python: nothing here knows torch, XLA, or how a program is made.
"""

from __future__ import annotations

import bisect
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from tpu_compile.errors import OptionError

Sizes = tuple[int, ...]

REST = "*"
"""Key of a mapping of policies that stands for the dimensions it does not name."""

DEFAULT_MAX_PADDING = 0.5
"""The bound that powers of two keep, and the least that leaves 3 buckets up to 32 and 12 up to
1024: with 0.25 it would be 19 up to 1024, each of which may cost a compile of minutes."""

EXPECTED_COMPILE_SECONDS = 10.0
"""What a compile is taken to cost until one was measured, as when all came from a cache: between
XLA for a CPU (about a second) and for a TPU (13 to 127 seconds for small models)."""

_SMALLEST = 8  # rows of a TPU register: a smaller bucket saves nothing there
_LANES = 128  # columns of a TPU register
_LAST_MULTIPLE = 1024  # up to here a step of 128 makes few buckets
_STEPS_PER_OCTAVE = 4  # beyond it; padding there is at most a fifth
_MOST_PADDING = 15 / 16  # of `max_padding`: a bucket without bound would hold no memory's limit
_ACCOUNTS = 64
_COVERS = 1024
_ROOM = 1.5  # by how much a growing dimension's next bucket exceeds the size at hand
_GROWTH_STREAK = 2  # growths in a row that make a growing dimension


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
    >>> Chooser(Even(), [Dimension("batch", maximum=9)]).choose((9,)).sizes
    (9,)
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
        self._ladder: tuple[int, ...] = (_SMALLEST,)

    def __repr__(self) -> str:
        return f"AutoBuckets(max_padding={self.max_padding})"

    def bucket(self, size: int, dimension: Dimension) -> int:
        """Return the least step that is not below `size`; the maximum if that is less."""
        if self.max_padding == 0:
            return _clamp(max(size, _SMALLEST), size, dimension)
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


@dataclass(frozen=True)
class Choice:
    """What to do with one call."""

    sizes: Sizes
    """The sizes to run in, one for each dimension."""

    compile: bool
    """Whether a program for `sizes` has to be compiled first: none that is can take the call."""

    tighter: Sizes | None = None
    """Sizes that have earned a compile and that this call fits. Offered once: compile them, now
    or in the background, and tell `compiled`; until then calls run in larger ones."""


class Chooser:
    """Which compiled sizes each call of one graph runs in. Safe to use from several threads.

    **Fixed policies** (`weighs_cost` False): a call runs in the bucket of its sizes, always.

    **`auto`** weighs a compile against the time that padding wastes, which is the ski-rental
    problem: rent (run in a larger compiled bucket) or buy (compile a tighter one), not knowing
    how many days of skiing remain. A tighter bucket is bought when what it would have saved so
    far reaches its price, the mean time of a compile. Take the calls that one bucket would serve.
    If it would save less than its price in all, not buying it is best, and so it was done. If it
    would save more, the best is to buy it at once and pay one price; here one price was lost to
    padding before the purchase and one paid for it: two prices instead of one, plus what the last
    call brought over. Run time without the waste is the same either way, so the total is at most
    twice that of the best choice in hindsight. No rule that cannot see the future does better
    without chance (Karlin, Manasse, Rudolph, Sleator, "Competitive snoopy caching", 1988).

    Several buckets might serve one call: 128 would serve calls of 8 and of 100 that now run in
    1024. So a call's waste speaks for each bucket met so far that fits it, by what that bucket
    would save over the tightest compiled one, and a purchase lessens the claims of the others
    accordingly, as in online facility location (Fotakis, "A primal-dual algorithm for online
    non-uniform facility location", 2007). The bound of two is then for each purchase on its own;
    against the best *set* of buckets in hindsight the tests measure, and find it kept but for
    the terms that they name.

    **No larger bucket compiled.** Then the call's own bucket must be, whatever it costs, and
    hindsight might have bought the largest at first. A ladder of logarithmically many buckets
    bounds that. A dimension that keeps growing by small steps, as a cache of keys and values
    does, gets half as much room again, so that a long run of tokens climbs geometrically even
    where the ladder rises by 128, and that two dimensions one apart climb together.

    Args:
        policy: gives the bucket of each dimension. `PolicyByName` may mix fixed ones and others;
            a call then runs in a larger bucket only along the others.
        dimensions: the graph's dynamic dimensions, in the order of every tuple of sizes.
        cost: the relative work of a program of given sizes, a positive number that grows with
            them; None: the product of the sizes.

    Raises:
        OptionError: from `choose`, when a policy gives no bucket for a size.
    """

    def __init__(
        self,
        policy: BucketPolicy,
        dimensions: Sequence[Dimension],
        cost: Callable[[Sizes], float] | None = None,
    ) -> None:
        self._dimensions = tuple(dimensions)
        self._policies = tuple(
            policy.of(dimension) if isinstance(policy, PolicyByName) else policy
            for dimension in self._dimensions
        )
        self._may_exceed = tuple(policy.weighs_cost for policy in self._policies)
        self._cost = cost or _product
        self._lock = threading.Lock()
        self._compiled: set[Sizes] = set()
        self._offered: set[Sizes] = set()
        self._covers: dict[Sizes, Sizes | None] = {}
        self._compile_seconds: list[float] = []
        self._sizes_before: Sizes | None = None
        self._streaks = [0] * len(self._dimensions)
        # Run time in too large a bucket, in seconds for a unit of cost, by the call's own bucket.
        self._accounts: dict[Sizes, float] = {}
        self._claims: dict[Sizes, float] = {}  # seconds saved by what has earned its compile
        self._unsettled = 0.0  # seconds wasted since the claims were last worked out
        self._slack = 0.0  # waste that cannot yet complete any claim, in seconds

    @property
    def compiled_sizes(self) -> tuple[Sizes, ...]:
        """The sizes that are compiled, in increasing order."""
        with self._lock:
            return tuple(sorted(self._compiled))

    def choose(self, sizes: Sizes) -> Choice:
        """Return what to run a call of these sizes in.

        Two threads may both be told to compile the same sizes: the caller's lock decides.
        """
        candidate = self._candidate(sizes)
        with self._lock:
            if any(self._may_exceed):
                self._watch_growth(sizes)
            if candidate in self._compiled:
                return Choice(candidate, compile=False)
            cover = self._cover(candidate)
            if cover is None:
                return Choice(self._with_room(candidate, sizes), compile=True)
            return Choice(cover, compile=False, tighter=self._earned(candidate, cover))

    def compiled(self, sizes: Sizes, seconds: float) -> None:
        """Note that a program of `sizes` exists.

        Args:
            sizes: the sizes it runs in.
            seconds: how long its compile took; 0.0 when it came from a cache, which says nothing
                of what compiling costs.
        """
        with self._lock:
            self._compiled.add(sizes)
            self._offered.discard(sizes)
            self._accounts.pop(sizes, None)
            self._covers.clear()
            if seconds > 0:
                self._compile_seconds.append(seconds)
            self._settle()

    def ran(self, sizes: Sizes, in_sizes: Sizes, seconds: float) -> None:
        """Account for a call of `sizes` that ran `seconds` in a program of `in_sizes`."""
        candidate = self._candidate(sizes)
        if candidate == in_sizes:
            return
        cost = self._cost(in_sizes)
        with self._lock:
            if candidate not in self._accounts and len(self._accounts) >= _ACCOUNTS:
                del self._accounts[min(self._accounts, key=self._waste)]
            self._accounts[candidate] = self._accounts.get(candidate, 0.0) + seconds / cost
            self._unsettled += seconds * max(1 - self._cost(candidate) / cost, 0.0)
            if self._unsettled >= self._slack:
                self._settle()

    def expected_compile_seconds(self) -> float:
        """Return what the next compile is taken to cost: the mean of those measured."""
        measured = self._compile_seconds
        return sum(measured) / len(measured) if measured else EXPECTED_COMPILE_SECONDS

    def _candidate(self, sizes: Sizes) -> Sizes:
        found = []
        for size, dimension, policy in zip(sizes, self._dimensions, self._policies, strict=True):
            bucket = policy.bucket(size, dimension)
            if type(bucket) is not int or bucket < size or bucket > (dimension.maximum or bucket):
                _check_bucket(bucket, size, dimension, policy)
            found.append(bucket)
        return tuple(found)

    def _fits(self, sizes: Sizes, larger: Sizes) -> bool:
        """Whether a call whose bucket is `sizes` may run in `larger`."""
        return all(
            size == other or (may_exceed and size < other)
            for size, other, may_exceed in zip(sizes, larger, self._may_exceed, strict=True)
        )

    def _cover(self, candidate: Sizes) -> Sizes | None:
        """Return the cheapest compiled sizes that may take the calls of `candidate`."""
        if candidate not in self._covers:
            if len(self._covers) >= _COVERS:
                self._covers.clear()
            found = (sizes for sizes in self._compiled if self._fits(candidate, sizes))
            self._covers[candidate] = min(found, key=self._order, default=None)
        return self._covers[candidate]

    def _order(self, sizes: Sizes) -> tuple[float, Sizes]:
        return self._cost(sizes), sizes

    def _waste(self, candidate: Sizes) -> float:
        """Return the seconds that a program of exactly `candidate` would have saved its calls."""
        cover = self._cover(candidate)
        return self._accounts[candidate] * (
            self._cost(cover) - self._cost(candidate) if cover is not None else 0.0
        )

    def _settle(self) -> None:
        """Work out which sizes have earned their compile, and when to look again."""
        price = self.expected_compile_seconds()
        runs = []
        for candidate, work in self._accounts.items():
            cover = self._cover(candidate)
            # Those on offer count as compiled: no second purchase for the same waste.
            others = [sizes for sizes in self._offered if self._fits(candidate, sizes)]
            taken = [self._cost(sizes) for sizes in (cover, *others) if sizes is not None]
            runs.append((candidate, work, min(taken, default=0.0)))
        claims = {}
        for sizes in self._accounts:
            cost = self._cost(sizes)
            claims[sizes] = sum(
                work * max(taken - cost, 0.0)
                for candidate, work, taken in runs
                if taken > cost and self._fits(candidate, sizes)
            )
        self._claims = {sizes: claim for sizes, claim in claims.items() if claim >= price}
        highest = max((claim for claim in claims.values() if claim < price), default=0.0)
        self._unsettled = 0.0
        # Looking more often than that costs more than a purchase a sixteenth of its price late.
        self._slack = max(price - highest, price / 16)

    def _earned(self, candidate: Sizes, cover: Sizes) -> Sizes | None:
        """Return, once, the sizes with the highest claim among those that fit `candidate`."""
        if not self._claims:
            return None
        cost = self._cost(cover)
        fitting = [
            sizes
            for sizes in self._claims
            if self._fits(candidate, sizes) and self._cost(sizes) < cost
        ]
        if not fitting:
            return None
        best = max(fitting, key=lambda sizes: (self._claims[sizes], -self._cost(sizes)))
        self._offered.add(best)
        self._settle()
        return best

    def _watch_growth(self, sizes: Sizes) -> None:
        before, self._sizes_before = self._sizes_before, sizes
        if before is None:
            return
        for index, (old, new) in enumerate(zip(before, sizes, strict=True)):
            if old < new <= old + max(_SMALLEST, old // 8):
                self._streaks[index] += 1
            elif new != old:
                self._streaks[index] = 0

    def _with_room(self, candidate: Sizes, sizes: Sizes) -> Sizes:
        """Return the sizes to compile for `candidate`: larger where a dimension keeps growing."""
        roomy = list(candidate)
        for index, (size, dimension) in enumerate(zip(sizes, self._dimensions, strict=True)):
            if self._may_exceed[index] and self._streaks[index] >= _GROWTH_STREAK:
                wanted = math.ceil(size * _ROOM)
                if dimension.maximum is not None:
                    wanted = max(min(wanted, dimension.maximum), size)
                roomy[index] = self._policies[index].bucket(wanted, dimension)
        return tuple(roomy)


def _product(sizes: Sizes) -> float:
    return float(math.prod(max(size, 1) for size in sizes))


def _check_bucket(bucket: Any, size: int, dimension: Dimension, policy: BucketPolicy) -> None:
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
