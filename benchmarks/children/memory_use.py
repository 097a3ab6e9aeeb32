"""Prints the peak of a competitor's memory above its baseline, in bytes, as JSON.

python -m benchmarks.children.memory_use NAME MODEL forward|training 0|1

The baseline is the resident memory once the packages are imported and the model and its inputs
exist. The first call compiles; a later one is the third to fifth. The peak of a training step holds
gradients and optimizer state, which every competitor keeps from call to call.
"""

from __future__ import annotations

import gc
import json
import logging
import sys
import warnings
from pathlib import Path

import torch

from benchmarks.children.first_call import import_packages
from benchmarks.peers import PEERS
from benchmarks.training import STEPS, WithLoss
from benchmarks.zoo import MODELS


def resident(field: str) -> int:
    """Return `VmRSS` (now) or `VmHWM` (peak) of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}: memory is measured on Linux only")


def forget_peak() -> None:
    """Make the peak that the kernel keeps what is resident now (proc(5), clear_refs)."""
    Path("/proc/self/clear_refs").write_text("5")


def main() -> None:
    """Measure what the arguments name."""
    logging.getLogger("torch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    name, model, kind, quick = sys.argv[1:]
    training = kind == "training"
    import_packages(name)
    work = MODELS[model].work(quick=quick == "1", training=training)
    module = WithLoss(work.module) if training else work.module
    inputs = [*work.inputs, work.targets] if training else [*work.inputs]
    gc.collect()
    baseline = resident("VmRSS")
    found = {}
    with torch.set_grad_enabled(training):
        forget_peak()
        call = (STEPS if training else PEERS)[name](module, inputs)
        call()
        found["first call"] = resident("VmHWM") - baseline
        call()
        gc.collect()
        forget_peak()
        for _ in range(3):
            call()
        found["later call"] = resident("VmHWM") - baseline
    print(json.dumps(found))


if __name__ == "__main__":
    main()
