"""Bags of embeddings, their gradient, and the renormalization of rows."""

from __future__ import annotations

import pytest
import torch

from tests.lowering.running import check
from tests.lowering.test_indexing import positions

aten = torch.ops.aten
INDICES = positions(1, 2, 4, 5, 4, 3, 2, 9)
OFFSETS = positions(0, 3, 3, 6)


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bags(mode, dtype):
    def function(weight, indices, offsets, ends, factors):
        results = [
            *aten._embedding_bag(weight, indices, offsets, False, mode),
            *aten._embedding_bag(weight, indices, offsets, False, mode, False, None, False, 4),
            *aten._embedding_bag(weight, indices, ends, False, mode, False, None, True, -1),
            aten._embedding_bag_forward_only(weight, indices[:0], offsets[:1], False, mode)[0],
            aten._embedding_bag_forward_only(weight, indices, offsets, False, mode)[0],
        ]
        if mode == 0:
            options = (False, mode, False, factors)
            results += [aten._embedding_bag(weight, indices, offsets, *options)[0]]
        # For bfloat16, torch's shapes of the extra results are not those of eager.
        return results if dtype is torch.float32 else results[::4]

    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(10, 3, generator=generator).to(dtype)
    ends = positions(*OFFSETS.tolist(), 8)
    check(function, weight, INDICES, OFFSETS, ends, torch.linspace(-1, 1, 8).to(dtype))


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_bags_backward(mode):
    weight, factors = torch.randn(10, 3), torch.linspace(-1, 1, 8) if mode == 0 else None
    options = (mode, False, factors)
    _, bag, sizes, chosen = aten._embedding_bag(weight, INDICES, OFFSETS, False, *options, False, 4)

    def function(grad, indices, bag, sizes, chosen):
        return [
            aten._embedding_bag_dense_backward(
                grad, indices, bag, sizes, chosen, 10, False, mode, factors, 4
            )
        ]

    check(function, torch.randn(4, 3), INDICES, bag, sizes, chosen)


@pytest.mark.parametrize("order", [0.0, 1.0, 2.0, 3.5, float("inf")])
def test_renorm(order):
    def function(weight, indices):
        return [aten.embedding_renorm(weight, indices, 1.5, order)]

    weight = torch.linspace(-2, 2, 24).reshape(8, 3)
    check(function, weight, positions([0, 3], [3, 7]))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_gradients_of_bags_and_their_weights(mode):
    indices = torch.tensor([1, 4, 2, 2, 0, 3, 1])
    offsets = torch.tensor([0, 3, 3, 5])
    weighted = mode == "sum"

    def loss(weight, factors):
        bags = torch.nn.functional.embedding_bag(
            indices,
            weight,
            offsets,
            mode=mode,
            per_sample_weights=factors if weighted else None,
            padding_idx=2,
        )
        return (bags * torch.linspace(0.5, 1.5, bags.numel()).reshape(bags.shape)).sum()

    grads = []
    options = {"fallback": "error"}
    for function in (loss, torch.compile(loss, backend="tpu", fullgraph=True, options=options)):
        generator = torch.Generator().manual_seed(0)
        weight = torch.randn(6, 3, generator=generator).requires_grad_()
        factors = torch.randn(7, generator=generator).requires_grad_()
        function(weight, factors).backward()
        grads.append([weight.grad, *([factors.grad] if weighted else [])])
    for eager, ours in zip(*grads, strict=True):
        torch.testing.assert_close(ours, eager)
