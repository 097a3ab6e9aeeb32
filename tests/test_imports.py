"""The one-way import rule, and what importing the packages may not do.

Modules are read, not imported: a lazy import inside a function counts, one under `TYPE_CHECKING`
does too. Layers are those of docs/architecture.md.
"""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("lowering", "tpu_compile")
JAXLIB_IMPORTERS = {"lowering.mlir.bindings", "tpu_compile.runtime.pjrt.bindings"}

# Lowest first. A module imports from its own layer and from those below; names are prefixes.
LAYERS: tuple[tuple[str, ...], ...] = (
    (
        "tpu_compile._version",
        "tpu_compile.errors",
        "tpu_compile.buckets",
        "tpu_compile.options",
        "tpu_compile.statistics",
    ),
    (
        "tpu_compile.runtime",
        "tpu_compile.chooser",
        "tpu_compile.history",
        "tpu_compile.framing",
        "tpu_compile.budgets",
    ),
    ("tpu_compile.interface",),
    ("tpu_compile.loading", "tpu_compile.donation"),
    ("tpu_compile.device",),
    ("tpu_compile.program",),
    ("tpu_compile.padded_program", "tpu_compile.recipes"),
    ("tpu_compile.routing", "tpu_compile.saved_tensors", "tpu_compile.background"),
    ("tpu_compile.executable",),
    ("tpu_compile.data_dependent", "tpu_compile.torch_cache"),
    ("tpu_compile.capture", "tpu_compile.partition"),
    ("tpu_compile.runner",),
    ("tpu_compile.backend",),
    ("tpu_compile.explanation", "tpu_compile.warming", "tpu_compile.ahead"),
    ("tpu_compile.public", "tpu_compile.registration"),
    ("tpu_compile.inspector", "tpu_compile.pytest_plugin", "tpu_compile.testing"),
)
# (module, imported): why this one may. An entry that is no longer needed fails the tests.
EXCEPTIONS = {
    (
        "tpu_compile.runtime.platforms",
        "tpu_compile.options.platform_from_environment",
    ): "environment variables are read in options.py only",
}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {
    module_name(path): path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
}


def imports_of(name: str, source: str, *, is_package: bool) -> Iterator[str]:
    """Yield what a module imports, fully qualified; `from a import b` gives `a.b`."""
    package = name.split(".") if is_package else name.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            prefix = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{prefix}.{alias.name}" for alias in node.names)


def is_under(name: str, *prefixes: str) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def layer_of(name: str) -> int | None:
    """Return the index of the layer that `name` is in; None for the public `tpu_compile`."""
    for index, prefixes in enumerate(LAYERS):
        if is_under(name, *prefixes):
            return index
    return None


def violations(name: str, imported: str) -> Iterator[str]:
    """Yield each rule that is broken when the module `name` imports `imported`."""
    if is_under(imported, "jax"):
        yield "nothing imports jax"
    if is_under(imported, "jaxlib") and name not in JAXLIB_IMPORTERS:
        yield f"only {' and '.join(sorted(JAXLIB_IMPORTERS))} import jaxlib"
    if is_under(name, "lowering") and is_under(imported, "tpu_compile"):
        yield "lowering knows nothing of tpu_compile"
    if not is_under(name, "tpu_compile"):
        return
    if is_under(name, "tpu_compile.runtime"):
        if is_under(imported, "lowering"):
            yield "the run time does not know lowering"
        if is_under(imported, "tpu_compile") and not is_under(
            imported, "tpu_compile.runtime", "tpu_compile.errors"
        ):
            yield "the run time imports only itself and tpu_compile.errors"
    own, other = layer_of(name), layer_of(imported)
    if own is not None and other is not None and other > own:
        yield "imports run one way, from the higher layer to the lower"


@pytest.mark.parametrize("name", SOURCES)
def test_imports_run_one_way(name: str) -> None:
    path = SOURCES[name]
    found = [
        f"{name} imports {imported}: {rule}"
        for imported in imports_of(name, path.read_text(), is_package=path.stem == "__init__")
        for rule in violations(name, imported)
        if (name, imported) not in EXCEPTIONS
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(("name", "imported"), EXCEPTIONS)
def test_exception_is_needed(name: str, imported: str) -> None:
    path = SOURCES[name]
    imports = imports_of(name, path.read_text(), is_package=path.stem == "__init__")
    assert imported in imports
    assert list(violations(name, imported))


def test_every_module_has_a_layer() -> None:
    homeless = [
        name
        for name in SOURCES
        if is_under(name, "tpu_compile") and name != "tpu_compile" and layer_of(name) is None
    ]
    assert not homeless, f"give {', '.join(homeless)} a place in LAYERS"


@pytest.mark.parametrize(
    ("name", "source", "broken"),
    [
        ("lowering.ops.views", "import tpu_compile.errors", "knows nothing of tpu_compile"),
        ("lowering.ops.views", "from jaxlib.mlir import ir", "import jaxlib"),
        ("lowering.ops.views", "def f():\n    import jax", "nothing imports jax"),
        ("tpu_compile.runtime.cache", "from lowering import errors", "does not know lowering"),
        ("tpu_compile.runtime.cache", "from tpu_compile import capture", "only itself"),
        ("tpu_compile.runtime.cache", "from ..capture import x", "only itself"),
        ("tpu_compile.executable", "from tpu_compile import backend", "one way"),
        ("tpu_compile.executable", "from . import capture", "one way"),
    ],
)
def test_the_rule_finds(name: str, source: str, broken: str) -> None:
    rules = [
        rule
        for imported in imports_of(name, source, is_package=False)
        for rule in violations(name, imported)
    ]
    assert any(broken in rule for rule in rules)


def run_python(code: str, *options: str) -> None:
    done = subprocess.run(
        [sys.executable, *options, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_import_opens_no_client_and_starts_no_thread() -> None:
    run_python(
        """
import threading

from jaxlib import xla_client

def refuse(*args, **kwargs):
    raise AssertionError("importing tpu_compile opened a client")

for name in ("make_cpu_client", "make_c_api_client", "load_pjrt_plugin_dynamically"):
    assert hasattr(xla_client, name), name
    setattr(xla_client, name, refuse)
import torch
before = threading.enumerate()
import tpu_compile
assert threading.enumerate() == before, threading.enumerate()
"""
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_import_warns_of_nothing_and_needs_no_jax(package: str) -> None:
    """A finder that refuses jax stands for an environment without it, if jax is installed."""
    run_python(
        f"""
import sys

class RefuseJax:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "jax":
            raise AssertionError("{package} imports " + name)

sys.meta_path.insert(0, RefuseJax())
import {package}
assert "jax" not in sys.modules
""",
        "-W",
        "error",
    )


def test_backend_is_an_entry_point() -> None:
    """`backend="tpu"` works in a process that never imports us; both names are one backend."""
    from importlib.metadata import entry_points

    points = entry_points(group="torch_dynamo_backends")
    ours = {point.name: point.value for point in points if point.module.startswith("tpu_compile.")}
    assert ours == {"tpu": "tpu_compile.backend:tpu", "tpu_compile": "tpu_compile.backend:tpu"}
    assert importlib.util.find_spec("tpu_compile.backend") is not None
