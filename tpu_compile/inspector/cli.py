"""The command line: subcommands, errors as one line, exit codes."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import torch

from tpu_compile._version import __version__
from tpu_compile.errors import OptionError, TpuCompileError
from tpu_compile.inspector import (
    bisect,
    cache,
    diff,
    doctor,
    dump,
    fit,
    ops,
    recompiles,
    report,
    targets,
)
from tpu_compile.inspector.exits import ExitCode, InspectorError
from tpu_compile.inspector.output import fail
from tpu_compile.runtime.archive import ArchiveError
from tpu_compile.runtime.pjrt import PluginMissingError
from tpu_compile.runtime.stores import StoreError
from tpu_compile.runtime.targets import UnknownTargetError

# Each module has `NAME`, `HELP`, `EXAMPLES`, `add_arguments(parser)` and `run(arguments) -> int`.
COMMANDS: tuple[Any, ...] = (
    dump,
    fit,
    ops,
    bisect,
    diff,
    report,
    recompiles,
    cache,
    targets,
    doctor,
)


# The first that fits; whatever else the package raises is about compiling.
_CODES: dict[type[Exception], ExitCode] = {
    OSError: ExitCode.FILE,
    ArchiveError: ExitCode.FILE,
    StoreError: ExitCode.FILE,
    PluginMissingError: ExitCode.NO_COMPILER,
    UnknownTargetError: ExitCode.TARGET,
    OptionError: ExitCode.USAGE,
}


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all subcommands."""
    parser = argparse.ArgumentParser(
        prog="tpu-compile-inspect",
        description="Ask the compiler about a PyTorch model: programs, memory, cost, recompiles.",
        epilog="tpu-compile-inspect COMMAND --help shows examples of a command.",
    )
    parser.add_argument("--version", action="version", version=f"tpu_compile {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for module in COMMANDS:
        command = commands.add_parser(
            module.NAME,
            help=module.HELP,
            description=module.HELP,
            epilog="examples:\n" + "\n".join(f"  {example}" for example in module.EXAMPLES),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        command.add_argument("--json", action="store_true", help="print JSON")
        command.add_argument(
            "--traceback", action="store_true", help="show where an error comes from"
        )
        command.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; errors are one line on standard error."""
    arguments = make_parser().parse_args(argv)
    if not arguments.traceback:
        # What torch logs of a failure is in the one line; its warnings are not about the answer.
        torch._logging.set_logs(all=logging.CRITICAL)
    try:
        return int(arguments.run(arguments))
    except BrokenPipeError:
        # The reader of a pipe left; Python would complain again when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except KeyboardInterrupt:
        fail("interrupted")
        return ExitCode.INTERRUPTED
    except (TpuCompileError, OSError) as error:
        if arguments.traceback:
            traceback.print_exc()
        fail(str(error))
        return _code_of(error)


def _code_of(error: Exception) -> ExitCode:
    if isinstance(error, InspectorError):
        return error.code
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            return code
    return ExitCode.COMPILE
