"""Many processes that share one cache folder and are killed at random; prints what came of it.

`python -m tests.tpu_compile.cache_workers FOLDER --processes 64 --seconds 60`. The processes use
the run time only, forked before any client opens, so that they start in no time.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import numpy
import torch

from tpu_compile.runtime import pjrt
from tpu_compile.runtime.cache import Persistence, ProgramCache, key_parts
from tpu_compile.runtime.stored_programs import stored_programs
from tpu_compile.runtime.stores import local, store_at

ROWS = 3
# The constants make files of 35 to 160 KB.
WIDTHS = (80, 100, 120, 140, 160, 180)


def constant(number: int) -> numpy.ndarray[Any, Any]:
    width = WIDTHS[number % len(WIDTHS)]
    return numpy.random.default_rng(number).standard_normal((width, width)).astype("float32")


def module(number: int) -> str:
    weights = constant(number)
    width = len(weights)
    rows, square = f"tensor<{ROWS}x{width}xf32>", f"tensor<{width}x{width}xf32>"
    return f"""
module @program {{
  func.func public @main(%x: {rows}) -> {rows} {{
    %w = stablehlo.constant dense<"0x{weights.tobytes().hex()}"> : {square}
    %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : ({rows}, {square}) -> {rows}
    return %y : {rows}
  }}
}}
"""


def run_one(
    client: pjrt.Client, cache: ProgramCache, number: int, persistence: Persistence
) -> tuple[str, bool]:
    """Return where a program came from, and whether its result is right."""
    text = module(number)
    executable, origin = cache.get(
        key_parts(text, (), client),
        client,
        lambda: client.compile(text.encode()),
        persistence=persistence,
    )
    weights = torch.from_numpy(constant(number))
    inputs = torch.linspace(-1, 1, ROWS * len(weights)).reshape(ROWS, -1)
    array = client.put(inputs, client.put_plan(inputs.shape, inputs.dtype))
    handler = client.read_plan(inputs.shape, inputs.dtype)
    (result,) = pjrt.execute(executable, [array], [handler])
    close = torch.allclose(client.read(result, torch.float32), inputs @ weights, atol=1e-3)
    return origin, close


class SlowFile:
    """Writes in pieces with pauses, so that more of the kills fall into a write."""

    def __init__(self, handle: int, mode: str) -> None:
        self._file = open(handle, mode)  # noqa: SIM115

    def __enter__(self) -> SlowFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def write(self, data: bytes) -> None:
        for start in range(0, len(data), 16384):
            self._file.write(data[start : start + 16384])
            self._file.flush()
            time.sleep(0.004)


def slow_open(file: int, mode: str, **options: Any) -> Any:
    return SlowFile(file, mode) if mode == "wb" else open(file, mode, **options)


def work(number: int, persistence: Persistence, programs: int, pipe: int, stop: Path) -> None:
    """Run programs in a random order until told to stop; one line to the pipe for each."""
    warnings.simplefilter("error")
    order = random.Random(number)
    if number % 2:
        local.open = slow_open  # type: ignore[attr-defined]
    client = pjrt.open_client("cpu")
    cache = ProgramCache()
    while not stop.exists():
        cache.clear()
        origin, right = run_one(client, cache, order.randrange(programs), persistence)
        os.write(pipe, f"{origin if right else 'wrong'}\n".encode())


def fork(number: int, persistence: Persistence, programs: int, pipe: int, stop: Path) -> int:
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        work(number, persistence, programs, pipe, stop)
        code = 0
    except BaseException as error:
        os.write(pipe, f"error {type(error).__name__}: {error}".encode()[:2000] + b"\n")
        traceback.print_exc()
    finally:
        os._exit(code)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--programs", type=int, default=8)
    parser.add_argument("--size", type=int, default=400_000)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    persistence = Persistence(arguments.folder, arguments.size)
    stop = Path(arguments.folder + ".stop")
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    common = (persistence, arguments.programs, writing, stop)
    started, kills, within_a_write, received = 0, 0, 0, b""
    folder = Path(arguments.folder)
    living: set[int] = set()
    failed = []

    def drained() -> bytes:
        try:
            return os.read(reading, 2**20)
        except BlockingIOError:
            return b""

    def reap(process: int) -> None:
        _, status = os.waitpid(process, 0)
        living.discard(process)
        code = os.waitstatus_to_exitcode(status)
        if code not in (0, -signal.SIGKILL):
            failed.append(code)

    end = time.monotonic() + arguments.seconds
    # On a busy machine it may take longer until one is met within a write.
    while time.monotonic() < end or (not within_a_write and time.monotonic() < end + 60):
        while len(living) < arguments.processes:
            living.add(fork(started, *common))
            started += 1
        # Clients take longest to open: with many processes on few processors, kills are rarer.
        time.sleep(chance.uniform(0.0, 0.1))
        received += drained()
        victim = chance.choice(sorted(living))
        if kills % 2:
            # Only one process at a time writes: every other kill is aimed at it.
            victim = writer_in(folder, living) or victim
        # Stopped first: while it has the lock, nobody removes its draft, and it can be counted.
        os.kill(victim, signal.SIGSTOP)
        os.waitid(os.P_PID, victim, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        within_a_write += any(folder.glob(f"*_{victim}_*.tmp"))
        os.kill(victim, signal.SIGKILL)
        kills += 1
        reap(victim)
    # Half of what is left is killed too, the rest ends in its own time.
    for victim in sorted(living)[::2]:
        os.kill(victim, signal.SIGKILL)
        kills += 1
        reap(victim)
    stop.touch()
    while living:
        received += drained()
        for process in sorted(living):
            if os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                reap(process)
        time.sleep(0.02)
    received += drained()
    stop.unlink()
    drafts = len(list(folder.glob("*.tmp")))
    # One more store, of a program that nobody had.
    process = fork_once(persistence, arguments.programs)
    reap(process)
    counts = collections.Counter(
        line for line in received.decode().splitlines() if not line.startswith("error")
    )
    store = store_at(arguments.folder, arguments.size)
    files = [path.stat().st_size for path in folder.iterdir()]
    print(
        json.dumps(
            {
                "started": started,
                "kills": kills,
                "kills_within_a_write": within_a_write,
                "failed": failed,
                "errors": [
                    line for line in received.decode().splitlines() if line.startswith("error")
                ],
                "origins": dict(counts),
                "drafts_before_the_last_store": drafts,
                "drafts_at_the_end": len(list(folder.glob("*.tmp"))),
                "bytes": sum(files),
                "bound": arguments.size,
                "states": sorted(program.state for program in stored_programs(store)),
            }
        )
    )


def writer_in(folder: Path, living: set[int]) -> int | None:
    """Return a process that is writing a draft; None if there is none for half a second."""
    for _ in range(250):
        for draft in folder.glob("*.tmp"):
            process = int(draft.name.split("_")[1])
            if process in living:
                return process
        time.sleep(0.002)
    return None


def fork_once(persistence: Persistence, number: int) -> int:
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        origin, right = run_one(pjrt.open_client("cpu"), ProgramCache(), number, persistence)
        code = 0 if right and origin == "compiled" else 2
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    main()
