"""Runs the same code eagerly and through the backend and compares everything that can be seen."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

STRICT = {"fallback": "error"}


def relative_difference(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest difference over the largest value of `expected`."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    if expected.numel() == 0 or torch.equal(actual, expected):
        return 0.0
    kind = torch.complex128 if expected.is_complex() else torch.float64
    actual, expected = actual.detach().to(kind), expected.detach().to(kind)
    return float((actual - expected).abs().max() / expected.abs().max().clamp_min(1e-30))


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Return `function` through the backend as one graph without fallbacks."""
    return torch.compile(function, backend="tpu", fullgraph=True, options={**STRICT, **options})


def tensors_of(result: Any) -> list[torch.Tensor]:
    """Return the tensors in a result: dictionaries, tuples, transformers' outputs and caches."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, dict):
        return [tensor for value in result.values() for tensor in tensors_of(value)]
    if isinstance(result, (list, tuple)):
        return [tensor for value in result for tensor in tensors_of(value)]
    return []


def assert_same_call(function: Callable[..., Any], *args: Any, tolerance: float = 1e-6) -> None:
    """Assert equal outputs, strides, aliasing among outputs and inputs, and inputs afterwards."""
    eager_args, our_args = copy.deepcopy(args), copy.deepcopy(args)
    expected = pytree.tree_leaves(function(*eager_args))
    actual = pytree.tree_leaves(compiled(function)(*our_args))
    assert len(actual) == len(expected)
    for ours, eager in zip(actual, expected, strict=True):
        if isinstance(eager, torch.Tensor):
            assert relative_difference(ours, eager) <= tolerance
            assert ours.stride() == eager.stride()
        else:
            assert ours == eager
    assert _aliases(actual, our_args) == _aliases(expected, eager_args)
    for ours, eager in zip(
        pytree.tree_leaves(our_args), pytree.tree_leaves(eager_args), strict=True
    ):
        if isinstance(eager, torch.Tensor):
            assert relative_difference(ours, eager) <= tolerance
            assert ours._version == eager._version or ours._version > 0


def _aliases(outputs: list[Any], args: tuple[Any, ...]) -> list[tuple[int, int]]:
    tensors = [t for t in (*outputs, *pytree.tree_leaves(args)) if isinstance(t, torch.Tensor)]
    pointers = [t.untyped_storage().data_ptr() for t in tensors]
    return [
        (i, j)
        for i in range(len(pointers))
        for j in range(i)
        if pointers[i] == pointers[j] and tensors[i].numel()
    ]


@dataclass(frozen=True)
class Differences:
    """How far a model is from eager, each relative to the largest value of the tensor."""

    forward: float
    """The worst of the outputs."""
    gradients: float
    """The worst of the parameters' gradients; 0.0 where nothing is differentiable."""
    buffers: float
    """The worst of the buffers after the call."""
    worst_gradient: str = ""
    """The parameter with the worst gradient."""


def differences(
    model: torch.nn.Module,
    run: Callable[[Any], Any],
    compile_model: Callable[[torch.nn.Module], Callable[..., Any]] = compiled,
) -> Differences:
    """Return how far outputs, all gradients and all buffers of the compiled `model` are off.

    `run` calls the model it is given; the sum of its floating-point outputs is differentiated.

    Raises:
        AssertionError: dtypes, shapes or the set of tensors that have a gradient differ.
    """
    ours = copy.deepcopy(model)
    expected = tensors_of(run(model))
    actual = tensors_of(run(compile_model(ours)))
    assert len(actual) == len(expected) > 0
    forward = max(map(relative_difference, actual, expected))
    differentiable = [tensor.requires_grad for tensor in expected]
    assert differentiable == [tensor.requires_grad for tensor in actual]
    if any(differentiable):
        for outputs in (expected, actual):
            _loss(outputs).backward()
    gradients, worst = _gradient_difference(ours, model)
    buffers = 0.0
    for (_, buffer), (_, eager_buffer) in zip(
        ours.named_buffers(), model.named_buffers(), strict=True
    ):
        buffers = max(buffers, relative_difference(buffer, eager_buffer))
    return Differences(forward, gradients, buffers, worst)


def assert_same_model(
    model: torch.nn.Module,
    run: Callable[[Any], Any],
    *,
    forward: float = 1e-5,
    gradients: float = 1e-4,
    compile_model: Callable[[torch.nn.Module], Callable[..., Any]] = compiled,
) -> None:
    """Assert that outputs, all gradients and all buffers of `model` are eager's.

    `run` calls the model it is given; the sum of its floating-point outputs is differentiated.
    """
    found = differences(model, run, compile_model)
    assert found.forward <= forward, found
    assert found.gradients <= gradients, found
    assert found.buffers <= forward, found


def _gradient_difference(ours: torch.nn.Module, model: torch.nn.Module) -> tuple[float, str]:
    """Return the worst difference of a gradient, and of which parameter it is."""
    eager = {name: parameter.grad for name, parameter in model.named_parameters()}
    largest = max(
        (float(g.abs().max()) for g in eager.values() if g is not None and g.numel()), default=0.0
    )
    worst = (0.0, "")
    for name, parameter in ours.named_parameters():
        expected = eager[name]
        assert (parameter.grad is None) == (expected is None), name
        if expected is None or expected.numel() == 0:
            continue
        # A gradient that is zero but for rounding (of a key bias, say: softmax is blind to it) has
        # no size of its own to be measured by.
        size = max(float(expected.abs().max()), 1e-2 * largest, 1e-30)
        difference = float((parameter.grad - expected).abs().max()) / size
        if not difference <= worst[0]:
            worst = (difference, name)
    return worst


def _loss(outputs: list[torch.Tensor]) -> torch.Tensor:
    """Return a scalar that weighs every element of every output differently."""
    total = torch.zeros(())
    for tensor in outputs:
        if tensor.requires_grad:
            weights = torch.linspace(0.5, 1.5, tensor.numel()).reshape(tensor.shape)
            total = total + (tensor * weights).sum()
    return total
