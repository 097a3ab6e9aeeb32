"""Runs cases in processes of their own, so that a crash or a hang costs one case and is reported.

Results go to a JSON-lines file as they come; a run that finds the file goes on where it stopped.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.conformance.cases import ON_DEVICE, PADDED, Case, Sample, samples_of
from tests.conformance.evidence import Recorder
from tests.conformance.judging import Outcome, judge
from tests.conformance.on_device import judge_on_device
from tests.conformance.padded import judge_padded

# A worker keeps every program that it compiles; a fresh one starts before that grows large.
CASES_PER_WORKER = 150


@dataclass
class Result:
    """What became of one case."""

    case: Case
    passed: int = 0
    outside: int = 0
    """Samples that aot_eager, or the CPU for the kinds on the device, cannot do either."""
    failures: dict[int, str] = field(default_factory=dict)
    padded: int = 0
    """Samples in which a graph ran padded."""
    exact: dict[int, str] = field(default_factory=dict)
    """By sample: why a graph with dynamic sizes ran at exact shapes."""
    fallbacks: list[str] = field(default_factory=list)
    """The ops that the device ran on the CPU in samples that pass."""
    seconds: float = 0.0
    all_samples: bool = False
    """Whether every sample of the case was run."""
    overloads: dict[str, list[str]] = field(default_factory=dict)
    """The ops that took part, each with the targets that it became."""

    @property
    def counts(self) -> bool:
        """Whether it can be asked for any of its samples."""
        return bool(self.passed or self.failures)

    @property
    def ok(self) -> bool:
        """Whether ours does all that can be asked for."""
        return not self.failures


def run_case(case: Case, most: int | None) -> Result:
    """Run up to `most` samples of `case` in this process."""
    started = time.perf_counter()
    result = Result(case)
    samples = samples_of(case, most)
    recorder = Recorder()
    fallbacks: set[str] = set()
    for index, sample in samples:
        outcome = _outcome_of(case, index, sample, recorder)
        result.padded += outcome.is_padded
        if outcome.exact_reason is not None:
            result.exact[index] = outcome.exact_reason
        if outcome.status == "passed":
            result.passed += 1
            fallbacks.update(outcome.fallbacks)
        elif outcome.status == "outside":
            result.outside += 1
        else:
            result.failures[index] = outcome.detail
    if case.kind in ("forward", "inplace", "out"):
        for _, sample in samples[:12]:
            recorder.note_call(sample)
    result.fallbacks = sorted(fallbacks)
    result.overloads = {op: sorted(targets) for op, targets in recorder.found.items()}
    result.all_samples = most is None or len(samples) < most
    result.seconds = round(time.perf_counter() - started, 2)
    return result


def _outcome_of(case: Case, index: int, sample: Sample, recorder: Recorder) -> Outcome:
    if case.kind in ON_DEVICE:
        return judge_on_device(case, sample, as_views=index % 2 == 1)
    with recorder:
        return (judge_padded if case.kind in PADDED else judge)(case, sample)


def serve() -> None:
    """Run the cases that come in on standard input, one JSON line each, until it closes."""
    # Whatever the libraries print must not get between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            result = run_case(Case(*request["case"]), request["most"])
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            result = Result(Case(*request["case"]), failures={-1: why})
        answers.write(encode(result) + "\n")
        answers.flush()


def encode(result: Result) -> str:
    """Return `result` as one JSON line."""
    return json.dumps(asdict(result))


def decode(line: str) -> Result:
    """Return the result of a JSON line."""
    data = json.loads(line)
    data["case"] = Case(*data["case"])
    for name in ("failures", "exact"):
        data[name] = {int(index): text for index, text in data.get(name, {}).items()}
    return Result(**data)


class _Worker:
    """One process; started when needed, replaced when it dies."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._process: subprocess.Popen[str] | None = None
        self._served = 0

    def run(self, case: Case, most: int | None, seconds: float) -> Result:
        if self._process is None or self._served >= CASES_PER_WORKER:
            self.close()
            self._process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", "tests.conformance", "--worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            self._served = 0
        self._served += 1
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(seconds, process.kill)
        timer.start()
        try:
            process.stdin.write(json.dumps({"case": case, "most": most}) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timed_out = not timer.is_alive()
            timer.cancel()
        if line:
            return decode(line)
        code = process.wait()
        self._process = None
        what = f"hang: no answer in {seconds:.0f} s" if timed_out else f"crash: exit code {code}"
        return Result(case, failures={-1: what})

    def close(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()
            self._process = None


def run_cases(
    cases: Iterable[Case],
    *,
    most: int | None,
    jobs: int,
    seconds: float,
    path: Path,
    progress: Callable[[Result], None],
) -> list[Result]:
    """Return the results of `cases`, from `path` where it has them; the others are appended to it.

    Args:
        cases: what to run.
        most: samples of each case; None for all.
        jobs: processes side by side.
        seconds: the time after which a case counts as hanging.
        path: the JSON-lines file.
        progress: called with each new result.
    """
    known = {}
    if path.exists():
        known = {result.case: result for result in map(decode, path.read_text().splitlines())}
    wanted = list(cases)
    todo: queue.SimpleQueue[Case] = queue.SimpleQueue()
    for case in wanted:
        if case not in known:
            todo.put(case)
    lock = threading.Lock()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as output, path.with_suffix(".log").open("a") as log:

        def work() -> None:
            worker = _Worker(log)
            while True:
                try:
                    case = todo.get_nowait()
                except queue.Empty:
                    return worker.close()
                result = worker.run(case, most, seconds)
                with lock:
                    known[case] = result
                    output.write(encode(result) + "\n")
                    output.flush()
                    progress(result)

        threads = [threading.Thread(target=work) for _ in range(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return [known[case] for case in wanted]
