"""Both sides of a model compiled for a target, and what the compiler says of each."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from benchmarks.parity import jax_models, torch_models
from benchmarks.parity.sizes import (
    BYTES_TOLERANCE,
    CYCLES_TOLERANCE,
    FLOPS_TOLERANCE,
    SIZES,
)
from benchmarks.parity.twins import jax_side, torch_side
from tpu_compile import lower
from tpu_compile.ahead import hlo_text
from tpu_compile.ahead.compiled import compiler_for
from tpu_compile.runtime.targets import Target

# JAX's own default for float32 products.
OPTIONS = {"matmul_precision": "default", "fallback": "error"}


@dataclass(frozen=True)
class Side:
    """What the compiler says of one side's program."""

    flops: float
    bytes_accessed: float
    cycles: int
    temporaries: int
    aliased: int
    """Bytes of outputs that take the place of donated arguments."""
    hlo: str


@dataclass(frozen=True)
class Comparison:
    """One model's program on both sides, for one chip."""

    model: str
    kind: str
    target: str
    ours: Side
    jax: Side

    @property
    def flops_ratio(self) -> float:
        """Ours over JAX's."""
        return self.ours.flops / self.jax.flops

    @property
    def bytes_ratio(self) -> float:
        """Ours over JAX's."""
        return self.ours.bytes_accessed / self.jax.bytes_accessed

    @property
    def cycles_ratio(self) -> float:
        """Ours over JAX's."""
        return self.ours.cycles / self.jax.cycles

    @property
    def misses(self) -> tuple[str, ...]:
        """Which of the conditions are not met."""
        checks = {
            "flops": abs(self.flops_ratio - 1) <= FLOPS_TOLERANCE,
            "bytes": self.bytes_ratio <= 1 + BYTES_TOLERANCE,
            "cycles": self.cycles_ratio <= 1 + CYCLES_TOLERANCE,
        }
        return tuple(name for name, met in checks.items() if not met)


def compare(model: str, kind: str, target: Target) -> Comparison:
    """Return both sides of `model`, `"forward"` or `"training"`, compiled for `target`."""
    return Comparison(
        model, kind, str(target), ours(model, kind, target), jaxs(model, kind, target)
    )


@functools.cache
def _lowered(model: str, kind: str) -> Any:
    module, x, y = torch_side(model, SIZES[model])
    if kind == "forward":
        found = lower(torch_models.forward_step(module), x, compile_options=OPTIONS, dynamic=False)
    else:
        params = {name: value.detach() for name, value in module.named_parameters()}
        buffers = dict(module.named_buffers())
        step = torch_models.training_step(module)
        found = lower(step, params, buffers, x, y, compile_options=OPTIONS, dynamic=False)
    if len(found.calls) != 1:
        raise RuntimeError(f"{model} {kind} is {len(found.calls)} programs, not one")
    return found


def ours(model: str, kind: str, target: Target) -> Side:
    """Return our side."""
    compiled = _lowered(model, kind).compile(str(target))
    memory = compiled.programs[0].memory
    return Side(
        compiled.cost.flops,
        compiled.cost.bytes_accessed,
        compiled.cost.estimated_cycles,
        memory.temporaries,
        memory.aliased,
        compiled.hlo,
    )


def jaxs(model: str, kind: str, target: Target) -> Side:
    """Return JAX's side."""
    forward = jax_models.MODELS[model](SIZES[model])
    params, buffers, x, y = jax_side(*torch_side(model, SIZES[model]))
    make: Callable[..., Any] = jax_models.forward_step
    arguments = [params, buffers, x]
    if kind == "training":
        make = jax_models.training_step
        arguments.append(y)
    placed = SingleDeviceSharding(_device(target))
    shapes = jax.tree.map(
        lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=placed), arguments
    )
    compiled = make(forward).lower(*shapes).compile()
    cost, memory, text = compiled.cost_analysis(), compiled.memory_analysis(), compiled.as_text()
    return Side(
        cost["flops"],
        cost["bytes accessed"],
        hlo_text.parse(text).estimated_cycles,
        memory.temp_size_in_bytes,
        memory.alias_size_in_bytes,
        text,
    )


@functools.cache
def _device(target: Target) -> Any:
    # Opened first, so that JAX compiles with the very plugin that ours loaded.
    compiler_for(target)
    bounds = {"chips_per_host_bounds": (1, 1, 1)} if target.is_one_chip else {}
    return topologies.get_topology_desc(str(target), platform="tpu", **bounds).devices[0]


def versions(target: Target) -> tuple[str, str]:
    """Return the compiler of our side and of JAX's, each as that side names it."""
    return compiler_for(target).version, _device(target).client.platform_version
