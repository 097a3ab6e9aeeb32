"""Checks that padding shows in no result: bit-equal whatever it holds, and equal to eager.

A function is compiled once with its changing dims marked dynamic and called at several sizes; at
each, the padding of the inputs is filled in several ways.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

import tpu_compile
from tpu_compile.framing import padding_filled


def _extreme(dtype: torch.dtype, *, lowest: bool) -> Any:
    if dtype is torch.bool:
        return not lowest
    if dtype.is_floating_point or dtype.is_complex:
        largest = torch.finfo(dtype).max
        return -min(largest, 1e30) if lowest else min(largest, 1e30)
    info = torch.iinfo(dtype)
    return info.min if lowest else info.max


FILLS: dict[str, Callable[[torch.dtype], Any]] = {
    "nan": lambda d: math.nan if d.is_floating_point or d.is_complex else _extreme(d, lowest=False),
    "inf": lambda d: math.inf if d.is_floating_point or d.is_complex else _extreme(d, lowest=True),
    "zero": lambda d: 0,
    "low": lambda d: _extreme(d, lowest=True),
}


def check(
    function: Callable[..., Any],
    inputs: Callable[..., Sequence[Any]],
    sizes: Sequence[tuple[int, ...]],
    *,
    gradients: bool = False,
    exact: bool = False,
    rtol: float | None = None,
    atol: float | None = None,
) -> None:
    """Compare `function` at each of `sizes`, whatever the padding holds, with eager PyTorch.

    Args:
        function: takes the inputs, gives tensors in any structure.
        inputs: takes a tuple of sizes, gives the arguments; dims that differ between the first
            two sizes are dynamic. Use distinct sizes, from 2 up: torch treats equal ones as one.
        sizes: what `inputs` is called with; at least two.
        gradients: compare the gradients of floating inputs too, of a weighted sum of the results.
        exact: expect the graph to have no padding rule and run at exact shapes.
        rtol: see `torch.testing.assert_close`.
        atol: the same.
    """
    tpu_compile.reset()
    compiled = torch.compile(
        function, backend="tpu", fullgraph=True, options={"fallback": "error", "buckets": "pow2"}
    )
    first, second = inputs(*sizes[0]), inputs(*sizes[1])
    dynamic = [
        [dim for dim in range(a.ndim) if a.shape[dim] != b.shape[dim]]
        if isinstance(a, torch.Tensor)
        else []
        for a, b in zip(first, second, strict=True)
    ]
    for size in sizes:
        torch.manual_seed(sum(size))
        given = inputs(*size)
        wanted = _outcome(function, given, [[] for _ in given], gradients)
        reference = None
        for name, fill in FILLS.items():
            with padding_filled(fill):
                found = _outcome(compiled, given, dynamic, gradients)
            if reference is None:
                reference = found
                torch.testing.assert_close(
                    found, wanted, rtol=rtol, atol=atol, equal_nan=True, check_stride=False
                )
            for a, b in zip(found, reference, strict=True):
                same = bits_equal(a, b)
                assert same, f"padding of {name} shows in a result at sizes {size}"
    stats = tpu_compile.stats()
    assert bool(stats.exact_graphs) == exact, f"{stats.exact_graphs} graphs run at exact shapes"


def _outcome(
    function: Callable[..., Any],
    given: Sequence[Any],
    dynamic: Sequence[Sequence[int]],
    gradients: bool,
) -> list[Any]:
    copies = []
    for value, dims in zip(given, dynamic, strict=True):
        if isinstance(value, torch.Tensor):
            value = value.clone()
            if gradients and value.is_floating_point():
                value.requires_grad_()
            for dim in dims:
                torch._dynamo.mark_dynamic(value, dim)
        copies.append(value)
    results = pytree.tree_leaves(function(*copies))
    outcome = [r.detach() if isinstance(r, torch.Tensor) else r for r in results]
    if gradients:
        leaves = [c for c in copies if isinstance(c, torch.Tensor) and c.requires_grad]
        loss = sum(
            (r * torch.linspace(0.5, 1.5, r.numel(), dtype=r.dtype).reshape(r.shape)).sum()
            for r in results
            if isinstance(r, torch.Tensor) and r.requires_grad
        )
        found = torch.autograd.grad(loss, leaves, allow_unused=True)
        outcome += [g for g in found if g is not None]
    return outcome


def bits_equal(left: Any, right: Any) -> bool:
    """Whether two tensors have the same shape, dtype and bits; other values, whether equal."""
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
        return left is right or bool(left == right) or bool(left != left and right != right)
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    return torch.equal(_bytes(left), _bytes(right))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return (
        tensor.resolve_conj()
        .resolve_neg()
        .reshape(-1)
        .clone(memory_format=torch.contiguous_format)
        .view(torch.uint8)
    )
