"""`fit`: whether a model fits the memory of a chip, at which sizes, and what bounds its speed."""

from __future__ import annotations

import argparse
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tpu_compile.ahead.fitting import Fit, Largest, fit, largest_size
from tpu_compile.ahead.hlo_text import TileWaste, tile_waste
from tpu_compile.inspector.exits import ExitCode, InspectorError
from tpu_compile.inspector.inputs import sizes_of
from tpu_compile.inspector.models import Subject, add_model_arguments, lower_subject, subject_of
from tpu_compile.inspector.output import print_json, quantity, size, styled, table
from tpu_compile.inspector.progress import CompileProgress
from tpu_compile.runtime.targets import parse_target

NAME = "fit"
HELP = "say whether a model fits the memory of a chip, and what its speed is bound by"
EXAMPLES = (
    "tpu-compile-inspect fit examples/gpt2.py:gpt2 --target v6e --batch 1,8,64",
    "tpu-compile-inspect fit examples/gpt2.py:gpt2 --train --target v6e --batch 1,8,64",
    "tpu-compile-inspect fit hf:bert --dtype bf16 --target v5e --seq 128,512 --no-search",
)
LIMIT = 65536

HEADER = (
    "peak",
    "of HBM",
    "state",
    "arguments",
    "outputs",
    "temporaries",
    "code",
    "FLOP",
    "accessed",
    "bound by",
    "of peak",
    "tiles",
    "fits",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_model_arguments(parser)
    parser.add_argument("--target", default="v6e", help="a chip (default v6e); see targets")
    parser.add_argument("--batch", metavar="N,N", help="batch sizes")
    parser.add_argument("--seq", metavar="N,N", help="sequence lengths")
    parser.add_argument(
        "--no-search", action="store_true", help="do not look for the largest batch that fits"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the table; the exit code says whether every row fits."""
    target = parse_target(arguments.target)
    subject = subject_of(arguments)
    axes = {
        name: sizes_of(text, f"--{name}")
        for name, text in (("batch", arguments.batch), ("seq", arguments.seq))
        if text is not None
    }
    progress = CompileProgress()

    def fit_at(sizes: Mapping[str, int]) -> Fit:
        lowered = lower_subject(subject.at(**sizes), target.platform)
        if not lowered.programs:
            raise InspectorError(
                f"{subject.spec} runs no op in a compiled graph",
                ExitCode.COMPILE,
                why="there is no program whose memory could be told",
                ways_out=("tpu-compile-inspect ops, which shows where each op runs",),
            )
        return fit(lowered, str(target), progress=progress.expect(lowered))

    points = [dict(zip(axes, sizes, strict=True)) for sizes in itertools.product(*axes.values())]
    found = [(sizes, fit_at(sizes)) for sizes in points]
    largest = []
    if "batch" in axes and not arguments.no_search and target.chip is not None:
        largest = list(_largest(axes, found, fit_at))
    progress.close()
    if arguments.json:
        print_json(
            {
                "target": str(target),
                "rows": [{"sizes": sizes, **_as_data(one)} for sizes, one in found],
                "largest_batch": [
                    {"sizes": sizes, "batch": one.size, "is_limit": one.is_limit}
                    for sizes, one in largest
                ],
            }
        )
    else:
        _print(subject, str(target), axes, found, largest)
    return ExitCode.OK if all(one.fits for _, one in found) else ExitCode.DOES_NOT_FIT


def _largest(
    axes: Mapping[str, Sequence[int]],
    found: Sequence[tuple[Mapping[str, int], Fit]],
    fit_at: Callable[[Mapping[str, int]], Fit],
) -> Any:
    """Yield, for each sequence length, the largest batch."""
    for seq in axes.get("seq", [None]):
        others = {} if seq is None else {"seq": seq}
        known = {sizes["batch"]: one for sizes, one in found if others.items() <= sizes.items()}
        at = functools.partial(_at_batch, fit_at, others)
        yield others, largest_size(at, known, limit=LIMIT)


def _at_batch(
    fit_at: Callable[[Mapping[str, int]], Fit], others: Mapping[str, int], batch: int
) -> Fit:
    return fit_at({"batch": batch, **others})


def _print(
    subject: Subject,
    target: str,
    axes: Mapping[str, Sequence[int]],
    found: Sequence[tuple[Mapping[str, int], Fit]],
    largest: Sequence[tuple[Mapping[str, int], Largest]],
) -> None:
    first = found[0][1]
    available = first.memory.available
    limit = f", {size(available)} of HBM for programs" if available is not None else ""
    training = f", training with {subject.train}" if subject.train else ""
    print(f"{subject.spec}{training} on {target}{limit}\n")
    rows = [[*map(str, sizes.values()), *_row(one)] for sizes, one in found]
    print(table((*axes, *HEADER), rows))
    for sizes, one in found:
        if not one.fits:
            at = ", ".join(f"{name} {value}" for name, value in sizes.items())
            print(f"\n{at or 'it'} needs {size(one.memory.excess)} more than there is:")
            for refused in one.refused:
                print(f"  {refused.where}: {refused.why}")
    for sizes, best in largest:
        at = "".join(f" at {name} {value}" for name, value in sizes.items())
        if best.size is None:
            print(f"\nNo batch fits{at}.")
        elif best.is_limit:
            print(f"\nBatch {best.size} fits{at}; larger ones were not tried.")
        else:
            over = size(best.tried[best.size + 1].memory.excess)
            print(
                f"\nThe largest batch that fits{at} is {styled(str(best.size), 'bold')}; "
                f"{best.size + 1} needs {over} more than there is."
            )
    waste = _waste(found[-1][1])
    if waste is not None and waste.share >= 0.01:
        shapes = ", ".join(f"{shape} ({size(lost)})" for shape, lost in waste.worst[:3])
        print(f"\nTiles are filled up most by {shapes}.")


def _row(one: Fit) -> list[str]:
    memory = one.memory
    worst = max(memory.steps, key=lambda step: step.total)
    share = f"{memory.peak / memory.available:.0%}" if memory.available else "-"
    fits = styled("yes", "green") if one.fits else styled("no", "red")
    parts = [size(memory.peak), share, size(memory.state)]
    if one.compiled is None:
        return [*parts, *["-"] * 9, fits]
    roofline, waste = one.compiled.roofline, _waste(one)
    cost = one.compiled.cost
    return [
        *parts,
        *map(size, (worst.arguments, worst.outputs, worst.temporaries, worst.code)),
        quantity(cost.flops),
        size(cost.bytes_accessed),
        "-" if roofline is None else roofline.bound,
        "-" if roofline is None else f"{roofline.peak_share:.0%}",
        "-" if waste is None else f"{waste.share:.0%}",
        fits,
    ]


def _waste(one: Fit) -> TileWaste | None:
    """Return the waste of the tiles, of the program with the most of it."""
    if one.compiled is None or one.compiled.target.chip is None:
        return None
    found = [tile_waste(program.hlo_module) for program in one.compiled.programs]
    return max(found, key=lambda waste: waste.padded - waste.useful)


def _as_data(one: Fit) -> dict[str, Any]:
    memory = one.memory
    compiled = one.compiled
    roofline = None if compiled is None else compiled.roofline
    waste = _waste(one)
    return {
        "fits": one.fits,
        "peak_bytes": memory.peak,
        "available_bytes": memory.available,
        "excess_bytes": memory.excess,
        "state_bytes": memory.state,
        "refused": [error.where for error in one.refused],
        "flops": None if compiled is None else compiled.cost.flops,
        "bytes_accessed": None if compiled is None else compiled.cost.bytes_accessed,
        "estimated_cycles": None if compiled is None else compiled.cost.estimated_cycles,
        "bound": None if roofline is None else roofline.bound,
        "peak_share": None if roofline is None else roofline.peak_share,
        "least_seconds": None if roofline is None else roofline.seconds,
        "tile_waste": None if waste is None else waste.share,
    }
