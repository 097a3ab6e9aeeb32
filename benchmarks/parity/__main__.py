"""Print what the TPU compiler says of our programs and of JAX's, side by side.

Needs jax and libtpu installed as packages. Compiles take minutes: `--target` and `--model` limit
them. Exit status 1: a condition is not met, or the two sides of a model compute different things.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import warnings
from pathlib import Path

import jax

from benchmarks.parity.compare import Comparison, compare, versions
from benchmarks.parity.sizes import KINDS, SIZES, TARGETS
from benchmarks.parity.twins import TOLERANCES, largest_difference
from tpu_compile.runtime.targets import parse_target

_HEADER = ("model", "program", "chip", "operations", "bytes", "cycles", "misses")


def main() -> int:
    """Run what the command line asks for; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.parity",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--target", action="append", help=f"by default {', '.join(TARGETS)}")
    parser.add_argument("--model", action="append", choices=list(SIZES), help="by default all")
    parser.add_argument("--program", action="append", choices=KINDS, help="by default both")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    parser.add_argument("--hlo", type=Path, metavar="FOLDER", help="write both sides' HLO there")
    arguments = parser.parse_args()
    # JAX looks for no device, and the plugin that both sides compile with is loaded once.
    jax.config.update("jax_platforms", "cpu")
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    warnings.simplefilter("ignore")

    models = arguments.model or list(SIZES)
    targets = [parse_target(text) for text in arguments.target or TARGETS]
    ours, theirs = versions(targets[0])
    print(f"compiler of ours: {' '.join(ours.split())}")
    print(f"compiler of JAX:  {' '.join(theirs.split())}\n")
    differ = [model for model in models if not _are_twins(model)]
    print("\n| " + " | ".join(_HEADER) + " |\n|" + "---|" * len(_HEADER))
    found: list[Comparison] = []
    for target in targets:
        for model in models:
            for kind in arguments.program or KINDS:
                found.append(compare(model, kind, target))
                print(_row(found[-1]), flush=True)
                _write(found, arguments.json, arguments.hlo, (ours, theirs))
    return 1 if differ or any(comparison.misses for comparison in found) else 0


def _are_twins(model: str) -> bool:
    """Print how far both sides of a model lie apart; return whether that is within tolerance."""
    met = True
    for dtype, tolerance in TOLERANCES.items():
        difference = largest_difference(model, dtype)
        met &= difference <= tolerance
        verdict = "same" if difference <= tolerance else "DIFFERENT"
        print(f"{model}, {dtype}: results differ by {difference:.1e}: {verdict}", flush=True)
    return met


def _row(found: Comparison) -> str:
    chip = found.target.partition(":")[0]
    ratios = (found.flops_ratio, found.bytes_ratio, found.cycles_ratio)
    cells = [found.model, found.kind, chip, *(f"{ratio:.3f}" for ratio in ratios)]
    return "| " + " | ".join([*cells, ", ".join(found.misses)]) + " |"


def _write(
    found: list[Comparison], file: Path | None, folder: Path | None, compilers: tuple[str, str]
) -> None:
    """Write figures and the newest HLO; after each program, since a run takes long."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        newest = found[-1]
        name = f"{newest.target.replace(':', '_')}_{newest.model}_{newest.kind}"
        (folder / f"{name}_ours.txt").write_text(newest.ours.hlo)
        (folder / f"{name}_jax.txt").write_text(newest.jax.hlo)
    if file is not None:
        rows = [dataclasses.asdict(comparison) for comparison in found]
        for row, comparison in zip(rows, found, strict=True):
            del row["ours"]["hlo"], row["jax"]["hlo"]
            row["misses"] = comparison.misses
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"compilers": compilers, "results": rows}, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
