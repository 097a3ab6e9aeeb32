"""Counters and compile records of this process, and the guard `expect_compiles`."""

from __future__ import annotations

import collections
import contextlib
import itertools
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from tpu_compile.errors import OptionError, RecompileError


@dataclass(frozen=True)
class CompileRecord:
    """One XLA compile: what was compiled, for which inputs, and why it was needed."""

    function: str
    """Name of the user's function, and `forward`, `backward` or `inference`."""
    where: str
    """`file:line` of its first op."""
    inputs: tuple[str, ...]
    """Dtype and shape of every input, such as `float32[2, 3]`."""
    reason: str
    seconds: float

    def __str__(self) -> str:
        shapes = ", ".join(self.inputs[:6]) + (", ..." if len(self.inputs) > 6 else "")
        # A program of single ops of the device has no line.
        where = f" ({self.where})" if self.where else ""
        return f"{self.function}{where} for {shapes or 'no inputs'}: {self.reason}"


@dataclass(frozen=True)
class CompileStats:
    """A snapshot of the counters since the start or the last `reset_stats()`."""

    graphs: int = 0
    """FX graphs handed over by AOTAutograd (forward, backward, inference)."""
    lowered: int = 0
    """Graphs, or parts of graphs, lowered to StableHLO."""
    xla_compiles: int = 0
    """Programs compiled by XLA."""
    memory_hits: int = 0
    """Programs found among those that this process already compiled."""
    disk_hits: int = 0
    """Programs found in the persistent cache."""
    cache_mismatches: int = 0
    """Programs in the persistent cache that were not what XLA compiles now (`cache_verify`)."""
    executions: int = 0
    """Runs of compiled programs."""
    eager_calls: int = 0
    """Runs of graphs in eager PyTorch while their program was compiled (`async_compile`)."""
    fallback_ops: Mapping[str, int] = field(default_factory=dict)
    """Runs of each op in eager PyTorch between compiled parts."""
    lowering_seconds: float = 0.0
    compile_seconds: float = 0.0
    exact_graphs: int = 0
    """Graphs with dynamic sizes that compile for each size, as an op in them cannot be padded."""
    padded_elements: int = 0
    """Elements of bucketed inputs that were padding."""
    useful_elements: int = 0
    """Elements of bucketed inputs that were data."""
    uploads: int = 0
    """CPU tensors copied to the device `tpu` (`tpu_compile.device`)."""
    downloads: int = 0
    """Tensors of the device `tpu` read by the CPU."""
    records: tuple[CompileRecord, ...] = ()


Totals = tuple[collections.Counter[str], collections.Counter[str], collections.Counter[str]]
"""Counters, seconds and runs of fallback ops."""


class _Tally:
    """A count that any thread raises by one without a lock."""

    def __init__(self) -> None:
        count = itertools.count()
        self.add_one = count.__next__
        """Count one more: a single C call, which no other thread can come between."""
        self._not_counted = 0

    def value(self) -> int:
        """Return the count; the caller sees to it that no other thread reads or resets it."""
        # Reading takes a number, too.
        number = self.add_one() - self._not_counted
        self._not_counted += 1
        return number

    def reset(self) -> int:
        """Count from zero and return what was counted; the same condition as for `value`."""
        counted = self.value()
        self._not_counted += counted
        return counted


class Recorder:
    """The mutable counters behind `CompileStats`; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: collections.Counter[str] = collections.Counter()
        self._seconds: collections.Counter[str] = collections.Counter()
        self._fallbacks: collections.Counter[str] = collections.Counter()
        self._records: list[CompileRecord] = []
        self._executions = _Tally()
        self._listeners: list[list[CompileRecord]] = []
        # What resets set to zero, by the three kinds of counters: a `Watch` counts across them.
        self._before_resets: Totals = (
            collections.Counter(),
            collections.Counter(),
            collections.Counter(),
        )

    @contextlib.contextmanager
    def listen(self) -> Iterator[list[CompileRecord]]:
        """Give a list that gets every record of the block, whatever is reset meanwhile."""
        heard: list[CompileRecord] = []
        with self._lock:
            self._listeners.append(heard)
        try:
            yield heard
        finally:
            with self._lock:
                self._listeners = [other for other in self._listeners if other is not heard]

    @contextlib.contextmanager
    def watch(self) -> Iterator[Watch]:
        """Give the counts of the block, whatever is reset meanwhile."""
        with self.listen() as heard:
            yield Watch(self, heard)

    def totals(self) -> Totals:
        """Return counters, seconds and fallbacks since the process started."""
        with self._lock:
            counters, seconds, fallbacks = self._before_resets
            return self._counted() + counters, self._seconds + seconds, self._fallbacks + fallbacks

    def count_execution(self) -> None:
        """Count one run of a program; apart from the other counters because it is on every call."""
        self._executions.add_one()

    def count_padding(self, padded: int, useful: int) -> None:
        """Count the elements of one call's padded inputs."""
        with self._lock:
            self._counters["padded_elements"] += padded
            self._counters["useful_elements"] += useful

    def count(self, name: str, amount: int = 1) -> None:
        """Add to the counter `name`, a field of `CompileStats`."""
        with self._lock:
            self._counters[name] += amount

    def add_seconds(self, name: str, seconds: float) -> None:
        """Add to the time `name`, a field of `CompileStats`."""
        with self._lock:
            self._seconds[name] += seconds  # type: ignore[assignment]

    def count_fallback(self, op: str) -> None:
        """Count one eager run of `op`."""
        with self._lock:
            self._fallbacks[op] += 1

    def record_compile(self, record: CompileRecord) -> None:
        """Count one XLA compile and keep its record."""
        with self._lock:
            self._counters["xla_compiles"] += 1
            self._seconds["compile_seconds"] += record.seconds  # type: ignore[assignment]
            self._records.append(record)
            for listener in self._listeners:
                listener.append(record)

    def snapshot(self) -> CompileStats:
        """Return the counters as they are now."""
        with self._lock:
            return CompileStats(
                executions=self._executions.value(),
                **self._counters,
                **self._seconds,
                fallback_ops=MappingProxyType(dict(sorted(self._fallbacks.items()))),
                records=tuple(self._records),
            )

    def reset(self) -> None:
        """Set every counter to zero and forget the records."""
        with self._lock:
            counters, seconds, fallbacks = self._before_resets
            counters.update(self._counters)
            counters["executions"] += self._executions.reset()
            seconds.update(self._seconds)
            fallbacks.update(self._fallbacks)
            self._counters.clear()
            self._seconds.clear()
            self._fallbacks.clear()
            self._records.clear()

    def _counted(self) -> collections.Counter[str]:
        return self._counters + collections.Counter(executions=self._executions.value())


class Watch:
    """What a recorder counted since this was made, or since `restart()`."""

    def __init__(self, recorder: Recorder, records: list[CompileRecord]) -> None:
        self._recorder = recorder
        self._records = records
        self._start = recorder.totals()

    def restart(self) -> None:
        """Count from now on."""
        self._records.clear()
        self._start = self._recorder.totals()

    def stats(self) -> CompileStats:
        """Return the counts up to now."""
        counters, seconds, fallbacks = (
            now - start for now, start in zip(self._recorder.totals(), self._start, strict=True)
        )
        return CompileStats(
            **counters,
            **seconds,
            fallback_ops=MappingProxyType(dict(sorted(fallbacks.items()))),
            records=tuple(self._records),
        )


RECORDER = Recorder()


def stats() -> CompileStats:
    """Return a frozen snapshot of this process's counters.

    >>> stats().xla_compiles >= 0
    True
    """
    return RECORDER.snapshot()


def reset_stats() -> None:
    """Set the counters of `stats()` to zero; compiled programs stay."""
    RECORDER.reset()


@contextlib.contextmanager
def expect_compiles(at_most: int) -> Iterator[None]:
    """Allow at most `at_most` XLA compiles inside the `with` block.

    Counts the compiles of all threads. Leaves an exception of the block as it is.

    Raises:
        RecompileError: there were more; the message lists each with its reason.
        OptionError: `at_most` is no whole number from 0 up.
    """
    if not isinstance(at_most, int) or isinstance(at_most, bool) or at_most < 0:
        raise OptionError(
            f"expect_compiles got {at_most!r}", why="it takes a whole number from 0 up"
        )
    with RECORDER.listen() as new:
        yield
    if len(new) > at_most:
        listed = "".join(f"\n  {number}. {record}" for number, record in enumerate(new, 1))
        raise RecompileError(
            f"{len(new)} programs were compiled where at most {at_most} may be:{listed}",
            ways_out=(
                "run the shapes that you need once before this block",
                "raise `at_most`",
            ),
        )
