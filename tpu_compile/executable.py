"""A compiled graph: one program where its sizes are fixed, else one for each bucket or each size.

Dynamic sizes are padded to buckets where every op they meet has a padding rule. A graph with an op
that has none compiles at exact shapes, one program for each binding of its symbols.
"""

from __future__ import annotations

import contextvars
import functools
import threading
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import fx

from lowering import LoweredGraph, LoweringOptions, lower_graph
from lowering.bucketing.call import NoPaddingRuleError
from lowering.errors import LoweringError, UnsupportedOpError
from lowering.importer import PaddingPlan
from lowering.signature import read_signature
from lowering.sizes import Bindings, Sizes, bind, expression, free_symbols, placeholder_symbols
from lowering.source import source_line
from lowering.subgraphs import draws_random_numbers
from tpu_compile.background import BACKGROUND, Awaited, run_eagerly
from tpu_compile.buckets import Dimension, ExactBuckets, policy_of
from tpu_compile.donation import Donation, donations, why_none
from tpu_compile.errors import TpuCompileError, TpuCompileWarning
from tpu_compile.history import GraphName
from tpu_compile.interface import Interface
from tpu_compile.loading import Loaded, load
from tpu_compile.options import CompileOptions
from tpu_compile.padded_program import PaddedProgram
from tpu_compile.program import Program, output_of
from tpu_compile.recipes import Recipe
from tpu_compile.routing import Router
from tpu_compile.runtime import pjrt
from tpu_compile.saved_tensors import Call, Family, Saved
from tpu_compile.statistics import RECORDER

Dimensions = Callable[[Sequence[sympy.Expr]], list[Dimension]]

Collected = dict["GraphExecutable", list[tuple[int | float, ...]]]

COLLECTED: contextvars.ContextVar[Collected | None] = contextvars.ContextVar(
    "collected", default=None
)
"""While set, calls compute nothing: they note here which sizes each graph is called with."""


def _nameless(symbols: Sequence[sympy.Expr]) -> list[Dimension]:
    return [Dimension(None) for _ in symbols]


@dataclass(frozen=True)
class PaddingReport:
    """What of a graph is padded, for `explain`."""

    dimensions: tuple[Dimension, ...]
    buckets: tuple[tuple[int, ...], ...]
    """One tuple a program, in the order of the dimensions."""
    exact_reason: str | None


class GraphExecutable:
    """A compiled graph: takes the placeholders' values in order, gives back the outputs.

    Raises at construction, for sizes known then, what lowering and compiling raise.
    """

    def __init__(
        self,
        graph_module: fx.GraphModule,
        *,
        name: GraphName,
        options: CompileOptions,
        client: pjrt.Client,
        bindings: Bindings | None = None,
        versions_ahead: Collection[int] = (),
        dimensions: Dimensions = _nameless,
        family: Family | None = None,
        saved: Saved | None = None,
        keeps_recipe: bool = False,
    ) -> None:
        """Compile `graph_module` for the sizes known now.

        Args:
            graph_module: a functional graph.
            name: what records and errors call it.
            options: the options of `torch.compile`.
            client: where it runs.
            bindings: the sizes known now.
            versions_ahead: the placeholders whose version counters the caller raises by one before
                each call.
            dimensions: tells name and range of symbols, for the bucket policy.
            family: what forward and backward share.
            saved: which outputs are for the backward alone.
            keeps_recipe: have `recipe` tell how to make the program again.
        """
        self._keeps_recipe = keeps_recipe
        self.recipe: Recipe | None = None
        """What makes the program again, of a graph of fixed sizes; None if it was not asked for."""
        self.donations: tuple[Donation, ...] = ()
        """What becomes of the arrays of mutated inputs, in the program lowered last."""
        self._versions_ahead = frozenset(versions_ahead)
        self._graph_module = graph_module
        self._name = name
        self._options = options
        self._precision = options.resolved_precision()
        self._client = client
        self._family = Family() if family is None else family
        self._is_async = options.async_compile
        # Tensors that a forward saves stay padded only if its program is there when the backward
        # is lowered.
        self._saved = None if self._is_async else saved
        if name.kind == "backward":
            self._family.backward = self
        nodes = list(graph_module.graph.nodes)
        self._placeholders = placeholders = [node for node in nodes if node.op == "placeholder"]
        (self._output,) = [node for node in nodes if node.op == "output"]
        self._left_padded = self._family.layouts if name.kind == "backward" else {}
        self._symbols = placeholder_symbols(placeholders, skip=self._left_padded.keys())
        self._exprs = tuple([expr for expr, _, _ in self._symbols])
        self._programs: dict[tuple[Any, ...], Program | Awaited] = {}
        self._awaited: dict[tuple[int, ...], Future[PaddedProgram]] = {}
        self._padded: dict[tuple[int, ...], PaddedProgram] = {}
        self._lock = threading.Lock()
        self._being_built: dict[tuple[int, ...], threading.Lock] = {}
        self._only: Program | Awaited | None = None
        self.exact_reason: str | None = None
        """Why a graph with dynamic sizes runs at exact shapes; None if it does not."""
        self._router: Router | None = None
        # On a TPU a compile takes minutes, in which calls can go on in the larger program.
        self._compiles_in_background = client.platform != "cpu"
        if not self._symbols:
            self._only = self._build({})
            return
        self._keeps_recipe = False
        self._router = self._make_router(placeholders, dimensions)
        if bindings is not None and all(expr in bindings for expr, _, _ in self._symbols):
            sizes = tuple([bindings[expr] for expr in self._exprs])
            if self._router is None or self._prepare(_whole(sizes)) is None:
                self._programs[sizes] = self._build(bindings)

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        """Run the program for these arguments' sizes, compiling it if none fits."""
        collected = COLLECTED.get()
        if collected is not None:
            return self._collect(collected, args)
        if self._only is not None:
            return self._only(args)
        bindings = bind(self._symbols, args)
        sizes = tuple(bindings.values())
        # The size of a ragged dim of a nested tensor is a name for its offsets and no number.
        if self._router is not None and not any(isinstance(s, torch.SymInt) for s in sizes):
            outputs = self._run_padded(args, _whole(sizes))
            if outputs is not None:
                return outputs
        if self._left_padded:
            args = self._family.without_padding(args, bindings)
        return self._exact(sizes, bindings)(args)

    def _exact(self, sizes: tuple[int | float, ...], bindings: Bindings) -> Program | Awaited:
        """Return the program for exactly these sizes, compiled if there is none."""
        program = self._programs.get(sizes)
        if program is None:
            with self._lock:
                program = self._programs.get(sizes) or self._build(bindings)
                self._programs[sizes] = program
        return program

    @property
    def padding(self) -> PaddingReport:
        """What is padded to what, now."""
        router = self._router
        return PaddingReport(
            () if router is None else tuple(router.dimensions),
            tuple(sorted(self._padded)),
            self.exact_reason,
        )

    # --- ahead of calls -------------------------------------------------------------------------

    def _collect(self, collected: Collected, args: Sequence[Any]) -> list[Any]:
        """Note what a call of these sizes needs, and return zeros in place of the outputs."""
        bindings = bind(self._symbols, args)
        collected.setdefault(self, []).append(tuple(bindings.values()))
        signature = read_signature(self._graph_module, Sizes(bindings))
        zeros = [
            torch.zeros(result.physical.shape, dtype=result.physical.dtype)
            for result in signature.results
        ]
        return [output_of(output, zeros, args) for output in signature.outputs]

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """Name and range of each size that is padded."""
        return () if self._router is None else tuple(self._router.dimensions)

    def programs_for(
        self, sizes: tuple[int | float, ...], named: Mapping[str, Sequence[int]]
    ) -> list[Callable[[], object]]:
        """Return what compiles the programs for a call of `sizes`, and its backward's.

        `named` has more sizes for some dimensions; all combinations are compiled.
        """
        if self._only is not None:
            return []
        router = self._router
        if router is None:
            bindings = dict(zip(self._exprs, sizes, strict=True))
            return [lambda: self._exact(sizes, bindings)]
        buckets = router.buckets_for(_whole(sizes), named)
        jobs: list[Callable[[], object]] = [
            functools.partial(self._ready, chosen) for chosen in buckets
        ]
        backward = self._family.backward
        if backward is not None and backward is not self:
            jobs += [functools.partial(backward.ready_after, self, chosen) for chosen in buckets]
        return jobs

    def _ready(self, chosen: tuple[int, ...]) -> None:
        router = self._router
        if router is None:
            return
        try:
            self._have(router, chosen)
        except NoPaddingRuleError as error:
            self._become_exact(_reason(error))

    def ready_after(self, forward: GraphExecutable, chosen: tuple[int, ...]) -> None:
        """Compile the backward program for the sizes `chosen` of its forward."""
        if forward._router is None or self._router is None:
            return
        mine = self._router.chosen(forward._router.buckets(chosen))
        if mine is not None:
            self._ready(mine)

    # --- padded ---------------------------------------------------------------------------------

    def _make_router(
        self, placeholders: Sequence[fx.Node], dimensions: Dimensions
    ) -> Router | None:
        policy = policy_of(self._options.buckets, self._options.max_padding)
        if isinstance(policy, ExactBuckets):
            return None
        for expr, index, dim in self._symbols:
            if dim is None and isinstance(placeholders[index].meta["val"], torch.SymFloat):
                self._become_exact(f"it takes the number `{expr}`, which is no size")
                return None
        return Router(self._graph_module, self._exprs, policy, dimensions)

    def _become_exact(self, why: str) -> None:
        self.exact_reason = why
        self._router = None
        RECORDER.count("exact_graphs")

    def _run_padded(self, args: Sequence[Any], sizes: tuple[int, ...]) -> list[Any] | None:
        """Return the outputs; None if the graph turns out to need exact shapes."""
        bindings = dict(zip(self._exprs, sizes, strict=True))
        left = self._family.buckets_of(args, bindings) if self._left_padded else None
        if left is not None and self._router is not None and self._router.chosen(left) is None:
            # This graph has sizes that the forward had not: it chooses buckets of its own.
            args, left = self._family.without_padding(args, bindings), None
        prepared = self._prepare(sizes, left)
        if prepared is None:
            return None
        program, router, chosen = prepared
        if program is None:
            return run_eagerly(self._graph_module, args)
        keep = self._saved is not None and not self._saved.are_seen()
        started = time.perf_counter()
        try:
            outputs = program.run(args, sizes, keep=keep)
        except NoPaddingRuleError as error:
            self._become_exact(_reason(error))
            return None
        if program.kept:
            call = Call(bindings, router.buckets(chosen)) if keep else None
            self._family.leave([outputs[position] for position in program.kept], call)
        router.ran(sizes, chosen, time.perf_counter() - started)
        return outputs

    def _prepare(
        self, sizes: tuple[int, ...], buckets: Mapping[sympy.Expr, int] | None = None
    ) -> tuple[PaddedProgram | None, Router, tuple[int, ...]] | None:
        """Return the program for a call of these sizes; None if it must be an exact one.

        The program itself is None while it is compiled in the background.

        `buckets` are those in which the forward ran, whose padded tensors this backward takes.
        """
        router = self._router
        if router is None:
            return None
        chosen, tighter = router.chosen(buckets), None
        if chosen is None:
            choice = router.choose(sizes)
            chosen, tighter = choice.sizes, choice.tighter
        if tighter is not None:
            if self._compiles_in_background:
                BACKGROUND.submit(functools.partial(self._have_ahead, router, tighter))
            else:
                chosen = tighter
        try:
            if self._is_async:
                return self._have_soon(router, chosen), router, chosen
            return self._have(router, chosen), router, chosen
        except NoPaddingRuleError as error:
            self._become_exact(_reason(error))
            return None

    def _have(self, router: Router, chosen: tuple[int, ...]) -> PaddedProgram:
        """Return the program that runs in the sizes `chosen`, compiled if there is none."""
        program = self._padded.get(chosen)
        if program is None:
            with self._lock:
                lock = self._being_built.setdefault(chosen, threading.Lock())
            with lock:
                program = self._padded.get(chosen)
                if program is None:
                    awaited = self._awaited.get(chosen)
                    if awaited is None:
                        program = self._lower_padded(router, chosen)()
                    else:
                        program = awaited.result()
                self._padded[chosen] = program
        return program

    def _have_soon(self, router: Router, chosen: tuple[int, ...]) -> PaddedProgram | None:
        """Return the program, or have it compiled in the background and return None until then."""
        program = self._padded.get(chosen)
        if program is not None:
            return program
        with self._lock:
            awaited = self._awaited.get(chosen)
            if awaited is None:
                if self._draws_random_numbers():
                    awaited = Future()
                    awaited.set_result(self._lower_padded(router, chosen)())
                else:
                    awaited = BACKGROUND.submit(self._lower_padded(router, chosen))
                self._awaited[chosen] = awaited
        if not awaited.done():
            return None
        program = self._padded[chosen] = awaited.result()
        return program

    def _draws_random_numbers(self) -> bool:
        """Whether eager PyTorch would give other numbers than the program."""
        return any(draws_random_numbers(node) for node in self._graph_module.graph.nodes)

    def _have_ahead(self, router: Router, tighter: tuple[int, ...]) -> None:
        """Compile a program that no call waits for; calls go on without it if that fails."""
        try:
            self._have(router, tighter)
        except (NoPaddingRuleError, TpuCompileError) as error:
            warnings.warn(
                f"{self._name} at {self._name.where} could not be compiled for the tighter sizes "
                f"{tighter}, and goes on in larger ones: {error}",
                TpuCompileWarning,
                stacklevel=1,
            )

    def _lower_padded(self, router: Router, chosen: tuple[int, ...]) -> Callable[[], PaddedProgram]:
        """Lower the graph for the sizes `chosen`, and return what compiles the module."""
        started = time.perf_counter()
        client = self._client
        plan = PaddingPlan(router.buckets(chosen), self._left_padded)
        none = self._no_donation() or "its sizes change, so its array is another at each call"
        try:
            lowered = lower_graph(
                self._graph_module,
                options=LoweringOptions(client.platform, self._precision),
                padding=plan,
            )
        except (LoweringError, UnsupportedOpError) as error:
            # The graph may well do at exact shapes; if not, that says so better.
            raise NoPaddingRuleError(self._output, str(error)) from error
        kept = self._kept_outputs(lowered)
        self.donations = donations(lowered.signature, self._placeholders, none)

        def compile_it() -> PaddedProgram:
            interface, loaded = self._loaded(lowered, started)
            router.chooser.compiled(chosen, 0.0 if loaded is None else loaded.seconds)
            return PaddedProgram(
                lowered,
                interface,
                client,
                None if loaded is None else loaded.executable,
                self._name,
                self._versions_ahead,
                graph_module=self._graph_module,
                symbols=tuple(plan.buckets),
                kept=kept,
                poisons=self._options.poison_padding,
            )

        return compile_it

    def _kept_outputs(self, lowered: LoweredGraph) -> frozenset[int]:
        """Return the saved tensors that stay padded, and tell the backward how they lie.

        Only those whose symbols the backward is told by number: it cannot read them from a shape.
        """
        if self._saved is None or lowered.padding is None:
            return frozenset()
        items: list[Any] = list(self._output.args[0])
        told = {
            expression(item.meta["val"])
            for item in items
            if isinstance(item, fx.Node) and isinstance(item.meta.get("val"), torch.SymInt)
        }
        by_node = {
            result.node: layout
            for result, layout in zip(
                lowered.signature.results, lowered.padding.results, strict=True
            )
        }
        kept = set()
        for position in range(self._saved.first, self._saved.first + self._saved.count):
            layout = by_node.get(items[position])
            if layout is None or not layout.is_padded:
                continue
            atoms = [atom.size for dim in layout.dims for atom in dim if not atom.is_static]
            if told >= {symbol for size in atoms for symbol in free_symbols(size)}:
                kept.add(position)
                placeholder = self._saved.placeholder + position - self._saved.first
                self._family.layouts[placeholder] = tuple(
                    [tuple([atom.size for atom in dim]) for dim in layout.dims]
                )
        return frozenset(kept)

    # --- programs -------------------------------------------------------------------------------

    def _build(self, bindings: Bindings) -> Program | Awaited:
        started = time.perf_counter()
        client = self._client
        none = self._no_donation()
        lowered = lower_graph(
            self._graph_module,
            options=LoweringOptions(client.platform, self._precision),
            bindings=bindings,
            donate=none is None,
        )
        self.donations = donations(lowered.signature, self._placeholders, none)
        if self._keeps_recipe:
            interface = Interface.of(lowered.signature, self._graph_module)
            self.recipe = Recipe.of(
                lowered.text() if interface.results else None,
                interface,
                self._name,
                self._options,
                self._versions_ahead,
                client.platform,
            )

        def compile_it() -> Program:
            interface, loaded = self._loaded(lowered, started)
            executable = None if loaded is None else loaded.executable
            return Program(interface, client, executable, self._name, self._versions_ahead)

        if self._is_async and not lowered.signature.uses_rng and lowered.signature.results:
            return Awaited(compile_it, self._graph_module)
        return compile_it()

    def _no_donation(self) -> str | None:
        """Return why this graph donates nothing; None if it may."""
        nodes = self._graph_module.graph.find_nodes(
            op="call_function", target=torch.ops.aten.copy_.default
        )
        return why_none(
            [node.args[0] for node in nodes],
            wanted=self._options.donate,
            aliases_host_memory=self._client.aliases_host_memory,
        )

    def _loaded(self, lowered: LoweredGraph, started: float) -> tuple[Interface, Loaded | None]:
        """Return how to call a module lowered since `started`, and its program.

        None where it has no results, so that there is nothing to run.
        """
        interface = Interface.of(lowered.signature, self._graph_module)
        if not interface.results:
            return interface, None
        return interface, load(lowered, interface, started, self._name, self._options, self._client)


def _whole(sizes: Sequence[int | float]) -> tuple[int, ...]:
    """Return the sizes of a graph that takes no fractions."""
    return tuple([int(size) for size in sizes])


def _reason(error: NoPaddingRuleError) -> str:
    return f"{error.node.target} at {source_line(error.node)}: {error.why}"
