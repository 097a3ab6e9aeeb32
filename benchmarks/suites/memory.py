"""Peak memory of a forward pass and of a training step, and memory over very many calls."""

from __future__ import annotations

import functools
import gc

import torch

from benchmarks.children.memory_use import resident
from benchmarks.fresh import ChildError, run_fresh
from benchmarks.registry import Case, Settings, Suite
from benchmarks.results import OURS, Figure, Measured, measured, quantity
from benchmarks.training import NO_STEP

NAMES = {
    "forward": (OURS, "eager", "inductor", "jax.jit", "torch-xla2", "torch-xla"),
    "training": (OURS, "eager", "inductor", "jax.jit"),
}
VARIANTS = ("first call", "later call")
CALLS = 100_000


def _peaks(model: str, kind: str, settings: Settings) -> list[Measured]:
    samples: dict[str, dict[str, list[float]]] = {variant: {} for variant in VARIANTS}
    left_out = dict(NO_STEP) if kind == "training" else {}
    for _ in range(settings.rounds if settings.rounds is not None else 1 if settings.quick else 3):
        for name in NAMES[kind]:
            if name in left_out:
                continue
            try:
                found = run_fresh("memory_use", name, model, kind, str(int(settings.quick)))
            except ChildError as error:
                left_out[name] = str(error)
                for by_name in samples.values():
                    by_name.pop(name, None)
                continue
            for variant in VARIANTS:
                samples[variant].setdefault(name, []).append(max(0, found[variant]))
    return [
        measured(by_name, unit="bytes", left_out=left_out, variant=variant)
        for variant, by_name in samples.items()
    ]


def _flatness(settings: Settings) -> Measured:
    """Measure what stays behind after very many calls of a tiny function."""
    from tpu_compile.runtime.platforms import current_client

    calls = 2_000 if settings.quick else CALLS
    compiled = torch.compile(lambda x: x * 2 + 1, backend="tpu", options={"fallback": "error"})
    x = torch.ones(8)
    with torch.no_grad():
        # The allocator and Dynamo reach their steady state first.
        for _ in range(calls // 20):
            compiled(x)
        gc.collect()
        memory, arrays = resident("VmRSS"), current_client().live_bytes()
        for _ in range(calls):
            compiled(x)
        gc.collect()
        after, arrays_after = resident("VmRSS"), current_client().live_bytes()
    growth = float(max(0, after - memory))
    facts = {
        "calls": f"{calls:,}",
        "resident memory": f"{quantity(memory, 'bytes')} before, {quantity(after, 'bytes')} after",
        "live PJRT arrays": f"{arrays} bytes before, {arrays_after} bytes after",
    }
    figures = {OURS: Figure.of([growth])}
    return Measured(figures=figures, facts=facts, unit="bytes", rounds=1)


SUITE = Suite(
    "memory",
    (
        *(
            Case(
                f"{name}-{kind}",
                f"peak above the baseline of a {what} of {title}, in a new process",
                functools.partial(_peaks, name, kind),
                limit=2400,
            )
            for name, title in (("bert", "BERT-base"), ("gpt2", "GPT-2 124M"), ("lstm", "LSTM"))
            for kind, what in (("forward", "forward pass"), ("training", "training step"))
        ),
        Case("many-calls", f"growth of resident memory over {CALLS:,} calls", _flatness),
    ),
)
