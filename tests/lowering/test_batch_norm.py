"""Batch norm against eager PyTorch."""

from __future__ import annotations

import pytest
import torch

from lowering import lower_graph
from lowering.errors import UnsupportedOpError
from tests.lowering.running import assert_same, check, run, trace

aten = torch.ops.aten
FLOATS = (torch.float32, torch.float64)


def tensors(dtype: torch.dtype) -> list[torch.Tensor]:
    """Return input `[3, 4, 2, 5]`, weight, bias, running mean and running variance."""
    vectors = [torch.randn(4, dtype=dtype) for _ in range(3)]
    return [torch.randn(3, 4, 2, 5, dtype=dtype), *vectors, torch.rand(4, dtype=dtype) + 0.5]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", FLOATS)
def test_training(dtype: torch.dtype) -> None:
    check(
        lambda x, w, b, mean, var: (
            aten._native_batch_norm_legit_functional(x, w, b, mean, var, True, 0.3, 1e-5),
            aten._native_batch_norm_legit_functional(x, None, b, mean, var, True, 0.0, 0.1),
            aten._batch_norm_with_update_functional(x, w, b, mean, var, 0.1, 1e-5),
            aten._native_batch_norm_legit.no_stats(x, w, b, True, 0.1, 1e-5),
            aten.native_batch_norm(x, w, b, None, None, True, 0.1, 1e-5),
        ),
        *tensors(dtype),
        tolerance=5e-6 if dtype is torch.float32 else None,
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_inference(dtype: torch.dtype) -> None:
    check(
        lambda x, w, b, mean, var: (
            aten._native_batch_norm_legit_functional(x, w, b, mean, var, False, 0.3, 1e-5),
            aten._native_batch_norm_legit_no_training(x, w, b, mean, var, 0.3, 1e-5),
            aten._batch_norm_no_update(x, w, b, mean, var, 0.1, 1e-5),
            aten.native_batch_norm(x, w, b, mean, var, False, 0.1, 1e-5),
        ),
        *tensors(dtype),
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mixed", [True, False])
def test_16_bit_input(dtype: torch.dtype, mixed: bool) -> None:
    x, *vectors = tensors(torch.float32)
    x = x.to(dtype)
    vectors = vectors if mixed else [vector.to(dtype) for vector in vectors]

    def function(x, w, b, mean, var):  # type: ignore[no-untyped-def]
        return (
            aten._native_batch_norm_legit_functional(x, w, b, mean, var, True, 0.3, 1e-5),
            aten._native_batch_norm_legit_no_training(x, w, b, mean, var, 0.3, 1e-5)[0],
        )

    training, inference = function(x, *vectors)
    # In eager the statistics have the dtype of the weight, in traced graphs other ones.
    for ours, eager in zip(run(function, x, *vectors), (*training, inference), strict=True):
        assert_same(ours.to(eager.dtype), eager, tolerance=1.6e-2)


def test_undeclared_mutation_is_refused() -> None:
    graph = trace(
        lambda x, mean, var: aten.native_batch_norm(x, None, None, mean, var, True, 0.1, 1e-5),
        torch.randn(2, 3, 4),
        torch.zeros(3),
        torch.ones(3),
    )
    with pytest.raises(UnsupportedOpError, match="in place"):
        lower_graph(graph)


def test_batch_norm_backward_is_decomposed() -> None:
    x, weight, _, mean, var = tensors(torch.float32)
    graph = trace(
        lambda *args: aten.batch_norm_backward(
            *args, True, 1e-5, [True, True, True], torch.zeros(0, dtype=torch.uint8)
        ),
        torch.randn_like(x),
        x,
        weight,
        mean,
        var,
        mean,
        var,
    )
    targets = {str(node.target) for node in graph.graph.nodes}
    assert not any("batch_norm" in target for target in targets)
