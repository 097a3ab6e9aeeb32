"""Bags of embeddings with their gradients, as autograd asks for them."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from tests.tpu_compile.comparing import compiled

INDICES = torch.tensor([1, 2, 4, 5, 4, 3, 2, 9, 1])
OFFSETS = torch.tensor([0, 4, 4, 9])


def _bags(mode):
    def function(weight, indices, offsets):
        bag = functional.embedding_bag
        return [
            bag(indices, weight, offsets, mode=mode),
            bag(indices.view(3, 3), weight, mode=mode, padding_idx=2),
            bag(indices.int(), weight, offsets.int(), mode=mode, include_last_offset=True),
            bag(indices[:0], weight, offsets * 0, mode=mode),
        ]

    return function


def _weighted(weight, indices, offsets, factors):
    bag = functional.embedding_bag
    return [
        bag(indices, weight, offsets, mode="sum", per_sample_weights=factors),
        bag(indices, weight, offsets, mode="sum", per_sample_weights=factors * 2, padding_idx=4),
    ]


def _gradients(function, inputs, *others):
    inputs = [tensor.clone().requires_grad_() for tensor in inputs]
    outputs = function(inputs[0], *others, *inputs[1:])
    total = sum((output * output).sum() for output in outputs)
    return [*outputs, *torch.autograd.grad(total, inputs)]


def _assert_gradients_agree(function, *inputs):
    expected = _gradients(function, inputs, INDICES, OFFSETS)
    actual = _gradients(compiled(function), inputs, INDICES, OFFSETS)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_gradients_of_the_weight(mode):
    _assert_gradients_agree(_bags(mode), torch.linspace(-2, 3, 40).sin().view(10, 4))


def test_gradients_of_the_factors():
    weight = torch.linspace(-2, 3, 40).sin().view(10, 4)
    _assert_gradients_agree(_weighted, weight, torch.linspace(-1, 2, 9))
