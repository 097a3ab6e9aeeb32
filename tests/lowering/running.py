"""Runs one function through decomposition, lowering and the CPU client, without Dynamo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from lowering import LoweredGraph, LoweringOptions, lower_graph
from lowering.decompositions import decomposition_table
from lowering.mlir import module_bytecode
from lowering.signature import FromArgument, FromResult, Output
from tpu_compile.runtime import pjrt

_client: list[pjrt.Client] = []


def client() -> pjrt.Client:
    """Return the CPU client that the lowering tests share."""
    if not _client:
        _client.append(pjrt.open_client("cpu"))
    return _client[0]


def trace(function: Callable[..., Any], *args: Any, decompose: bool = True) -> fx.GraphModule:
    """Return the functional ATen graph of `function`; with its decompositions applied if asked."""
    table = decomposition_table() if decompose else {}
    flat_args, spec = pytree.tree_flatten(args)

    def flat(*leaves: Any) -> list[Any]:
        return pytree.tree_leaves(function(*pytree.tree_unflatten(list(leaves), spec)))

    tracer = make_fx(
        functionalize(flat),
        decomposition_table=table,
        tracing_mode="fake",
        _allow_non_fake_inputs=True,
    )
    return tracer(*flat_args)


def run_graph(lowered: LoweredGraph, args: list[Any]) -> list[Any]:
    """Return the outputs of a lowered graph on the CPU client; views and mutations not applied."""
    device = client()
    arrays = []
    for argument in lowered.signature.arguments:
        assert argument.placeholder is not None
        tensor = args[argument.placeholder].permute(argument.order).contiguous()
        arrays.append(device.put(tensor, device.put_plan(*argument.physical)))
    if lowered.signature.uses_rng:
        key = torch.tensor([1, 2], dtype=torch.uint32)
        arrays.append(device.put(key, device.put_plan((2,), torch.uint32)))
    results = []
    if lowered.signature.results:
        with lowered.module.context:
            executable = device.compile(module_bytecode(lowered.module))
        handlers = [device.read_plan(*result.physical) for result in lowered.signature.results]
        for layout, array in zip(
            lowered.signature.results, pjrt.execute(executable, arrays, handlers), strict=True
        ):
            results.append(device.read(array, layout.spec.dtype))
    return [output_of(output, results, args) for output in lowered.signature.outputs]


def output_of(output: Output, results: list[torch.Tensor], args: list[Any]) -> Any:
    """Return an output of a graph from the results of its module and its arguments."""
    if isinstance(output, FromResult):
        tensor = results[output.index]
    elif isinstance(output, FromArgument):
        tensor = args[output.placeholder]
    else:
        return output.value
    if output.view is None:
        return tensor
    offset = output.view.offset
    if isinstance(output, FromArgument):
        offset += tensor.storage_offset()
    return tensor.as_strided(output.view.size, output.view.stride, offset)


def run(
    function: Callable[..., Any], *args: Any, decompose: bool = True, platform: str = "cpu"
) -> list[Any]:
    """Return the flat outputs of `function` as our lowering computes them."""
    graph = trace(function, *args, decompose=decompose)
    lowered = lower_graph(graph, options=LoweringOptions(platform=platform))
    return run_graph(lowered, pytree.tree_leaves(args))


# Relative to the largest value of the expected tensor; one place for every test.
TOLERANCES = {
    torch.float64: 1e-12,
    torch.complex128: 1e-12,
    torch.float32: 2e-6,
    torch.complex64: 2e-6,
    torch.float16: 2e-3,
    torch.bfloat16: 1.6e-2,
}


def assert_same(actual: Any, expected: Any, *, tolerance: float | None = None) -> None:
    """Assert that two flat outputs agree: dtype, shape, and values within the dtype's tolerance.

    Integers and bools are exact; NaN equals NaN; infinities must agree in sign.
    """
    if not isinstance(expected, torch.Tensor):
        assert actual == expected
        return
    assert actual.dtype == expected.dtype, f"{actual.dtype} is not {expected.dtype}"
    assert actual.shape == expected.shape, f"{actual.shape} is not {expected.shape}"
    tolerance = TOLERANCES.get(expected.dtype, 0) if tolerance is None else tolerance
    finite = expected[expected.isfinite()] if tolerance else expected.new_empty(0)
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    torch.testing.assert_close(
        actual, expected, rtol=tolerance, atol=tolerance * max(scale, 1e-30), equal_nan=True
    )


def check(
    function: Callable[..., Any],
    *args: Any,
    decompose: bool = True,
    tolerance: float | None = None,
) -> None:
    """Assert that `function` gives through our lowering what it gives in eager PyTorch."""
    expected = pytree.tree_leaves(function(*pytree.tree_map(_copy, args)))
    actual = run(function, *args, decompose=decompose)
    assert len(actual) == len(expected)
    for ours, eager in zip(actual, expected, strict=True):
        assert_same(ours, eager, tolerance=tolerance)


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value
