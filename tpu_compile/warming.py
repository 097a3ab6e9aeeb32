"""`warmup`: compile the programs that calls will need before they are made."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import torch
from tqdm import tqdm  # type: ignore[import-untyped]

from tpu_compile.errors import OptionError
from tpu_compile.executable import COLLECTED, Collected
from tpu_compile.statistics import stats


def warmup(
    function: Callable[..., Any],
    examples: Iterable[Sequence[Any]],
    *,
    sizes: Mapping[str, Iterable[int]] | None = None,
    threads: int | None = None,
    progress: bool = True,
) -> int:
    """Compile what calls like `examples` need; see `tpu_compile.warmup`."""
    named = {name: _checked(name, wanted) for name, wanted in (sizes or {}).items()}
    before = stats().xla_compiles
    collected: Collected = {}
    token = COLLECTED.set(collected)
    try:
        for example in examples:
            if not isinstance(example, (tuple, list)):
                raise OptionError(
                    f"warmup got the example {type(example).__name__}",
                    why="each example is a tuple or list of the function's arguments",
                )
            function(*example)
    finally:
        COLLECTED.reset(token)
    unknown = named.keys() - {
        dimension.name for executable in collected for dimension in executable.dimensions
    }
    if unknown:
        known = sorted({str(d.name) for executable in collected for d in executable.dimensions})
        raise OptionError(
            f"warmup knows no dynamic size called {', '.join(sorted(unknown))}",
            why=f"the graphs of these examples have {', '.join(known) or 'none'}",
            ways_out=("torch._dynamo.mark_dynamic", "tpu_compile.explain, which names them"),
        )
    jobs = [
        job
        for executable, calls in collected.items()
        for call in dict.fromkeys(calls)
        for job in executable.programs_for(call, named)
    ]
    _run(jobs, threads or os.cpu_count() or 1, progress)
    return stats().xla_compiles - before


def _checked(name: str, wanted: Iterable[int]) -> list[int]:
    found = list(wanted)
    if not found or not all(isinstance(size, int) and size > 0 for size in found):
        raise OptionError(
            f"warmup got sizes[{name!r}] = {found!r}", why="it takes positive whole numbers"
        )
    return found


def _run(jobs: Sequence[Callable[[], object]], threads: int, progress: bool) -> None:
    """Run all jobs; raise the first error once none is left running."""
    with (
        ThreadPoolExecutor(threads, thread_name_prefix="tpu_compile") as pool,
        tqdm(total=len(jobs), desc="compiling", unit="program", disable=not progress) as bar,
    ):
        futures = [pool.submit(_apart_from_autograd, job) for job in jobs]
        for future in as_completed(futures):
            bar.update()
            future.result()


def _apart_from_autograd(job: Callable[[], object]) -> None:
    with torch.no_grad():
        job()
