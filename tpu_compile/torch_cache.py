"""Compiled graphs in torch's own caches, so that a warm start skips AOTAutograd and lowering.

torch keeps what AOTAutograd made of a Dynamo graph (`AOTAutogradCache`), hands all of it out as one
file (`torch.compiler.save_cache_artifacts`), and with `torch._dynamo.config.caching_precompile`
keeps Dynamo's own work too. It takes in compilers whose products it can pickle: ours is the recipe
of a program. The XLA program itself stays in our persistent cache, or is compiled again.

The only module that touches these interfaces. The files are torch's, in its folder
(`TORCHINDUCTOR_CACHE_DIR`), and torch unpickles them.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import hashlib
import importlib.metadata
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._functorch import config as aot_config
from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache
from torch._functorch.aot_autograd import SerializableAOTDispatchCompiler
from torch._inductor.output_code import OutputCode
from torch._inductor.runtime.cache_dir_utils import default_cache_dir
from torch.compiler import config as compiler_config

import lowering
import tpu_compile
from tpu_compile.errors import TpuCompileWarning
from tpu_compile.executable import GraphExecutable
from tpu_compile.options import CompileOptions
from tpu_compile.recipes import Recipe
from tpu_compile.runtime.platforms import current_client
from tpu_compile.runtime.stores import why_unsafe
from tpu_compile.statistics import RECORDER

# torch adds `patch` to its config modules when they are imported, unseen by type checkers.
_aot_config: Any = aot_config
_compiler_config: Any = compiler_config

_refused: set[str] = set()

_NAMESPACES = frozenset({"aten", "prims", "inductor", "quantized", "_c10d_functional"})

# Of the compile in progress; a graph that Dynamo itself stored is loaded without one.
_OPTIONS: contextvars.ContextVar[CompileOptions] = contextvars.ContextVar(
    "options",
    default=CompileOptions(),  # noqa: B039 (it is frozen)
)

Compiler = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]


class StoredGraph(OutputCode):
    """A compiled graph in the form that torch's caches take."""

    def __init__(self, compiled: Callable[..., Any]) -> None:
        super().__init__()
        self.compiled: Callable[..., Any] | None = compiled
        self.recipe: Recipe | None = None
        # It takes its inputs in one list. On the object, since wrappers copy nothing of its class.
        self._boxed_call = True

    def __call__(self, inputs: Sequence[Any]) -> Any:
        """Run the graph on a list of its inputs."""
        return self.compiled(inputs)  # type: ignore[misc]

    def prepare_for_serialization(self) -> None:
        """Leave only what can be stored.

        Raises:
            BypassAOTAutogradCache: nothing can; torch then does without.
        """
        if self.compiled is None:
            return
        if isinstance(self.compiled, GraphExecutable):
            self.recipe = self.compiled.recipe
        if self.recipe is None:
            raise BypassAOTAutogradCache("the graph has dynamic sizes or eager parts")
        self.compiled = None

    def post_compile(self, *_: Any) -> None:
        """Make the graph callable again in this process.

        Raises:
            DeviceError: it was compiled for another platform than the current one.
            CompilationError: XLA refuses the module.
        """
        assert self.recipe is not None
        RECORDER.count("graphs")
        self.compiled = self.recipe.program(current_client(), _OPTIONS.get())

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """Do nothing: there are no Triton kernels in it."""


def storing(compiler: Compiler) -> SerializableAOTDispatchCompiler:
    """Return a compiler whose products torch's caches take."""

    def compile_one(graph: fx.GraphModule, inputs: Sequence[Any]) -> StoredGraph:
        return StoredGraph(compiler(graph, inputs))

    return SerializableAOTDispatchCompiler(StoredGraph, compile_one)


@contextlib.contextmanager
def joined(settings: str, options: CompileOptions, inputs: Sequence[Any]) -> Iterator[None]:
    """Let AOTAutograd keep and find what it makes of a Dynamo graph.

    Args:
        settings: what the result depends on besides the graph.
        options: where programs are kept, for those that are found.
        inputs: the graph's inputs.
    """
    tag = f"{compiler_config.cache_key_tag}|tpu_compile {_sources()} {settings} {_memory(inputs)}"
    # Nothing of Inductor's cache is used; and an entry is stored at once, with its backward.
    how: dict[str, Any] = {
        "bundled_autograd_cache": True,
        "force_non_lazy_backward_lowering": True,
    }
    token = _OPTIONS.set(options)
    try:
        with _compiler_config.patch(cache_key_tag=tag), _aot_config.patch(how):
            yield
    finally:
        _OPTIONS.reset(token)


def _memory(inputs: Sequence[Any]) -> str:
    """Return which inputs share memory, and where they lie in it: torch's own key leaves it out.

    A graph that writes to an input, or views its storage, is another where inputs overlap.
    """
    storages: dict[int, int] = {}
    lines = []
    for value in inputs:
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            storage = value.untyped_storage()
            number = storages.setdefault(storage._cdata, len(storages))
            lines.append(f"{number}+{value.storage_offset()}/{storage.nbytes()}")
        else:
            lines.append("-")
    shared = len(storages) < sum(line != "-" for line in lines)
    offset = any("+0/" not in line for line in lines if line != "-")
    # The sizes of storages say nothing where every tensor is the whole of its own.
    return " ".join(lines) if shared or offset else "apart"


def calls_only_torchs_ops(graph: fx.GraphModule) -> bool:
    """Whether every op that the graph calls is torch's: the code of others is in no key."""
    for module in graph.modules():
        if not isinstance(module, fx.GraphModule):
            continue
        for node in module.graph.nodes:
            if node.op == "call_function" and not _is_torchs(node.target):
                return False
    return True


def _is_torchs(target: Any) -> bool:
    if isinstance(target, torch._ops.OpOverload):
        return target.namespace in _NAMESPACES
    if isinstance(target, torch._ops.OpOverloadPacket):
        return target._qualified_op_name.partition("::")[0] in _NAMESPACES
    # Python functions are torch's to judge, and higher-order operators are keyed by their graphs.
    return True


def can_join() -> bool:
    """Whether torch's cache is on, and its folder safe to take pickles from; warns if it is not.

    A folder that is not there yet is made, for this user alone.
    """
    if not aot_config.enable_autograd_cache or torch.compiler.config.force_disable_caches:
        return False
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or default_cache_dir()
    try:
        # Before torch makes it, as readable and writable as the user's umask has it.
        os.makedirs(folder, mode=0o700, exist_ok=True)
        reason = why_unsafe(folder)
    except OSError as error:
        reason = str(error)
    if reason is not None and folder not in _refused:
        _refused.add(folder)
        warnings.warn(
            f"torch's compile cache {folder} is not used for compiled graphs, and they are traced "
            f"and lowered anew: {reason}. Ways out: chmod go-w {folder}; or another folder in "
            f"TORCHINDUCTOR_CACHE_DIR.",
            TpuCompileWarning,
            stacklevel=2,
        )
    return reason is None


def dynamo_keeps_its_work() -> bool:
    """Whether Dynamo stores the code that it makes, which needs our part of it."""
    return bool(torch._dynamo.config.caching_precompile)


@functools.cache
def _sources() -> str:
    """Return a digest of our code: what it makes of a graph changes with it, and with jaxlib."""
    digest = hashlib.sha256(importlib.metadata.version("jaxlib").encode())
    for package in (lowering, tpu_compile):
        root = Path(package.__path__[0])
        for path in sorted(root.rglob("*.py")):
            digest.update(str(path.relative_to(root)).encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()
