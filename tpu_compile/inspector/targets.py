"""`targets`: the chips that a model can be compiled for."""

from __future__ import annotations

import argparse

from tpu_compile.inspector.exits import ExitCode
from tpu_compile.inspector.output import print_json, quantity, size, table
from tpu_compile.runtime.pjrt import plugin_path
from tpu_compile.runtime.targets import CHIPS

NAME = "targets"
HELP = "list the chips to compile for"
EXAMPLES = ("tpu-compile-inspect targets",)

HEADER = ("target", "chip", "topology", "devices", "HBM", "HBM bandwidth", "bf16 peak", "aliases")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""


def run(arguments: argparse.Namespace) -> int:
    """Print the chips; figures are those of one device of XLA, on which a program runs."""
    installed = plugin_path("tpu") is not None
    if arguments.json:
        print_json(
            {
                "compiler_installed": installed,
                "targets": [
                    {
                        "name": chip.name,
                        "product": chip.product,
                        "one_chip": f"{chip.name}:{chip.one}",
                        "devices_per_chip": chip.devices,
                        "device_hbm_bytes": chip.device_hbm_bytes,
                        "device_hbm_bandwidth": chip.device_bandwidth,
                        "device_peak_flops": chip.device_peak_flops,
                        "aliases": chip.aliases,
                    }
                    for chip in CHIPS.values()
                ],
            }
        )
        return ExitCode.OK
    rows = [
        (
            chip.name,
            chip.product,
            chip.one,
            chip.devices,
            size(chip.device_hbm_bytes),
            quantity(chip.device_bandwidth, "B/s"),
            quantity(chip.device_peak_flops, "FLOP/s"),
            ", ".join(chip.aliases),
        )
        for chip in CHIPS.values()
    ]
    print(table(HEADER, rows))
    print("\nFigures are of one device, on which a program runs; devices is how many a chip has.")
    if not installed:
        print("The compiler of these chips is not installed: pip install 'tpu_compile[tpu]'")
    return ExitCode.OK
