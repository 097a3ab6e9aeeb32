"""Prints the seconds of a competitor's imports and of its first call, as JSON.

python -m benchmarks.children.first_call NAME MODEL forward|training|imports 0|1

What everyone needs (torch, Dynamo, the model) is imported and made before a clock starts.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
import time
import warnings

import torch

from benchmarks.peers import PEERS, import_torch_xla2
from benchmarks.results import OURS
from benchmarks.training import STEPS, WithLoss
from benchmarks.zoo import MODELS


def import_packages(name: str) -> float:
    """Import what a competitor needs beyond torch and Dynamo, and return the seconds.

    Raises:
        SystemExit: it is not installed.
    """
    started = time.perf_counter()
    try:
        _import_packages(name)
    except ModuleNotFoundError as error:
        # Not a traceback: the last line is what the report says of this competitor.
        raise SystemExit(f"{error.name} is not installed") from error
    return time.perf_counter() - started


def _import_packages(name: str) -> None:
    if name in ("jax.jit", "torch-xla2"):
        import_torch_xla2()
    elif name == OURS:
        importlib.import_module("tpu_compile.backend")
    elif name == "inductor":
        importlib.import_module("torch._inductor.compile_fx")
    elif name == "torch-xla":
        importlib.import_module("torch_xla")


def time_first_call(name: str, model: str, kind: str, *, quick: bool) -> float:
    """Return the seconds from handing the model to `name` to the first result."""
    training = kind == "training"
    work = MODELS[model].work(quick=quick, training=training)
    module = WithLoss(work.module) if training else work.module
    inputs = [*work.inputs, work.targets] if training else [*work.inputs]
    maker = (STEPS if training else PEERS)[name]
    with torch.set_grad_enabled(training):
        started = time.perf_counter()
        maker(module, inputs)()
        return time.perf_counter() - started


def main() -> None:
    """Measure what the arguments name."""
    logging.getLogger("torch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    name, model, kind, quick = sys.argv[1:]
    found = {"imports": import_packages(name)}
    if kind != "imports":
        found["first call"] = time_first_call(name, model, kind, quick=quick == "1")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
