"""How long it takes to turn a captured graph into StableHLO, beside JAX's own lowering.

Both sides are given the same 3,000 operations, already captured (an FX graph, a jaxpr), so that
nothing but building the module is timed. Neither side compiles it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from benchmarks.harness import interleave
from benchmarks.registry import Case, Settings, Suite
from benchmarks.results import OURS, Measured, measured
from lowering import lower_graph
from lowering.decompositions import decomposition_table

OPERATIONS = 3000
WIDTH = 32


def _block(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return ten operations of the kinds that models are made of."""
    h = x @ w
    h = h + b
    h = torch.tanh(h)
    mean = h.mean(-1, keepdim=True)
    h = h - mean
    h = h * 0.5
    h = h.reshape(WIDTH * WIDTH).reshape(WIDTH, WIDTH)
    h = h.transpose(0, 1)
    return torch.maximum(h, x)


def captured(operations: int) -> fx.GraphModule:
    """Return a functional ATen graph of about `operations` operations."""

    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        for _ in range(operations // 10):
            x = _block(x, w, b)
        return x

    inputs = (torch.ones(WIDTH, WIDTH), torch.ones(WIDTH, WIDTH), torch.ones(WIDTH))
    return make_fx(function, decomposition_table=decomposition_table(), tracing_mode="fake")(
        *inputs
    )


def _jax_lowering(operations: int) -> tuple[Callable[[], object], int]:
    """Return JAX's lowering of the same operations, and how many its jaxpr has."""
    import jax
    import jax.numpy as jnp

    def function(x, w, b):  # type: ignore[no-untyped-def]
        for _ in range(operations // 10):
            h = jnp.tanh(x @ w + b)
            h = (h - h.mean(-1, keepdims=True)) * 0.5
            h = h.reshape(WIDTH * WIDTH).reshape(WIDTH, WIDTH)
            x = jnp.maximum(h.T, x)
        return x

    ones = jnp.ones((WIDTH, WIDTH))
    traced = jax.jit(function).trace(ones, ones, jnp.ones(WIDTH))

    def lower() -> object:
        # JAX keeps what it has lowered.
        jax.clear_caches()
        return traced.lower()

    return lower, len(traced.jaxpr.eqns)


def _speed(settings: Settings) -> Measured:
    operations = OPERATIONS // 10 if settings.quick else OPERATIONS
    graph = captured(operations)
    counts = {OURS: sum(node.op == "call_function" for node in graph.graph.nodes)}
    calls: dict[str, Callable[[], object]] = {OURS: lambda: lower_graph(graph)}
    left_out = {}
    try:
        calls["jax.jit"], counts["jax.jit"] = _jax_lowering(operations)
    except ModuleNotFoundError as error:
        left_out["jax.jit"] = f"{error.name} is not installed"
    samples = interleave(calls, rounds=settings.rounds_or(11))
    per_op = {name: [s / counts[name] for s in values] for name, values in samples.items()}
    facts = {f"operations of {name}": f"{count:,}" for name, count in counts.items()}
    return measured(per_op, left_out=left_out, facts=facts)


SUITE = Suite(
    "lowering",
    (Case("per-operation", "a captured graph to StableHLO, time of one operation", _speed),),
)
