"""Reductions of segments: empty ones, NaN, ties, zeros in products, several dims."""

from __future__ import annotations

import pytest
import torch

from tests.lowering.running import check

aten = torch.ops.aten
REDUCTIONS = ("sum", "mean", "prod", "max", "min")
LENGTHS = torch.tensor([3, 0, 1, 4])
OFFSETS = torch.tensor([[0, 2, 2, 5], [0, 4, 5, 5]])


def hard_values() -> tuple[torch.Tensor, torch.Tensor]:
    vector = torch.tensor([2.0, 0.0, 2.0, -1.5, 0.0, float("nan"), 3.0, 3.0])
    matrix = torch.tensor([0.0, 0.0, 1.0, 1.0, -2.0, 5.0, float("inf"), 2.0, 2.0, 0.5])
    # No ties outside the first row: eager (torch 2.13) does not share gradients there.
    untied = torch.tensor([4.0, -2.0, float("inf"), 1.0, 2.0, -1.0, 3.0, 0.0, 0.5, 7.0])
    return vector, torch.stack([matrix, untied]).reshape(2, 5, 2)


@pytest.mark.parametrize("initial", [None, 2.0])
def test_every_reduction_is_eagers(initial: float | None) -> None:
    def reduce_all(vector, matrix, lengths, offsets):  # type: ignore[no-untyped-def]
        return [
            reduced
            for how in REDUCTIONS
            for reduced in (
                aten.segment_reduce(vector, how, lengths=lengths, initial=initial),
                aten.segment_reduce(matrix, how, offsets=offsets, axis=1, initial=initial),
            )
        ]

    check(reduce_all, *hard_values(), LENGTHS, OFFSETS)


@pytest.mark.parametrize("initial", [None, 2.0])
def test_gradients_are_eagers(initial: float | None) -> None:
    vector, matrix = hard_values()

    def backward_all(vector, matrix, lengths, offsets, grads, matrix_grads):  # type: ignore[no-untyped-def]
        results = []
        for how in REDUCTIONS:
            out = aten.segment_reduce(vector, how, lengths=lengths, initial=initial)
            results.append(
                aten._segment_reduce_backward(
                    grads, out, vector, how, lengths=lengths, initial=initial
                )
            )
            out = aten.segment_reduce(matrix, how, offsets=offsets, axis=1, initial=initial)
            results.append(
                aten._segment_reduce_backward(
                    matrix_grads, out, matrix, how, offsets=offsets, axis=1, initial=initial
                )
            )
        return results

    grads, matrix_grads = torch.randn(4), torch.randn(2, 3, 2)
    check(backward_all, vector, matrix, LENGTHS, OFFSETS, grads, matrix_grads)
