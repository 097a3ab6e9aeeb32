"""What a function would run, as StableHLO: `tpu_compile.lower`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from lowering import LoweredGraph, LoweringOptions, lower_graph
from lowering.bucketing.call import NoPaddingRuleError
from lowering.errors import LoweringError, UnsupportedOpError
from lowering.importer import PaddingPlan
from lowering.mlir import module_bytecode, portable_artifact
from lowering.sizes import Bindings, placeholder_symbols
from lowering.source import source_line
from tpu_compile.ahead.recording import (
    Made,
    RecordedCall,
    RecordedGraph,
    Recording,
    Tensor,
    record,
)
from tpu_compile.buckets import ExactBuckets, policy_of
from tpu_compile.errors import OptionError
from tpu_compile.history import GraphName
from tpu_compile.options import CompileOptions
from tpu_compile.partition import Fallback, Part
from tpu_compile.routing import Router
from tpu_compile.runtime.targets import parse_target

if TYPE_CHECKING:
    from tpu_compile.ahead.compiled import Compiled


@dataclass(eq=False)
class LoweredProgram:
    """One program: a graph, or a part of one, at fixed or bucketed sizes."""

    name: GraphName
    part: int
    """Which compiled part of its graph it is, from 0."""
    parts: int
    graph_module: fx.GraphModule
    lowered: LoweredGraph
    buckets: Mapping[str, int] = field(default_factory=dict)
    """What the dynamic sizes are padded to, by name."""
    exact_reason: str | None = None
    """Why its dynamic sizes are not padded; None where they are, or where there are none."""
    where: str = ""
    seconds: float = 0.0
    """How long its lowering took here."""

    @property
    def title(self) -> str:
        """What tells it apart for a reader, such as `Model.forward backward, part 1 of 2`."""
        sizes = ", ".join(f"{name}={size}" for name, size in self.buckets.items())
        part = f", part {self.part + 1} of {self.parts}" if self.parts > 1 else ""
        return f"{self.name}{part}" + (f", {sizes}" if sizes else "")

    @property
    def stablehlo(self) -> str:
        """The module's text, without locations: the same on every machine."""
        return self.lowered.text()

    @property
    def stablehlo_with_locations(self) -> str:
        """The module's text; each op says module path, ATen op, file and line."""
        return self.lowered.text(locations=True)

    @property
    def fx(self) -> str:
        """The functional ATen graph as readable code."""
        return str(self.graph_module.print_readable(print_output=False))

    def bytecode(self) -> bytes:
        """Return the module as MLIR bytecode, for tools of the same StableHLO version."""
        with self.lowered.module.context:
            return module_bytecode(self.lowered.module)

    def portable_artifact(self) -> bytes:
        """Return the module in StableHLO's versioned form, which later versions can read."""
        with self.lowered.module.context:
            return portable_artifact(self.lowered.module)


@dataclass(frozen=True)
class ProgramCall:
    """One run of a program, and the memory that it takes and gives."""

    program: LoweredProgram
    inputs: tuple[Tensor | None, ...]
    """By argument of the module; None for a constant of the graph, a random key, sizes."""
    outputs: tuple[Tensor | None, ...]
    """By result of the module."""


@dataclass(frozen=True)
class Lowered:
    """What one call of a function runs on a platform, lowered to StableHLO.

    A function is several programs where it trains (forward, backward, optimizer), where Dynamo
    breaks it, or where an op falls back to eager PyTorch.
    """

    platform: str
    programs: tuple[LoweredProgram, ...]
    """Each once, in the order of their first run."""
    calls: tuple[ProgramCall, ...]
    """Every run, in order."""
    graphs: tuple[RecordedGraph, ...]
    """The graph of each call of one, in order: also with what runs outside of the programs."""
    fallbacks: tuple[Fallback, ...]
    """Ops that run in eager PyTorch, each node once."""
    graph_breaks: tuple[str, ...]
    """Why Dynamo broke the function into several graphs."""
    options: CompileOptions
    captured: tuple[fx.GraphModule, ...]
    """Dynamo's own graphs, before AOTAutograd made functional ones of them."""
    seconds: float
    """How long capture and lowering took here."""
    _again: Callable[[str], Lowered]

    @property
    def stablehlo(self) -> str:
        """The text of the module; of several, one after the other, each under a comment."""
        if len(self.programs) == 1:
            return self.programs[0].stablehlo
        return "\n".join(_under_title(self.programs, [p.stablehlo for p in self.programs]))

    @property
    def fx(self) -> str:
        """The functional ATen graphs as readable code."""
        return "\n".join(program.fx for program in self.programs)

    def portable_artifact(self) -> bytes:
        """Return the module in StableHLO's versioned form, which later versions can read.

        Raises:
            OptionError: there are several modules; each of `programs` has one.
        """
        if len(self.programs) != 1:
            raise OptionError(
                f"The function is {len(self.programs)} programs, and an artifact holds one",
                ways_out=("[program.portable_artifact() for program in lowered.programs]",),
            )
        return self.programs[0].portable_artifact()

    def compile(
        self, target: str = "cpu", *, progress: Callable[[LoweredProgram], object] | None = None
    ) -> Compiled:
        """Compile every program for `target`, which need not be there; see `Compiled`.

        Args:
            target: `"cpu"`, a chip such as `"v6e"`, or one in a topology, such as `"v6e:2x2"`.
            progress: is given each program before it is compiled.

        Raises:
            UnknownTargetError: there is no such target.
            DeviceError: the target's compiler is not installed.
            OutOfMemoryError: a program alone does not fit the memory of the chip.
            CompilationError: the compiler refuses a program.
        """
        from tpu_compile.ahead.compiled import compile_lowered

        chosen = parse_target(target)
        return compile_lowered(self.on(chosen.platform), chosen, progress)

    def on(self, platform: str) -> Lowered:
        """Return the same call lowered for another platform, PJRT's `"cpu"` or `"tpu"`."""
        return self if platform == self.platform else self._again(platform)


def _under_title(programs: Sequence[LoweredProgram], texts: Sequence[str]) -> list[str]:
    count = len(programs)
    return [
        f"// program {number} of {count}: {program.title} ({program.where})\n{text}"
        for number, (program, text) in enumerate(zip(programs, texts, strict=True), 1)
    ]


def lower_made(
    make: Callable[[], Made],
    *,
    platform: str = "tpu",
    options: CompileOptions | None = None,
    dynamic: bool | None = None,
) -> Lowered:
    """Return what the function that `make` gives runs; see `recording.record`."""
    started = time.perf_counter()
    builder = _Builder()
    recording = record(
        make, platform=platform, options=options, dynamic=dynamic, prepare=builder.prepare
    )
    calls = [step for call in recording.calls for step in builder.steps(call, recording)]
    graphs = dict.fromkeys(call.graph for call in recording.calls)
    return Lowered(
        platform,
        tuple(dict.fromkeys(call.program for call in calls)),
        tuple(calls),
        tuple(call.graph for call in recording.calls),
        tuple(fallback for graph in graphs for fallback in graph.plan.fallbacks),
        tuple(
            dict.fromkeys(
                report.break_reason
                for report in recording.reports
                if report.break_reason and report.name.kind != "backward"
            )
        ),
        options or CompileOptions(),
        tuple(recording.captured),
        time.perf_counter() - started,
        lambda other: lower_made(make, platform=other, options=options, dynamic=dynamic),
    )


class _Builder:
    """Lowers the parts of recorded graphs, each once for the sizes of a call."""

    def __init__(self) -> None:
        self._routers: dict[Part, Router | str | None] = {}
        self._programs: dict[tuple[Part, Any], LoweredProgram] = {}

    def prepare(self, graph: RecordedGraph) -> None:
        """Ask the capture about dynamic sizes, and lower what has none: a rule may decline."""
        for part in _parts(graph):
            symbols = _symbols(part)
            if not symbols:
                self._program(graph, part, {})
            elif part not in self._routers:
                self._routers[part] = _router(graph, part, [expr for expr, _, _ in symbols])

    def steps(self, call: RecordedCall, recording: Recording) -> list[ProgramCall]:
        """Return the runs of programs that a call of a graph is."""
        graph = call.graph
        nodes = list(graph.plan.graph_module.graph.nodes)
        placeholders = [node for node in nodes if node.op == "placeholder"]
        (output,) = [node for node in nodes if node.op == "output"]
        known: dict[str, Tensor | None] = {
            item.name: tensor
            for item, tensor in zip(output.args[0], call.outputs, strict=True)
            if isinstance(item, fx.Node)
        }
        known |= {node.name: tensor for node, tensor in zip(placeholders, call.inputs, strict=True)}
        steps = []
        for part in _parts(graph):
            program = self._program(graph, part, call.bindings)
            signature = program.lowered.signature
            inputs = []
            for argument in signature.arguments:
                inputs.append(known.get(argument.node.name))
            outputs = []
            for result in signature.results:
                name = result.node.name
                if known.get(name) is None:
                    known[name] = recording.made(result.physical.shape, result.spec.dtype)
                outputs.append(known[name])
            steps.append(ProgramCall(program, tuple(inputs), tuple(outputs)))
        return steps

    def _program(self, graph: RecordedGraph, part: Part, bindings: Bindings) -> LoweredProgram:
        symbols = [expr for expr, _, _ in _symbols(part)]
        sizes = tuple([bindings[expr] for expr in symbols])
        found = self._programs.get((part, sizes))
        if found is None:
            started = time.perf_counter()
            found = self._lower(graph, part, dict(zip(symbols, sizes, strict=True)))
            found.seconds = time.perf_counter() - started
            self._programs[part, sizes] = found
        return found

    def _lower(self, graph: RecordedGraph, part: Part, bindings: Bindings) -> LoweredProgram:
        options = LoweringOptions(graph.platform, graph.options.resolved_precision())
        parts = _parts(graph)
        number = parts.index(part)
        where = _where(part) or graph.name.where
        module = part.graph_module
        router = self._routers.get(part)
        reason = router if isinstance(router, str) else None
        if isinstance(router, Router):
            sizes = tuple([int(size) for size in bindings.values()])
            chosen = router.buckets_for(sizes, {})[0]
            names = [dimension.name or "size" for dimension in router.dimensions]
            try:
                lowered = lower_graph(
                    module, options=options, padding=PaddingPlan(router.buckets(chosen))
                )
                buckets = dict(zip(names, chosen, strict=True))
                return LoweredProgram(
                    graph.name, number, len(parts), module, lowered, buckets, None, where
                )
            except NoPaddingRuleError as error:
                reason = f"{error.node.target} at {source_line(error.node)}: {error.why}"
            except (LoweringError, UnsupportedOpError) as error:
                reason = str(error)
        lowered = lower_graph(
            module, options=options, bindings=bindings, donate=graph.options.donate
        )
        return LoweredProgram(graph.name, number, len(parts), module, lowered, {}, reason, where)


def _parts(graph: RecordedGraph) -> list[Part]:
    return [step for step in graph.plan.steps if isinstance(step, Part)]


def _symbols(part: Part) -> list[Any]:
    nodes = part.graph_module.graph.nodes
    return list(placeholder_symbols([node for node in nodes if node.op == "placeholder"]))


def _router(graph: RecordedGraph, part: Part, symbols: Sequence[Any]) -> Router | str | None:
    """Return what chooses buckets; why there is none, where the policy would have wanted some."""
    policy = policy_of(graph.options.buckets, graph.options.max_padding)
    if isinstance(policy, ExactBuckets):
        return None
    placeholders = [n for n in part.graph_module.graph.nodes if n.op == "placeholder"]
    for expr, index, dim in _symbols(part):
        if dim is None and isinstance(placeholders[index].meta["val"], torch.SymFloat):
            return f"it takes the number `{expr}`, which is no size"
    return Router(part.graph_module, symbols, policy, graph.dimensions)


def _where(part: Part) -> str:
    for node in part.graph_module.graph.nodes:
        if node.op == "call_function":
            line = source_line(node)
            if line.file is not None:
                return str(line)
    return ""
