"""Compares models of transformers with eager PyTorch: `python -m tests.models llama bert`."""

from __future__ import annotations

import argparse
import signal
import sys
import time
import warnings
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch._dynamo.exc import TorchDynamoException

import tpu_compile
from tests.models.tiny import NoTinyModelError, TinyModel, all_types, make_tiny
from tests.tpu_compile.comparing import Differences, differences
from tpu_compile import UnsupportedOpError

FORWARD, GRADIENTS = 1e-5, 1e-4
HEADER = ("model", "mode", "forward", "gradients", "graphs", "fallbacks", "seconds", "remarks")
ROW = "{:<24} {:<6} {:>9} {:>9} {:>6} {:>9} {:>7}  {}"


@dataclass
class Report:
    """One line of the table."""

    name: str
    mode: str = ""
    forward: str = ""
    gradients: str = ""
    graphs: int = 0
    fallbacks: int = 0
    seconds: float = 0.0
    remarks: str = ""
    passed: bool = False

    def __str__(self) -> str:
        return ROW.format(
            self.name,
            self.mode,
            self.forward,
            self.gradients,
            self.graphs,
            self.fallbacks,
            f"{self.seconds:.1f}",
            self.remarks,
        )


def compare(name: str, *, training: bool = True) -> Report:
    """Return what came of the model type `name`: one graph and no fallback, if possible."""
    report = Report(name)
    start = time.perf_counter()
    try:
        tiny = make_tiny(name)
        report.mode = "train" if tiny.model.training else "eval"
        with torch.set_grad_enabled(training):
            found = _differences(tiny, report)
        report.forward, report.gradients = f"{found.forward:.1e}", f"{found.gradients:.1e}"
        close = found.forward <= FORWARD and found.gradients <= GRADIENTS
        report.passed = close and report.fallbacks == 0
        if found.gradients > GRADIENTS:
            report.remarks += f" worst gradient: {found.worst_gradient}"
    except NoTinyModelError as error:
        report.remarks = f"not built: {error}"
    except Exception as error:
        lines = str(error).strip().splitlines()
        report.remarks += f" {type(error).__name__}: {lines[0][:200] if lines else ''}"
    report.seconds = time.perf_counter() - start
    return report


def _differences(tiny: TinyModel, report: Report) -> Differences:
    """Try one graph, then several, then fallbacks; note in `report` what it took."""
    attempts = ((True, "error"), (False, "error"), (False, "eager"))
    for fullgraph, fallback in attempts:
        tpu_compile.reset()
        tiny.model.zero_grad(set_to_none=True)

        def compile_model(model: nn.Module, whole: bool = fullgraph, mode: str = fallback) -> Any:
            options = {"fallback": mode}
            return torch.compile(model, backend="tpu", fullgraph=whole, options=options)

        try:
            found = differences(tiny.model, tiny.run, compile_model)
        except UnsupportedOpError as error:
            if fallback == "eager":
                raise
            report.remarks = str(error).splitlines()[0][:160]
            continue
        except TorchDynamoException as error:
            if not fullgraph:
                raise
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            report.remarks = f"breaks: {lines[0][:100] if lines else type(error).__name__}"
            continue
        finally:
            counters = tpu_compile.stats()
            report.graphs = counters.graphs
            report.fallbacks = sum(counters.fallback_ops.values())
        return found
    raise AssertionError("the last attempt returns or raises")


def _out_of_time(number: int, frame: FrameType | None) -> None:
    raise TimeoutError("took too long")


def main() -> int:
    """Print the table; the exit status is 1 if a model differs from eager."""
    parser = argparse.ArgumentParser(prog="python -m tests.models", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="model types, such as llama")
    parser.add_argument("--all", action="store_true", help="every type that transformers knows")
    parser.add_argument("--inference", action="store_true", help="without gradients")
    parser.add_argument("--timeout", type=int, default=300, help="seconds a model (default 300)")
    chosen = parser.parse_args()
    names = all_types() if chosen.all else chosen.names
    if not names:
        parser.error("name a model type, or --all")
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, _out_of_time)
    print(ROW.format(*HEADER))
    reports = []
    for name in names:
        signal.alarm(chosen.timeout)
        reports.append(compare(name, training=not chosen.inference))
        signal.alarm(0)
        print(reports[-1], flush=True)
    print(f"{sum(report.passed for report in reports)} of {len(reports)} equal to eager")
    return 0 if all(report.passed for report in reports) else 1


if __name__ == "__main__":
    sys.exit(main())
