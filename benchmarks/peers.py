"""The competitors: each turns a module and its inputs into a call with nothing left to compile."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch import nn
from torch._dynamo.backends.common import aot_autograd

Call = Callable[[], object]
Maker = Callable[[nn.Module, Sequence[torch.Tensor]], Call]


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


def jax_jit(module: nn.Module, inputs: Sequence[torch.Tensor]) -> Call:
    """`jax.jit` of the function that torch-xla2 extracts from the module, on jax arrays.

    This is also torch-xla2 at its fastest: no torch tensor is touched at a call.
    """
    import jax

    torch_xla2 = _import_torch_xla2()
    weights, function = torch_xla2.extract_jax(module)
    arrays = tuple(jax.numpy.asarray(tensor.detach().numpy()) for tensor in inputs)
    jitted = jax.jit(function)
    return lambda: jax.block_until_ready(jitted(weights, arrays))


def torch_xla2(module: nn.Module, inputs: Sequence[torch.Tensor]) -> Call:
    """torch-xla2's own `compile` of the module, on its tensors."""
    import copy

    package = _import_torch_xla2()
    environment = package.default_env()
    with environment:
        moved = copy.deepcopy(module).to("jax")
        tensors = [tensor.to("jax") for tensor in inputs]
        jitted = package.compile(moved)

    def call() -> object:
        with environment:
            result = jitted(*tensors)
        first = result[0] if isinstance(result, tuple) else result
        return first.jax().block_until_ready()

    call()
    return call


def _import_torch_xla2() -> Any:
    """Import torch-xla2, after which Dynamo can trace nothing more in this process.

    It registers a device of its own, and Dynamo then asks torch for that device's streams.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch_xla2
    if "jax" in vars(torch.Tensor):
        # It gives every tensor a method `jax`; transformers asks for one inside traced code, so
        # that its presence would make Dynamo trace everyone's functions again.
        del torch.Tensor.jax
    return torch_xla2


PEERS: dict[str, Maker] = {
    "eager": eager,
    "tpu_compile": tpu_compile,
    "inductor": inductor,
    "aot no-op": aot_noop,
    "jax.jit": jax_jit,
    "torch-xla2": torch_xla2,
}


def make_calls(
    module: nn.Module, inputs: Sequence[torch.Tensor], names: Sequence[str]
) -> tuple[dict[str, Call], dict[str, str]]:
    """Return the calls of the named peers, warmed up, and why others cannot take part.

    The ones that Dynamo traces must come before those that import torch-xla2.
    """
    calls: dict[str, Call] = {}
    left_out: dict[str, str] = {}
    for name in names:
        try:
            call = PEERS[name](module, inputs)
            call()
        except Exception as error:
            if name == "tpu_compile":
                raise
            # A peer that is not installed or cannot run this work is reported, not hidden.
            reason = str(error).strip() or repr(error)
            left_out[name] = f"{type(error).__name__}: {reason.splitlines()[0][:100]}"
        else:
            calls[name] = call
    return calls, left_out
