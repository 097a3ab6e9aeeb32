"""Every functional `_foreach_` overload against eager PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._ops import OpOverload

from lowering.composites.foreach import foreach_overloads
from tests.lowering.running import check

OPS = {str(op): op for op in foreach_overloads()}
SHAPES = ((3, 4), (), (5,), (0, 2))
KINDS = ("Scalar", "ScalarList", "List", "Tensor", "ScalarAndTensor", "default")


def _tensors(seed: int, shapes: tuple[tuple[int, ...], ...] = SHAPES) -> list[torch.Tensor]:
    """Tensors of positive numbers below one, where every function is defined."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(shape, generator=generator) * 0.8 + 0.1 for shape in shapes]


def _arguments(op: OpOverload) -> list[Any]:
    """Values for the required arguments of `op`, and for a number with a default."""
    values: list[Any] = []
    square = ((3, 3), (2, 2)) if "_mm" in str(op) else SHAPES
    if "max" in str(op) and op._overloadname == "default":
        square = ((3, 4), (), (5,))  # a maximum of nothing has no value
    for position, argument in enumerate(op._schema.arguments):
        kind = str(argument.type)
        if argument.name == "scalars" and kind == "Tensor":
            values.append(torch.tensor([0.5, -2.0, 3.0, 1.0]))
        elif kind == "List[Tensor]":
            values.append(_tensors(position, square))
        elif kind.startswith("List["):
            values.append([0.5, 2.0, 3.0, 1.0])
        elif kind == "Tensor":
            values.append(torch.tensor(1.5))
        elif kind == "number" and not argument.kwarg_only:
            values.append(2.5)
    return values


@pytest.mark.parametrize("kind", KINDS)
def test_each_overload(kind: str) -> None:
    ops = [op for op in OPS.values() if op._overloadname == kind]
    assert ops
    arguments = [_arguments(op) for op in ops]
    check(lambda *all_args: [op(*args) for op, args in zip(ops, all_args, strict=True)], *arguments)


def test_every_overload_is_of_a_tested_kind() -> None:
    assert {op._overloadname for op in OPS.values()} == set(KINDS)
    assert len(OPS) > 70


def test_alpha_dtype_and_mixed_dtypes() -> None:
    mixed = [torch.rand(3), torch.rand(2, 2, dtype=torch.float64), torch.arange(4)]
    other = [torch.rand(3, dtype=torch.float64), torch.rand(2, 2), torch.arange(4)]
    half = [torch.rand(40).to(torch.float16)]
    check(
        lambda a, b, h: (
            torch._foreach_add(a[:2], b[:2], alpha=0.25),
            torch._foreach_sub(a[2:], b[2:], alpha=3),
            torch._foreach_add(a[2:], 1.5),
            torch._foreach_mul(a, 2),
            torch._foreach_norm(a[:1], 1),
            torch._foreach_norm(a[:1], torch.inf),
            torch._foreach_norm(h, 2, dtype=torch.float32),
            torch._foreach_maximum(a[:2], b[:2]),
        ),
        mixed,
        other,
        half,
    )


def test_nan_wins_a_maximum() -> None:
    odd = [torch.tensor([torch.nan, -0.0, torch.inf, -1.0])]
    check(lambda t: (torch._foreach_maximum(t, 0.5), torch._foreach_minimum(t, [0.5])), odd)


def test_in_place_ops() -> None:
    def step(params: list[torch.Tensor], grads: list[torch.Tensor]) -> list[torch.Tensor]:
        params = torch._foreach_clone(params)
        torch._foreach_add_(params, grads, alpha=-0.1)
        torch._foreach_addcdiv_(params, grads, grads, value=2.0)
        torch._foreach_sqrt_(params)
        scratch = torch._foreach_clone(grads)
        torch._foreach_copy_(scratch, params)
        torch._foreach_zero_(grads)
        return [*params, *scratch]

    check(step, _tensors(0), _tensors(1))
