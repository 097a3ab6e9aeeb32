"""`doctor`: what of this environment works, and what to do about what does not."""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Literal

from tpu_compile._version import __version__
from tpu_compile.errors import TpuCompileError
from tpu_compile.inspector.exits import ExitCode
from tpu_compile.inspector.output import print_json, size, styled
from tpu_compile.inspector.requirements import is_inside, ranges_of
from tpu_compile.options import (
    CACHE_DIR_VARIABLE,
    CACHE_SIZE_VARIABLE,
    CACHE_VERIFY_VARIABLE,
    PLATFORM_VARIABLE,
    CompileOptions,
    nearest,
    platform_from_environment,
)
from tpu_compile.registration import NAMES, TARGET, owner_of
from tpu_compile.runtime.pjrt import plugin_names, plugin_path, tpu_is_attached
from tpu_compile.runtime.platforms import current_platform
from tpu_compile.runtime.stores import is_url, store_at

NAME = "doctor"
HELP = "check versions, plugins, the backend's name, the cache, and run one small program"
EXAMPLES = ("tpu-compile-inspect doctor", "tpu-compile-inspect doctor --json")

State = Literal["ok", "warning", "problem"]
_STYLES = {"ok": "green", "warning": "yellow", "problem": "red"}

_PACKAGE = "tpu_compile"
# Packages that are worth a line, whether they have to be there or not.
_REQUIRED = ("torch", "jaxlib", "numpy", "ml_dtypes")
_OPTIONAL = ("libtpu", "jax")
_OURS = "TPU_COMPILE_"
_OTHERS = (
    "ACCELERATE_TORCH_DEVICE",
    "JAX_PLATFORMS",
    "LIBTPU_INIT_ARGS",
    "PJRT_NAMES_AND_LIBRARY_PATHS",
    "TORCHDYNAMO_DISABLE",
    "TORCH_COMPILE_DISABLE",
    "TPU_LIBRARY_PATH",
    "XLA_FLAGS",
)
_SWITCHES_OFF = ("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE")


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    state: State
    name: str
    text: str
    way_out: str | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command: none."""


def run(arguments: argparse.Namespace) -> int:
    """Print every finding and return whether there is a problem."""
    found: list[Finding] = []
    for check in (_versions, _platforms, _backend_names, _device, _cache, _environment, _program):
        for finding in check():
            found.append(finding)
            if not arguments.json:
                _print(finding)
    if arguments.json:
        print_json({"findings": [asdict(finding) for finding in found]})
    return ExitCode.FOUND if any(each.state == "problem" for each in found) else ExitCode.OK


def _print(finding: Finding) -> None:
    state = styled(f"{finding.state:8}", _STYLES[finding.state])
    print(f"{state} {finding.name}: {finding.text}")
    if finding.way_out is not None:
        print(f"         way out: {finding.way_out}")


# --- versions ------------------------------------------------------------------------------------


def _versions() -> Iterator[Finding]:
    """Read the versions of what is installed; jax is not imported, nor libtpu."""
    yield Finding("ok", "tpu_compile", __version__)
    try:
        ranges = ranges_of(_PACKAGE)
    except metadata.PackageNotFoundError:
        ranges = {}
        yield Finding(
            "warning",
            "tpu_compile",
            "runs from a source tree, so that the versions it needs are not known here",
            "pip install -e . in the tree",
        )
    python = platform.python_version()
    wanted = ranges.get("python", "")
    yield _judged("python", python, wanted)
    for name in (*_REQUIRED, *_OPTIONAL):
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            if name in _REQUIRED:
                way_out = f"pip install '{name}{ranges.get(name, '')}'"
                yield Finding("problem", name, "is not installed", way_out)
            elif name == "libtpu":
                yield Finding("ok", name, "is not installed; only TPU targets need it")
            continue
        yield _judged(name, version, ranges.get(name, ""))


def _judged(name: str, version: str, wanted: str) -> Finding:
    if not wanted:
        return Finding("ok", name, version)
    inside = is_inside(version, wanted)
    if inside is None:
        return Finding("warning", name, f"{version}, and it cannot be told if that is {wanted}")
    if inside:
        return Finding("ok", name, f"{version} ({wanted})")
    way_out = "another Python" if name == "python" else f"pip install '{name}{wanted}'"
    return Finding("problem", name, f"{version}, and {wanted} is needed", way_out)


# --- platforms and names -------------------------------------------------------------------------


def _platforms() -> Iterator[Finding]:
    plugins = plugin_names()
    listed = ", ".join(["cpu", *(f"{name} ({plugin_path(name)})" for name in plugins)])
    yield Finding("ok", "platforms", listed)
    if tpu_is_attached():
        if "tpu" in plugins:
            yield Finding("ok", "TPU", "attached")
        else:
            way_out = "pip install tpu_compile[tpu]"
            yield Finding("problem", "TPU", "attached, but there is no libtpu", way_out)
    else:
        yield Finding("ok", "TPU", "none is attached")
    wanted = platform_from_environment()
    if wanted is not None and wanted not in ("cpu", *plugins):
        yield Finding(
            "problem",
            PLATFORM_VARIABLE,
            f"names {wanted!r}, and no plugin provides it",
            f"unset it, or one of: {', '.join(('cpu', *plugins))}",
        )
    yield Finding("ok", "current platform", current_platform())


def _backend_names() -> Iterator[Finding]:
    for name in NAMES:
        owner = owner_of(name)
        if owner == TARGET or (owner or "").startswith("tpu_compile."):
            yield Finding("ok", f"backend {name!r}", "ours")
        elif name == "tpu":
            yield Finding(
                "warning",
                f"backend {name!r}",
                f"belongs to {owner}",
                'backend="tpu_compile"',
            )
        else:
            yield Finding(
                "problem",
                f"backend {name!r}",
                f"belongs to {owner}" if owner else "is not known to torch",
                "uninstall the other package" if owner else "install tpu_compile again",
            )


# --- the device ----------------------------------------------------------------------------------


def _device() -> Iterator[Finding]:
    try:
        _device_compatibility().require_hooks()
    except TpuCompileError as error:
        way_out = ", or ".join(error.ways_out)
        yield Finding("problem", 'device "tpu"', f"{error.what}: {error.why}", way_out)
    else:
        yield Finding("ok", 'device "tpu"', "torch has what it is made of")


def _device_compatibility() -> ModuleType:
    """Return `tpu_compile.device.compat` without its package, which would register the device."""
    name = "tpu_compile.device.compat"
    if name in sys.modules:
        return sys.modules[name]
    file = Path(__file__).parent.parent / "device" / "compat.py"
    spec = importlib.util.spec_from_file_location("_tpu_compile_device_compat", file)
    if spec is None or spec.loader is None:
        raise TpuCompileError(f"There is no {file}", ways_out=("install tpu_compile again",))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- cache and environment -----------------------------------------------------------------------


def _cache() -> Iterator[Finding]:
    options = CompileOptions()
    try:
        named, limit = options.resolved_cache_dir(), options.resolved_cache_size()
        options.resolved_cache_verify()
        if named is None:
            yield Finding("ok", "cache", f"off; {CACHE_DIR_VARIABLE} or `cache_dir` turns it on")
            return
        store = store_at(named, limit)
        if not is_url(named) and not os.path.lexists(named):
            yield Finding("ok", "cache", f"{named} will be made when the first program is stored")
            return
        files = [file.size for file in store.programs()]
    except (TpuCompileError, OSError) as error:
        yield Finding("problem", "cache", str(error), "another folder")
        return
    bound = "" if store.limit is None else f" of {size(store.limit)}"
    yield Finding("ok", "cache", f"{named}: {len(files)} programs, {size(sum(files))}{bound}")
    if not is_url(named) and not os.access(named, os.W_OK):
        yield Finding("warning", "cache", "cannot be written: programs are read, none is stored")


def _environment() -> Iterator[Finding]:
    known = (
        CACHE_DIR_VARIABLE,
        CACHE_SIZE_VARIABLE,
        CACHE_VERIFY_VARIABLE,
        PLATFORM_VARIABLE,
    )
    for name, value in sorted(os.environ.items()):
        if name.startswith(_OURS) and name not in known:
            yield Finding("warning", name, "is no variable of tpu_compile", nearest(name, known))
        elif name in _SWITCHES_OFF and value not in ("", "0"):
            yield Finding(
                "warning", name, f"{value}: torch.compile compiles nothing", f"unset {name}"
            )
        elif name.startswith(_OURS) or name in _OTHERS:
            yield Finding("ok", name, value)


# --- one program ---------------------------------------------------------------------------------


def _program() -> Iterator[Finding]:
    import torch

    from tpu_compile.backend import tpu
    from tpu_compile.statistics import RECORDER

    # A module of torch's: Dynamo skips functions of this package where the device is enabled.
    name = "compile and run"
    try:
        with RECORDER.watch() as watch:
            compiled = torch.compile(torch.nn.ReLU(), backend=tpu, fullgraph=True)
            result = compiled(torch.arange(4.0) - 2)
            executions = watch.stats().executions
    except Exception as error:  # Whatever is wrong here is the finding.
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        yield Finding("problem", name, text, 'tpu_compile.set_platform("cpu") to tell it apart')
        return
    if result.tolist() != [0.0, 0.0, 0.0, 1.0]:
        yield Finding("problem", name, f"gave {result.tolist()}", "report it as a fault")
    elif executions == 0:
        yield Finding("warning", name, "torch ran the function without compiling it")
    else:
        yield Finding("ok", name, f"right on {current_platform()}")
