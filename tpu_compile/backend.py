"""The Dynamo backend: options, capture, partition, and the compiled callable.

`tpu` is what the entry points `tpu` and `tpu_compile` of the group `torch_dynamo_backends` name.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import fx

from lowering.errors import UnsupportedOpError
from lowering.registry import REGISTRY
from lowering.rng_states import give_keys_for_states
from lowering.source import source_line
from lowering.subgraphs import draws_random_numbers, subgraphs
from tpu_compile import capture, torch_cache
from tpu_compile.data_dependent import SizedExecutable
from tpu_compile.donation import Donation
from tpu_compile.errors import DeviceError, TpuCompileError, TpuCompileWarning
from tpu_compile.executable import GraphExecutable
from tpu_compile.history import HISTORY, GraphName
from tpu_compile.loading import PROGRAMS
from tpu_compile.options import CompileOptions, from_torch_compile
from tpu_compile.partition import Fallback, Part, Plan, SizedOp, plan
from tpu_compile.runner import PartitionedGraph, forget_warnings, warn_once
from tpu_compile.runtime.pjrt import Client
from tpu_compile.runtime.platforms import current_client
from tpu_compile.saved_tensors import Family, Saved
from tpu_compile.statistics import RECORDER


def tpu(
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | CompileOptions | None = None,
) -> Callable[..., Any]:
    """Compile a Dynamo graph; what `torch.compile(..., backend="tpu")` calls.

    Args:
        graph_module: the captured graph.
        example_inputs: its inputs.
        mode: a mode of `torch.compile`; accepted, without effect.
        options: see `CompileOptions`.

    Raises:
        OptionError: an unknown mode, option or value.
        DeviceError: the platform cannot be opened, or an input is on another device.
        UnsupportedOpError: under `fallback="error"`, an op has no lowering.
        CompilationError: XLA could not compile the graph.
    """
    try:
        chosen = from_torch_compile(mode, options)
        _check_devices(graph_module)
        make = _PLAN_COMPILER.get()
        settings = _settings(chosen, graph_module) if make is None else None
        plan_compiler: PlanCompiler
        if make is None:
            plan_compiler = _ClientCompiler(chosen, current_client(), stores=settings is not None)
        else:
            plan_compiler = make(chosen, graph_module)
        compiler = _GraphCompiler(chosen, plan_compiler, graph_module)
        stored = None if settings is None else (settings, chosen)
        return capture.compile_captured(graph_module, example_inputs, compiler.compile, stored)
    except TpuCompileError as error:
        raise capture.raise_through_dynamo(error) from error.__cause__


def _settings(options: CompileOptions, graph_module: fx.GraphModule) -> str | None:
    """Return what compiled graphs depend on besides torch's graph; None if none is to be stored.

    They are stored where programs are, and where Dynamo's own work is; but not while somebody
    watches what is compiled, nor with rules or ops of users', whose code no key could tell.
    """
    folder = options.resolved_cache_dir()
    if folder is None and not torch_cache.dynamo_keeps_its_work():
        return None
    is_observed = bool(_observers.__dict__.get("stack"))
    if not PROGRAMS.uses_folders or is_observed or REGISTRY.has_users_rules:
        return None
    if not torch_cache.calls_only_torchs_ops(graph_module) or not torch_cache.can_join():
        return None
    matters = dataclasses.replace(options, cache_dir=None, cache_size=None, cache_verify=None)
    return f"{current_client().version} {options.resolved_precision()} {matters!r}"


class PlanCompiler(Protocol):
    """Makes callables of the graphs that belong to one Dynamo graph."""

    platform: str
    """PJRT name of the platform that the graphs are planned for."""

    def compile(self, graph_plan: Plan, name: GraphName) -> capture.Compiled:
        """Return the callable on the list of the graph's inputs.

        Raises:
            UnsupportedOpError: a lowering declines its node; the graph is planned again without.
        """


MakePlanCompiler = Callable[[CompileOptions, fx.GraphModule], PlanCompiler]
"""From the options and Dynamo's graph."""

_PLAN_COMPILER: contextvars.ContextVar[MakePlanCompiler | None] = contextvars.ContextVar(
    "plan_compiler", default=None
)


@contextlib.contextmanager
def compiling_by(make: MakePlanCompiler) -> Iterator[None]:
    """Let what `make` gives compile, in this context, in place of the current platform's client."""
    token = _PLAN_COMPILER.set(make)
    try:
        yield
    finally:
        _PLAN_COMPILER.reset(token)


@dataclass(frozen=True)
class DynamicSize:
    """A dimension of a graph that changes from call to call."""

    name: str | None
    minimum: int
    maximum: int | None


@dataclass(frozen=True)
class GraphReport:
    """What became of one graph, for `explain`."""

    name: GraphName
    ops: int
    parts: int
    fallbacks: tuple[Fallback, ...]
    inputs: tuple[str, ...]
    break_reason: str | None
    dynamic_sizes: tuple[DynamicSize, ...] = ()
    """The sizes that are padded."""
    buckets: tuple[tuple[int, ...], ...] = ()
    """What they are padded to, one tuple a program."""
    exact_reason: str | None = None
    """Why a graph with dynamic sizes compiles for each of them instead."""
    donations: tuple[Donation, ...] = ()
    """What becomes of the device arrays of inputs that the graph writes to."""


@dataclass
class Observer:
    """Collects the reports of the graphs that are compiled while it is active."""

    seen: list[tuple[GraphReport, tuple[GraphExecutable, ...]]] = field(default_factory=list)

    def reports(self) -> tuple[GraphReport, ...]:
        """Return the reports as things are now: programs may have come since."""
        return tuple(_with_padding(report, executables) for report, executables in self.seen)


def _with_padding(report: GraphReport, executables: Sequence[GraphExecutable]) -> GraphReport:
    padding = [executable.padding for executable in executables]
    sizes = {
        DynamicSize(d.name, d.minimum, d.maximum): None for one in padding for d in one.dimensions
    }
    reasons = [one.exact_reason for one in padding if one.exact_reason is not None]
    return dataclasses.replace(
        report,
        dynamic_sizes=tuple(sizes),
        buckets=tuple(sorted({sizes for one in padding for sizes in one.buckets})),
        exact_reason=reasons[0] if reasons else None,
        donations=tuple(one for executable in executables for one in executable.donations),
    )


_observers = threading.local()


@contextlib.contextmanager
def observe() -> Iterator[Observer]:
    """Collect a report of each graph that this thread compiles inside the block."""
    observer = Observer()
    stack = _observers.__dict__.setdefault("stack", [])
    stack.append(observer)
    try:
        yield observer
    finally:
        stack.remove(observer)


class _GraphCompiler:
    """Compiles the functional graphs of one Dynamo graph with one set of options."""

    def __init__(
        self, options: CompileOptions, compiler: PlanCompiler, graph_module: fx.GraphModule
    ) -> None:
        self._options = options
        self._compiler = compiler
        self._function, self._where = capture.function_name(graph_module)
        self._break_reason = capture.break_reason(graph_module)

    def compile(self, graph_module: fx.GraphModule, kind: str) -> capture.Compiled:
        """Return the callable of a functional graph; `kind` is what AOTAutograd made it for."""
        RECORDER.count("graphs")
        platform = self._compiler.platform
        give_keys_for_states(graph_module, platform)
        if kind == "backward":
            _warn_about_other_numbers(graph_module)
        name = GraphName(self._function, self._where, kind)
        declined: dict[str, str] = {}
        while True:
            graph_plan = plan(graph_module, platform, declined)
            if graph_plan.fallbacks and self._options.fallback == "error":
                raise _unsupported(graph_plan)
            try:
                compiled = self._compiler.compile(graph_plan, name)
            except UnsupportedOpError as error:
                if self._options.fallback == "error" or error.node_name in {None, *declined}:
                    raise
                why = f"its lowering declined these arguments: {error.why}"
                declined[str(error.node_name)] = why
                continue
            warn_once(graph_plan.fallbacks)
            self._report(graph_plan, name, compiled)
            return compiled

    def _report(self, graph_plan: Plan, name: GraphName, compiled: capture.Compiled) -> None:
        stack = getattr(_observers, "stack", ())
        if not stack:
            return
        nodes = graph_plan.graph_module.graph.nodes
        report = GraphReport(
            name,
            ops=sum(node.op == "call_function" for node in nodes),
            parts=sum(isinstance(step, (Part, SizedOp)) for step in graph_plan.steps),
            fallbacks=graph_plan.fallbacks,
            inputs=tuple(
                f"{str(value.dtype).removeprefix('torch.')}{[str(s) for s in value.shape]}".replace(
                    "'", ""
                )
                for node in nodes
                if node.op == "placeholder"
                and isinstance(value := node.meta.get("val"), torch.Tensor)
            ),
            break_reason=self._break_reason,
        )
        if isinstance(compiled, PartitionedGraph):
            executables = compiled.graph_executables
        else:
            executables = (compiled,) if isinstance(compiled, GraphExecutable) else ()
        for observer in stack:
            observer.seen.append((report, executables))


class _ClientCompiler:
    """Compiles plans for the client of this process."""

    def __init__(self, options: CompileOptions, client: Client, *, stores: bool) -> None:
        self.platform = client.platform
        self._stores = stores
        self._options = options
        self._client = client
        self._family = Family()

    def compile(self, graph_plan: Plan, name: GraphName) -> capture.Compiled:
        """Return a `GraphExecutable`, or what runs several of them and eager ops in turn."""
        hints = capture.hinted_sizes()
        ahead = capture.versions_raised_before_calls(name.kind) if graph_plan.is_whole else ()
        executables: dict[Part | SizedOp, Callable[..., Any]] = {
            step: GraphExecutable(
                step.graph_module,
                name=name,
                options=self._options,
                client=self._client,
                bindings=hints,
                versions_ahead=ahead,
                dimensions=capture.dimensions,
                family=self._family if graph_plan.is_whole else None,
                saved=_saved(graph_plan, name) if graph_plan.is_whole else None,
                keeps_recipe=self._stores and graph_plan.is_whole,
            )
            for step in graph_plan.steps
            if isinstance(step, Part)
        }
        if graph_plan.is_whole:
            (executable,) = executables.values()
            return executable
        for step in graph_plan.steps:
            if isinstance(step, SizedOp):
                executables[step] = SizedExecutable(
                    step.node, name=name, options=self._options, client=self._client
                )
        family = self._family if name.kind == "backward" else None
        return PartitionedGraph(graph_plan, executables, family)


def _saved(graph_plan: Plan, name: GraphName) -> Saved | None:
    if name.kind != "forward":
        return None
    (output,) = [n for n in graph_plan.graph_module.graph.nodes if n.op == "output"]
    places = capture.saved_tensors(len(output.args[0]))
    return None if places is None else Saved(*places, capture.saved_tensors_are_seen)


def _unsupported(graph_plan: Plan) -> UnsupportedOpError:
    first, *others = graph_plan.fallbacks
    more = (
        f" (and {len(others)} more: {', '.join(sorted({o.op for o in others}))})" if others else ""
    )
    return UnsupportedOpError(
        f"{first.op} cannot be compiled{more}",
        where=f"{first.where}, node `{first.node}`",
        why=first.why,
        ways_out=(
            'fallback="eager" to run it in eager PyTorch between compiled parts',
            "tpu_compile.register_lowering to lower it yourself",
        ),
    )


def _check_devices(graph_module: fx.GraphModule) -> None:
    """Refuse graphs with inputs that are neither on the CPU nor on our own device."""
    for node in graph_module.graph.nodes:
        value = node.meta.get("example_value") if node.op == "placeholder" else None
        if isinstance(value, torch.Tensor) and not _is_ours(value.device):
            raise DeviceError(
                f"The input `{node.name}` is on the device {str(value.device)!r}",
                where=capture.function_name(graph_module)[1],
                why="the tpu backend takes CPU tensors, and those of tpu_compile.device",
                ways_out=(f"move it with {node.name}.cpu()",),
            )


def _is_ours(device: torch.device) -> bool:
    if device.type == "cpu":
        return True
    module = getattr(torch, "tpu", None)
    return device.type == "tpu" and getattr(module, "__name__", "").startswith("tpu_compile.")


def _warn_about_other_numbers(graph_module: fx.GraphModule) -> None:
    """Say of graphs within a backward graph that they draw numbers the forward pass did not."""
    for node in graph_module.graph.nodes:
        if any(subgraphs(node)) and draws_random_numbers(node):
            line = source_line(node)
            warnings.warn_explicit(
                f"The gradient of {node.target} ({line}) draws random numbers again, and not those "
                f"of its forward pass: PyTorch keeps no random state of graphs within graphs, with "
                f"any backend. Way out: draw the numbers outside and pass them in.",
                TpuCompileWarning,
                filename=line.file or __file__,
                lineno=line.line,
            )


def reset() -> None:
    """Drop every compiled program and all counters; functions compile anew when called.

    Programs in the persistent cache stay. Also resets Dynamo, whose graphs hold the programs.
    """
    torch._dynamo.reset()
    PROGRAMS.clear()
    HISTORY.clear()
    RECORDER.reset()
    forget_warnings()
