"""The choice of the compiled sizes in which a call of one graph runs.

A `Chooser` keeps account of what is compiled and of what running in larger sizes has wasted, and so
knows when a tighter program has earned its compile. It neither compiles nor runs anything.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tpu_compile.buckets import (
    SMALLEST_BUCKET,
    BucketPolicy,
    Dimension,
    PolicyByName,
    require_bucket,
)

Sizes = tuple[int, ...]

EXPECTED_COMPILE_SECONDS = 10.0
"""What a compile is taken to cost until one was measured, as when all came from a cache: between
XLA for a CPU (about a second) and for a TPU (13 to 127 seconds for small models)."""

_ACCOUNTS = 64
_COVERS = 1024
_ROOM = 1.5  # by how much a growing dimension's next bucket exceeds the size at hand
_GROWTH_STREAK = 2  # growths in a row that make a growing dimension


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
    far reaches its price, the mean time of a compile. If the calls that it serves turn out to
    waste less than the price in all, not buying is best, and so it was done. If they would have
    wasted more, the best is to buy at once and pay one price; here one price was lost to padding
    before the purchase and one paid for it. Run time without the waste is the same either way, so
    the total is at most twice that of the best choice in hindsight, plus what one call wastes;
    without chance no rule does better (Karlin, Manasse, Rudolph, Sleator, "Competitive snoopy
    caching", 1988).

    That holds for one tighter bucket. Several may serve one call: 128 serves calls of 8 and of
    100 that now run in 1024. So a call's waste speaks for each bucket met so far that fits it, by
    what that bucket would save over the tightest compiled one, and a purchase lessens the claims
    of the others accordingly, as in online facility location (Fotakis, "A primal-dual algorithm
    for online non-uniform facility location", 2007). No waste pays for two purchases, so tighter
    compiles never take longer than padding has wasted. Against the best *set* of buckets in
    hindsight there is no such bound: simulated random calls cost at most 1.4 times as much, but
    calls that ask for 8 until it is bought, then for 16, 32, 64 and 128, below a compiled 1024,
    cost 4.2 times as much as 128 alone would have. What bounds that is how few buckets there are.

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
        self._compiles = 0  # those measured
        self._compile_seconds = 0.0
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
        candidate = self.candidate(sizes)
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
                self._compiles += 1
                self._compile_seconds += seconds
            self._settle()

    def ran(self, sizes: Sizes, in_sizes: Sizes, seconds: float) -> None:
        """Account for a call of `sizes` that ran `seconds` in a program of `in_sizes`."""
        candidate = self.candidate(sizes)
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
        if not self._compiles:
            return EXPECTED_COMPILE_SECONDS
        return self._compile_seconds / self._compiles

    def candidate(self, sizes: Sizes) -> Sizes:
        """Return the bucket of a call of these sizes, compiled or not.

        Raises:
            OptionError: the policy gives no bucket for a size.
        """
        found = []
        for size, dimension, policy in zip(sizes, self._dimensions, self._policies, strict=True):
            bucket = policy.bucket(size, dimension)
            if type(bucket) is not int or bucket < size or bucket > (dimension.maximum or bucket):
                require_bucket(bucket, size, dimension, policy)
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
        if before is None or before == sizes:
            return
        for index, (old, new) in enumerate(zip(before, sizes, strict=True)):
            if old < new <= old + max(SMALLEST_BUCKET, old // 8):
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
