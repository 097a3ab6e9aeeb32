"""AOTAutograd around our compiler: functional forward, backward and inference graphs.

The only module that calls torch's private capture machinery: a new torch release is this file's
work. Decompositions are `lowering.decompositions`; what becomes of a graph is the caller's.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import sympy
import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import ShortenTraceback
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext

import lowering
from lowering.decompositions import decomposition_table
from lowering.source import source_line
from tpu_compile import torch_cache
from tpu_compile.buckets import Dimension
from tpu_compile.errors import TpuCompileError
from tpu_compile.options import CompileOptions

# Frames that are never the user's: torch, this project, and the decorators between them.
_INTERNAL_FILES = (
    *(
        os.path.dirname(str(file)) + os.sep
        for file in (torch.__file__, lowering.__file__, __file__)
    ),
    contextlib.__file__,
    "<",
)

Compiled = Callable[[Sequence[Any]], Any]
CompileGraph = Callable[[fx.GraphModule, str], Compiled]


def compile_captured(
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Any],
    compile_graph: CompileGraph,
    stored: tuple[str, CompileOptions] | None = None,
) -> Callable[..., Any]:
    """Return the callable for a Dynamo graph.

    Mutations of inputs stay in the graphs as final `copy_` nodes, so that the new values are
    computed with everything else; aliases of inputs among the outputs are AOTAutograd's to rebuild.

    Args:
        graph_module: Dynamo's graph.
        example_inputs: its inputs, as Dynamo gives them.
        compile_graph: takes a functional graph and `"forward"`, `"backward"` or `"inference"`;
            gives a callable on the list of its inputs.
        stored: what the result depends on besides the graph, and the options, to let torch's
            caches keep it; None keeps it out of them.
    """

    def compiler(kind: str) -> Callable[..., Any]:
        def compile_one(graph: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
            compiled = compile_graph(graph, kind)
            return compiled if stored is not None else _boxed(compiled)

        return compile_one if stored is None else torch_cache.storing(compile_one)

    backend = aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        decompositions=decomposition_table(),
        partition_fn=functools.partial(min_cut_rematerialization_partition, compiler="inductor"),
        keep_inference_input_mutations=True,
    )
    with (
        contextlib.nullcontext() if stored is None else torch_cache.joined(*stored, example_inputs)
    ):
        return backend(graph_module, list(example_inputs))


def _boxed(compiled: Compiled) -> Callable[..., Any]:
    """Mark `compiled` as taking its inputs in one list, which AOTAutograd then lets go of."""
    # An object of its own to hang the mark on, which costs a call no Python frame.
    call = functools.partial(compiled)
    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def function_name(graph_module: fx.GraphModule) -> tuple[str, str]:
    """Return the name and the `file:line` of the user's function behind a Dynamo graph.

    Modules made of torch's own leave no line of the user's; then it is the line of the call.
    """
    operations = [node for node in graph_module.graph.nodes if node.op.startswith("call_")]
    for node in operations:
        if node.meta.get("stack_trace"):
            line = source_line(node)
            return _qualified(line.function or "function", node), str(line)
    for node in operations:
        if node.meta.get("nn_module_stack"):
            return _qualified("forward", node), _line_of_call()
    return "function", _line_of_call()


def _line_of_call() -> str:
    """Return the innermost line on this thread's stack that is neither torch's nor ours."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_INTERNAL_FILES):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return "unknown line"


def _qualified(function: str, node: fx.Node) -> str:
    """Return `Model.forward` for the forward of a module, whose own name says nothing."""
    stack = node.meta.get("nn_module_stack")
    if function != "forward" or not stack:
        return function
    kind = next(iter(stack.values()))[1]
    name = kind if isinstance(kind, str) else kind.__name__
    return f"{name.rpartition('.')[2]}.forward"


def break_reason(graph_module: fx.GraphModule) -> str | None:
    """Return why Dynamo ended this graph before the function did; None if it did not."""
    reason = getattr(graph_module, "compile_subgraph_reason", None)
    if reason is None or not reason.graph_break:
        return None
    frame = reason.user_stack[-1] if reason.user_stack else None
    where = f" ({frame.filename}:{frame.lineno})" if frame is not None else ""
    return f"{reason.reason}{where}"


def versions_raised_before_calls(kind: str) -> frozenset[int]:
    """Return the inputs of the graph being compiled whose version AOTAutograd raises at a call.

    It does so before the call, for inputs that the graph itself writes to.
    """
    context = TracingContext.try_get()
    if kind == "backward" or context is None or context.fw_metadata is None:
        return frozenset()
    return frozenset(context.fw_metadata.mutated_graph_handled_indices_seen_by_autograd)


def saved_tensors(placeholders: int) -> tuple[int, int, int] | None:
    """Return which outputs of the forward graph being compiled are for its backward alone.

    As (position of the first among the outputs, how many, position of the first among the
    backward's placeholders); None where torch does not say.
    """
    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    if metadata is None or metadata.num_symints_saved_for_bw is None:
        return None
    if getattr(metadata, "num_opaque_objects_saved_for_bw", 0):
        return None
    outputs = range(placeholders)[metadata.tensors_saved_for_backwards_slice]
    return outputs.start, len(outputs), metadata.num_symints_saved_for_bw


def saved_tensors_are_seen() -> bool:
    """Whether the user's hooks, or compiled autograd, look at the tensors saved for backward."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return hooks is not None or torch._dynamo.compiled_autograd.compiled_autograd_enabled


def _shape_env() -> Any:
    """Return the ShapeEnv of the capture in progress; None outside of one."""
    context = TracingContext.try_get()
    return context.fake_mode.shape_env if context is not None and context.fake_mode else None


def hinted_sizes() -> dict[Any, int | float]:
    """Return the sizes of the call that caused the capture, by symbol; empty for a static graph."""
    shape_env = _shape_env()
    if shape_env is None:
        return {}
    hints: dict[Any, int | float] = {}
    for symbol, hint in _hints(shape_env).items():
        if isinstance(hint, int) or getattr(hint, "is_Integer", False):
            hints[symbol] = int(hint)
        elif isinstance(hint, float) or getattr(hint, "is_Float", False):
            hints[symbol] = float(hint)
    return hints


def _hints(shape_env: Any) -> dict[Any, Any]:
    """Return the backed symbols' hints; the attribute was renamed across torch releases."""
    for name in ("backed_var_to_val", "var_to_val"):
        found = getattr(shape_env, name, None)
        if found is not None:
            return dict(found)
    return {}


def dimensions(symbols: Sequence[sympy.Expr]) -> list[Dimension]:
    """Return name, minimum and maximum of symbolic sizes of the graph being compiled, in order.

    A name is the user's (of a `ShapeVar`, or `shape_id` of `mark_unbacked`), else where Dynamo
    read the size first, such as `x.size(1)` or `self.cache.size(0)`; that of a composite
    expression is made of those of its symbols. The range is what guards and declarations such as
    `mark_dynamic(min=2, max=64)` leave.
    """
    shape_env = _shape_env()
    if shape_env is None:
        return [Dimension(str(expr)) for expr in symbols]
    names = {**_sources(shape_env), **_declared_names(shape_env)}
    found = []
    for expr in symbols:
        renamed = {s: sympy.Symbol(names[s]) for s in expr.free_symbols if s in names}
        bounds = shape_env.bound_sympy(expr)
        minimum, maximum = _finite(bounds.lower), _finite(bounds.upper)
        found.append(Dimension(str(expr.xreplace(renamed)), max(minimum or 0, 0), maximum))
    return found


def _finite(bound: Any) -> int | None:
    # Some guards compare with sys.maxsize, which is torch's way to say that there is no bound.
    return int(bound) if bound.is_finite and abs(bound) < 2**62 else None


def _declared_names(shape_env: Any) -> dict[Any, str]:
    """Return the names that users gave to symbols."""
    declared: dict[Any, str] = {}
    # A ShapeVar named "seq" is the symbol `seq#<number>`; one without a name is `anon#<number>`.
    for variable, expr in getattr(shape_env, "_spec_symbol_to_compile_symbol", {}).items():
        name = str(variable).rpartition("#")[0]
        if name != "anon":
            declared.setdefault(shape_env.replace(expr), name)
    for name, expr in getattr(shape_env, "_shape_id_to_unbacked_symbol", {}).items():
        declared.setdefault(shape_env.replace(expr), str(name))
    return declared


def _sources(shape_env: Any) -> dict[Any, str]:
    """Return where each symbol was read first, as a Python expression of the user's names."""
    found = {
        symbol: _readable(sources[0].name)
        for symbol, sources in shape_env.var_to_sources.items()
        if sources
    }
    # Unbacked symbols have no source of their own, only the inputs that hold them do.
    for tracked in shape_env.tracked_fakes or ():
        name, value = tracked.source.name, tracked.fake
        if isinstance(value, torch.SymInt):
            found.setdefault(value.node.expr, _readable(name))
        elif isinstance(value, torch.Tensor):
            for dim, size in enumerate(value.shape):
                if isinstance(size, torch.SymInt):
                    found.setdefault(size.node.expr, _readable(f"{name}.size()[{dim}]"))
    return found


def _readable(source: str) -> str:
    """Return `x.size(0)` for Dynamo's `L['x'].size()[0]`."""
    local = re.sub(r"\b[LG]\['(\w+)'\]", r"\1", source)
    return re.sub(r"\.size\(\)\[(\d+)\]$", r".size(\1)", local)


def raise_through_dynamo(error: TpuCompileError) -> TpuCompileError:
    """Return `error` as one that Dynamo hands to the user unwrapped, with its class kept.

    Dynamo wraps a backend's exception in BackendCompilerFailed unless it is one of its own kind.
    """
    if isinstance(error, ShortenTraceback):
        return error
    own: Any = type(error)
    kind = _dynamo_class(own)
    shown = kind.__new__(kind)
    shown.__dict__.update(error.__dict__)
    shown.args = error.args
    shown.first_useful_frame = None
    return shown


@functools.cache
def _dynamo_class(kind: Any) -> Any:
    name, module = kind.__name__, kind.__module__
    return type(name, (kind, ShortenTraceback), {"__module__": module})


def is_strided(value: Any) -> bool:
    """Whether a graph input is an ordinary dense tensor (or no tensor)."""
    return not isinstance(value, torch.Tensor) or value.layout is torch.strided
