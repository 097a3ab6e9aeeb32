"""One call of a function whose compiled graphs are noted instead of run.

The call is made with fake tensors: nothing is computed, no data is needed, and a model that fits no
memory of this machine can be asked about. Python code around the graphs runs as ever.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._dynamo.eval_frame import OptimizedModule, innermost_fn
from torch.utils import _pytree as pytree

from lowering.errors import TpuCompileError
from lowering.sizes import Bindings, Sizes, UnboundSizeError, bind, placeholder_symbols
from tpu_compile import backend, capture
from tpu_compile.ahead.fake import NEEDS_DATA, fake_tensors, unset_fake_temporarily
from tpu_compile.history import GraphName
from tpu_compile.options import CompileOptions
from tpu_compile.partition import Plan

# What runs: the function, its positional and its keyword arguments.
Made = tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]


class ValueNeededError(TpuCompileError):
    """The function needs the value of a tensor, and there are only shapes."""


@dataclass(frozen=True)
class Tensor:
    """A tensor that a graph takes or gives, told apart by its memory."""

    memory: int
    """The same number for every tensor in the same storage."""
    size: int
    """Bytes of the storage."""
    persists: bool
    """Whether the function holds it from call to call: a parameter or a buffer."""


@dataclass(eq=False)
class RecordedGraph:
    """A functional graph, planned for a platform."""

    name: GraphName
    plan: Plan
    options: CompileOptions
    platform: str
    dimensions: Callable[..., Any]
    """Tells name and range of symbolic sizes; good only while the graph is captured."""


@dataclass(frozen=True)
class RecordedCall:
    """One call of a graph: its sizes, and the memory that it reads and makes."""

    graph: RecordedGraph
    bindings: Bindings
    inputs: tuple[Tensor | None, ...]
    """By placeholder; None for what is no tensor."""
    outputs: tuple[Tensor | None, ...]


@dataclass
class Recording:
    """What a function ran, in order."""

    platform: str
    calls: list[RecordedCall] = field(default_factory=list)
    captured: list[fx.GraphModule] = field(default_factory=list)
    """Dynamo's own graphs, before AOTAutograd."""
    reports: tuple[backend.GraphReport, ...] = ()
    _storages: dict[int, tuple[int, Any]] = field(default_factory=dict)
    _made: int = 0

    def tensor(self, value: Any) -> Tensor | None:
        """Return what is noted of a tensor; None for anything else."""
        if not isinstance(value, torch.Tensor):
            return None
        storage = value.untyped_storage()
        # Kept, so that no other storage takes its address meanwhile.
        number, _ = self._storages.setdefault(storage._cdata, (len(self._storages), storage))
        return Tensor(number, storage.nbytes(), isinstance(value, torch.nn.Parameter))

    def made(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return a tensor that no call shows: one between two parts of a graph."""
        self._made += 1
        return Tensor(-self._made, math.prod(shape) * dtype.itemsize, persists=False)


class _Recorder:
    """Compiles plans by noting them; their calls give fake tensors of the right shapes."""

    def __init__(
        self,
        options: CompileOptions,
        recording: Recording,
        prepare: Callable[[RecordedGraph], Any],
    ) -> None:
        self.platform = recording.platform
        self._options = options
        self._recording = recording
        self._prepare = prepare

    def compile(self, graph_plan: Plan, name: GraphName) -> capture.Compiled:
        """Return a callable that notes its calls."""
        graph = RecordedGraph(name, graph_plan, self._options, self.platform, capture.dimensions)
        # Raises where a lowering declines: the graph is then planned again without that op.
        self._prepare(graph)
        nodes = list(graph_plan.graph_module.graph.nodes)
        placeholders = [node for node in nodes if node.op == "placeholder"]
        (output,) = [node for node in nodes if node.op == "output"]
        symbols = placeholder_symbols(placeholders)

        def call(args: Sequence[Any]) -> list[Any]:
            bindings = bind(symbols, args)
            values = dict(zip(placeholders, args, strict=True))
            outputs = [_output(item, values, bindings) for item in output.args[0]]
            recording = self._recording
            recording.calls.append(
                RecordedCall(
                    graph,
                    bindings,
                    tuple([recording.tensor(value) for value in args]),
                    tuple([recording.tensor(value) for value in outputs]),
                )
            )
            return outputs

        return call


def _output(item: Any, values: Mapping[fx.Node, Any], bindings: Bindings) -> Any:
    """Return a tensor as output `item` of a graph would be; an input that is one, itself."""
    if not isinstance(item, fx.Node):
        return item
    if item in values:
        return values[item]
    sizes = Sizes(bindings)
    fake = item.meta["val"]
    try:
        if not isinstance(fake, torch.Tensor):
            return sizes.resolve(fake)
        return torch.empty_strided(
            sizes.shape(fake.shape),
            sizes.shape(fake.stride()),
            dtype=fake.dtype,
            device=fake.device,
        )
    except UnboundSizeError as error:
        raise _value_needed(f"the size of a result of {item.target} depends on data") from error


def record(
    make: Callable[[], Made],
    *,
    platform: str,
    options: CompileOptions | None,
    dynamic: bool | None,
    prepare: Callable[[RecordedGraph], Any],
) -> Recording:
    """Return what the function that `make` gives runs when it is called.

    It is called once; one that trains twice, and its second call is told.

    `make` is called where tensors are fake: what it creates takes no memory, unless it reads a
    value; then it is called again with real tensors.

    Args:
        make: gives function, arguments and keyword arguments.
        platform: PJRT's name of what the programs are for.
        options: those of `torch.compile`; None for what an inner `torch.compile` sets, else the
            defaults.
        dynamic: as in `torch.compile`.
        prepare: is given each graph while it is captured.

    Raises:
        ValueNeededError: the function reads the value of a tensor.
    """
    recording = Recording(platform)

    def compiler(chosen: CompileOptions, graph_module: fx.GraphModule) -> _Recorder:
        recording.captured.append(graph_module)
        return _Recorder(options or chosen, recording, prepare)

    with contextlib.ExitStack() as stack:
        stack.enter_context(_untouched())
        mode = stack.enter_context(fake_tensors())
        stack.enter_context(as_the_first_call())
        stack.enter_context(backend.compiling_by(compiler))
        observer = stack.enter_context(backend.observe())
        try:
            function, args, kwargs = _made(make)
            args, kwargs = pytree.tree_map_only(
                torch.Tensor, mode.from_tensor, (list(args), dict(kwargs))
            )
            compiled = compiled_anew(function, dynamic)
            compiled(*args, **kwargs)
            if any(call.graph.name.kind == "backward" for call in recording.calls):
                # Some optimizers make their state in the first step; later ones are the rule.
                recording.calls.clear()
                compiled(*args, **kwargs)
        except NEEDS_DATA as error:
            raise _value_needed(f"{error.func} gives what only the data can tell") from error
    recording.reports = observer.reports()
    return recording


def _made(make: Callable[[], Made]) -> Made:
    """Return what `make` gives; with real tensors where it reads the value of one.

    Vision models do so that compute a rate for each layer. They take the memory that they have.
    """
    try:
        return make()
    except NEEDS_DATA:
        with unset_fake_temporarily():
            return make()


def compiled_anew(function: Callable[..., Any], dynamic: bool | None = None) -> Callable[..., Any]:
    """Return `function` compiled so that its next call shows every graph to the backend.

    One that calls compiled functions itself is returned as it is.
    """
    if _calls_compiled(function):
        return function

    # Dynamo reuses graphs only for the same backend: a new object shows every graph.
    def fresh_backend(*captured: Any, **settings: Any) -> Callable[..., Any]:
        return backend.tpu(*captured, **settings)

    return torch.compile(_original(function), backend=fresh_backend, dynamic=dynamic)


def as_the_first_call() -> contextlib.AbstractContextManager[Any]:
    """Let a call be captured as if it were the first: whatever other calls there were.

    They must not use up Dynamo's limit, nor make sizes dynamic that differed between them.
    """
    return torch._dynamo.config.patch(
        recompile_limit=sys.maxsize,
        accumulated_recompile_limit=sys.maxsize,
        automatic_dynamic_shapes=False,
    )


def _calls_compiled(function: Callable[..., Any]) -> bool:
    """Whether `function` is a plain one that names what `torch.compile` made.

    Then it runs as it is: compiling it as well would inline what its author compiles by itself.
    """
    if not inspect.isfunction(function) or _is_compiled(function):
        return False
    found = inspect.getclosurevars(function)
    return any(map(_is_compiled, (*found.nonlocals.values(), *found.globals.values())))


def _is_compiled(thing: Any) -> bool:
    return isinstance(thing, OptimizedModule) or hasattr(thing, "_torchdynamo_orig_callable")


def _original(function: Callable[..., Any]) -> Callable[..., Any]:
    return getattr(function, "_orig_mod", None) or innermost_fn(function)


@contextlib.contextmanager
def _untouched() -> Iterator[None]:
    """Put back what a call with fake tensors leaves in modules, gradients and optimizers.

    Which of them a function reaches cannot be told from outside, so it is done for all there are.
    """
    gradients, states, holders = [], [], []
    for thing in gc.get_objects():
        # Not `isinstance`: asking some objects for their class runs code of theirs.
        kind = type(thing)
        if issubclass(kind, torch.Tensor):
            if thing.requires_grad and thing.is_leaf:
                gradients.append((thing, thing.grad))
        elif issubclass(kind, torch.nn.Module):
            holders += [(held, dict(held)) for held in (thing._parameters, thing._buffers)]
        elif issubclass(kind, torch.optim.Optimizer):
            states.append((thing.state, {key: dict(value) for key, value in thing.state.items()}))
    try:
        yield
    finally:
        for held, before in (*holders, *states):
            held.clear()
            held.update(before)
        for tensor, gradient in gradients:
            if tensor.grad is not gradient:
                tensor.grad = gradient


def _value_needed(why: str) -> ValueNeededError:
    return ValueNeededError(
        "The function needs the value of a tensor, and ahead of time there are only shapes",
        why=why,
        ways_out=(
            "compute what depends on data outside of the function",
            "tpu_compile.explain, which runs it for real",
        ),
    )
