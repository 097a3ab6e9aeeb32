"""Runs the same code eagerly and through the backend and compares everything that can be seen."""

from __future__ import annotations

import copy
from collections.abc import Callable
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


def assert_same_model(
    model: torch.nn.Module,
    run: Callable[[torch.nn.Module], Any],
    *,
    forward: float = 1e-5,
    gradients: float = 1e-4,
) -> None:
    """Assert that outputs, all gradients and all buffers of `model` are eager's.

    `run` calls the model it is given; the sum of its floating-point outputs is differentiated.
    """
    ours = copy.deepcopy(model)
    expected = tensors_of(run(model))
    actual = tensors_of(run(compiled(ours)))
    assert len(actual) == len(expected) > 0
    for mine, eager in zip(actual, expected, strict=True):
        assert relative_difference(mine, eager) <= forward
    differentiable = [tensor.requires_grad for tensor in expected]
    assert differentiable == [tensor.requires_grad for tensor in actual]
    if any(differentiable):
        for outputs in (expected, actual):
            _loss(outputs).backward()
    _assert_same_gradients(ours, model, gradients)
    for (name, buffer), (_, eager_buffer) in zip(
        ours.named_buffers(), model.named_buffers(), strict=True
    ):
        assert relative_difference(buffer, eager_buffer) <= forward, name


def _assert_same_gradients(ours: torch.nn.Module, model: torch.nn.Module, most: float) -> None:
    eager = {name: parameter.grad for name, parameter in model.named_parameters()}
    largest = max((float(g.abs().max()) for g in eager.values() if g is not None), default=0.0)
    for name, parameter in ours.named_parameters():
        expected = eager[name]
        assert (parameter.grad is None) == (expected is None), name
        if expected is None:
            continue
        # A gradient that is zero but for rounding (of a key bias, say: softmax is blind to it) has
        # no size of its own to be measured by.
        size = max(float(expected.abs().max()), 1e-2 * largest)
        difference = float((parameter.grad - expected).abs().max()) / size
        assert difference <= most, f"{name}: {difference}"


def _loss(outputs: list[torch.Tensor]) -> torch.Tensor:
    """Return a scalar that weighs every element of every output differently."""
    total = torch.zeros(())
    for tensor in outputs:
        if tensor.requires_grad:
            weights = torch.linspace(0.5, 1.5, tensor.numel()).reshape(tensor.shape)
            total = total + (tensor * weights).sum()
    return total
