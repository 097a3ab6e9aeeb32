"""The first call in a new process, with an empty cache folder and with the one it left behind."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.fresh import ChildError, run_fresh
from benchmarks.registry import Case, Settings, Suite
from benchmarks.results import OURS, Measured, measured
from benchmarks.training import NO_STEP

NAMES = {
    "forward": (OURS, "inductor", "jax.jit", "torch-xla2", "torch-xla"),
    "training": (OURS, "inductor", "jax.jit"),
    "imports": (OURS, "inductor", "jax.jit", "torch-xla"),
}


def caches_in(folder: Path) -> dict[str, str]:
    """Return the environment in which every competitor keeps what it compiles in `folder`."""
    return {
        "TPU_COMPILE_CACHE_DIR": str(folder / "ours"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "JAX_COMPILATION_CACHE_DIR": str(folder / "jax"),
        # By default jax stores nothing that took less than a second.
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
    }


def _one(name: str, model: str, kind: str, quick: bool) -> Iterator[tuple[str, float]]:
    """Yield the seconds of one round by variant."""
    with tempfile.TemporaryDirectory() as folder:
        environment = caches_in(Path(folder))
        for variant in ("cold", "warm"):
            found = run_fresh(
                "first_call", name, model, kind, str(int(quick)), environment=environment
            )
            if kind == "imports":
                yield "", found["imports"]
                return
            yield variant, found["first call"]


def _first_calls(model: str, kind: str, settings: Settings) -> list[Measured]:
    samples: dict[str, dict[str, list[float]]] = {}
    left_out = dict(NO_STEP) if kind == "training" else {}
    for _ in range(settings.rounds if settings.rounds is not None else 1 if settings.quick else 3):
        for name in NAMES[kind]:
            if name in left_out:
                continue
            try:
                round_of_it = list(_one(name, model, kind, settings.quick))
            except ChildError as error:
                left_out[name] = str(error)
                continue
            for variant, seconds in round_of_it:
                samples.setdefault(variant, {}).setdefault(name, []).append(seconds)
    return [
        measured(_without(by_name, left_out), left_out=left_out, variant=variant)
        for variant, by_name in samples.items()
    ] or [Measured(left_out=left_out)]


def _without(samples: dict[str, list[float]], names: Iterable[str]) -> dict[str, list[float]]:
    return {name: values for name, values in samples.items() if name not in set(names)}


SUITE = Suite(
    "compile-time",
    (
        Case(
            "imports",
            "importing the compiler in a new process, torch and Dynamo being there",
            functools.partial(_first_calls, "none", "imports"),
        ),
        *(
            Case(
                f"{name}-{kind}",
                f"first {what} of {title} in a new process, from handing over the model",
                functools.partial(_first_calls, name, kind),
                limit=3600,
            )
            for name, title in (
                ("resnet50", "ResNet-50"),
                ("bert", "BERT-base"),
                ("gpt2", "GPT-2 124M"),
            )
            for kind, what in (("forward", "forward pass"), ("training", "training step"))
        ),
    ),
)
