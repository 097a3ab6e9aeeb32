"""The competitors: each turns a module and its inputs into a call with nothing left to compile."""

from __future__ import annotations

import copy
import importlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch import nn
from torch._dynamo.backends.common import aot_autograd

from benchmarks.harness import TOLERANCE, Call, agreeing, first_line, interleave
from benchmarks.results import OURS, Measured, measured

Maker = Callable[[nn.Module, Sequence[torch.Tensor]], Call]

EVERYONE = (OURS, "eager", "inductor", "torch-xla", "jax.jit", "torch-xla2")
"""In the order in which they are made: Dynamo traces nothing more once torch-xla2 is imported."""


def eager(module: nn.Module, inputs: Sequence[torch.Tensor]) -> Call:
    """Plain PyTorch."""
    return lambda: module(*inputs)


def tpu_compile(module: nn.Module, inputs: Sequence[torch.Tensor]) -> Call:
    """Ours."""
    compiled = torch.compile(module, backend="tpu", fullgraph=True, options={"fallback": "error"})
    return lambda: compiled(*inputs)


def inductor(module: nn.Module, inputs: Sequence[torch.Tensor]) -> Call:
    """PyTorch's default compiler."""
    compiled = torch.compile(module, backend="inductor", fullgraph=True)
    return lambda: compiled(*inputs)


def aot_noop(module: nn.Module, inputs: Sequence[torch.Tensor]) -> Call:
    """Dynamo and AOTAutograd around a function that does nothing: the floor of any backend."""
    with torch.no_grad():
        expected = module(*inputs)
    result = list(expected) if isinstance(expected, tuple) else [expected]
    backend = aot_autograd(fw_compiler=lambda graph, _: make_boxed_func(lambda *_: result))
    compiled = torch.compile(module, backend=backend, fullgraph=True)
    return lambda: compiled(*inputs)


def torch_xla(module: nn.Module, inputs: Sequence[torch.Tensor]) -> Call:
    """PyTorch/XLA's backend `openxla` on its device, waiting for each result.

    Written from its documentation; no release of it installs beside this torch, so it has not run.
    """
    package = importlib.import_module("torch_xla")
    device = package.device()
    moved = copy.deepcopy(module).to(device)
    tensors = [tensor.to(device) for tensor in inputs]
    compiled = torch.compile(moved, backend="openxla", fullgraph=True)

    def call() -> object:
        result = compiled(*tensors)
        package.sync(wait=True)
        return result

    return call


def jax_jit(module: nn.Module, inputs: Sequence[torch.Tensor]) -> Call:
    """`jax.jit` of the function that torch-xla2 extracts from the module, on jax arrays.

    This is also torch-xla2 at its fastest: no torch tensor is touched at a call.
    """
    weights, function = extract(module)
    import jax

    arrays = as_jax(inputs)
    jitted = jax.jit(function)
    return lambda: jax.block_until_ready(jitted(weights, arrays))


def extract(module: nn.Module) -> tuple[dict[str, Any], Callable[..., Any]]:
    """Return the states of a module as jax arrays, and its forward pass as a function of them.

    torch-xla2 takes the states that are saved, and leaves out buffers that are not persistent.
    """
    package = import_torch_xla2()
    states, function = package.extract_jax(module)
    left = {name: buffer for name, buffer in module.named_buffers() if name not in states}
    return {
        **states,
        **{name: package.tensor.t2j(buffer) for name, buffer in left.items()},
    }, function


def as_jax(tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """Return the tensors as jax arrays."""
    import jax

    return tuple(jax.numpy.asarray(tensor.detach().numpy()) for tensor in tensors)


def torch_xla2(module: nn.Module, inputs: Sequence[torch.Tensor]) -> Call:
    """torch-xla2's own `compile` of the module, on its tensors."""
    package = import_torch_xla2()
    environment = package.default_env()
    # Outside: it does not copy a storage, which is how torch copies a buffer.
    own = copy.deepcopy(module)
    with environment:
        moved = own.to("jax")
        tensors = [tensor.to("jax") for tensor in inputs]
        jitted = package.compile(moved)

    def call() -> object:
        with environment:
            result = jitted(*tensors)
        results = result if isinstance(result, tuple) else (result,)
        return tuple(one.jax().block_until_ready() for one in results)

    return call


def import_torch_xla2() -> Any:
    """Import torch-xla2, after which Dynamo can trace nothing more in this process.

    It registers a device of its own, and Dynamo then asks torch for that device's streams.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        package = importlib.import_module("torch_xla2")
    if "jax" in vars(torch.Tensor):
        # It gives every tensor a method `jax`; transformers asks for one inside traced code, so
        # that its presence would make Dynamo trace everyone's functions again.
        del torch.Tensor.jax
    return package


PEERS: dict[str, Maker] = {
    "eager": eager,
    OURS: tpu_compile,
    "inductor": inductor,
    "aot no-op": aot_noop,
    "torch-xla": torch_xla,
    "jax.jit": jax_jit,
    "torch-xla2": torch_xla2,
}


@dataclass(frozen=True)
class Contest:
    """Calls that do the same work, and why there is none of some competitors."""

    calls: Mapping[str, Call]
    left_out: Mapping[str, str] = field(default_factory=dict)
    wrong: Mapping[str, str] = field(default_factory=dict)

    def timed(self, *, rounds: int, parts: int = 1, **more: Any) -> Measured:
        """Return the time of one of the `parts` equal parts of each call."""
        samples = interleave(self.calls, rounds=rounds, parts=parts)
        return measured(samples, left_out=self.left_out, wrong=self.wrong, **more)


def make_each(makers: Mapping[str, Callable[[], Call]]) -> tuple[dict[str, Call], dict[str, str]]:
    """Return the call that each maker makes, run once, and why others have none."""
    calls: dict[str, Call] = {}
    left_out: dict[str, str] = {}
    for name, make in makers.items():
        try:
            call = make()
            call()
        except ModuleNotFoundError as error:
            left_out[name] = f"{error.name} is not installed"
        except Exception as error:
            # Whoever cannot do the work is a line of the report, ours like any other.
            left_out[name] = first_line(error)
        else:
            calls[name] = call
    return calls, left_out


def contest(
    module: nn.Module,
    inputs: Sequence[torch.Tensor],
    names: Sequence[str] = EVERYONE,
    *,
    tolerance: float = TOLERANCE,
) -> Contest:
    """Return the calls of the named competitors, each checked against eager's result once."""
    makers = {name: lambda make=PEERS[name]: make(module, inputs) for name in names}
    calls, left_out = make_each(makers)
    right, wrong = agreeing(calls, module(*inputs), tolerance=tolerance)
    return Contest(right, left_out, wrong)
