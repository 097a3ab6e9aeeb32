"""Attention and its gradient against eager PyTorch: the same op, autograd of it, the math path."""

from __future__ import annotations

import math

import pytest
import torch

from tests.lowering.running import assert_same, check, run, trace

aten = torch.ops.aten
forward = aten._scaled_dot_product_flash_attention_for_cpu
backward = aten._scaled_dot_product_flash_attention_for_cpu_backward


def tensors(
    queries: int = 5, keys: int = 7, key_heads: int = 4, dtype: torch.dtype = torch.float32
) -> list[torch.Tensor]:
    """Return query with 4 heads, key and value."""
    return [
        torch.randn(2, 4, queries, 8, dtype=dtype),
        torch.randn(2, key_heads, keys, 8, dtype=dtype),
        torch.randn(2, key_heads, keys, 8, dtype=dtype),
    ]


def masks() -> list[torch.Tensor]:
    """Return additive masks of every shape that broadcasts; the first two mask whole rows."""
    mask = torch.randn(5, 7)
    mask[1] = -math.inf
    mask[2, 3:] = -math.inf
    whole = mask.repeat(2, 4, 1, 1)
    whole[1, 2] = -math.inf
    return [mask, whole, torch.randn(1, 7), torch.randn(2, 1, 5, 7), torch.randn(1, 4, 1, 7)]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def both(q, k, v, grad, *masks, **options):  # type: ignore[no-untyped-def]
    """Return output, logsumexp and gradients, with each mask in turn."""
    results = []
    for mask in masks or (None,):
        output, logsumexp = forward(q, k, v, attn_mask=mask, **options)
        grads = backward(
            grad,
            q,
            k,
            v,
            output,
            logsumexp,
            0.0,
            options.get("is_causal", False),
            attn_mask=mask,
            scale=options.get("scale"),
        )
        results.append((output, logsumexp, grads))
    return results


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_masks(dtype: torch.dtype) -> None:
    data = tensors(dtype=dtype)
    check(
        both,
        *data,
        torch.randn_like(data[0]),
        *(mask.to(dtype) for mask in masks()),
        tolerance=1e-5 if dtype is torch.float32 else None,
    )


@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (3, 6), (6, 3), (2, 4)])
def test_causal_and_scale(queries: int, keys: int) -> None:
    data = tensors(queries, keys)
    check(
        lambda *args: (
            both(*args, is_causal=True),
            both(*args, scale=0.3, is_causal=True),
            both(*args, scale=-1.5),
        ),
        *data,
        torch.randn_like(data[0]),
        tolerance=1e-5,
    )


@pytest.mark.parametrize("key_heads", [1, 2])
def test_grouped_queries(key_heads: int) -> None:
    data = tensors(key_heads=key_heads)
    check(both, *data, torch.randn_like(data[0]), *masks()[1:2], tolerance=1e-5)
    check(
        lambda *args: both(*args, is_causal=True),
        *data,
        torch.randn_like(data[0]),
        tolerance=1e-5,
    )


@pytest.mark.parametrize("is_causal", [False, True])
def test_gradients_are_those_of_autograd_and_of_the_math_path(is_causal: bool) -> None:
    leaves = [tensor.requires_grad_() for tensor in tensors(dtype=torch.float64)]
    grad = torch.randn(2, 4, 5, 8, dtype=torch.float64)
    mask = None if is_causal else masks()[1].double()
    ours = run(
        lambda q, k, v, grad, *mask: both(q, k, v, grad, *mask, is_causal=is_causal),
        *(leaf.detach() for leaf in leaves),
        grad,
        *(() if mask is None else (mask,)),
    )[2:]
    output = forward(*leaves, is_causal=is_causal, attn_mask=mask)[0]
    math_output = aten._scaled_dot_product_attention_math(*leaves, mask, 0.0, is_causal)[0]
    for result in (output, math_output):
        for mine, eager in zip(ours, torch.autograd.grad(result, leaves, grad), strict=True):
            assert_same(mine, eager, tolerance=1e-10)


def test_rows_without_a_key_give_zeros() -> None:
    q, k, v = tensors()
    mask = torch.full((5, 7), -math.inf)
    output, logsumexp, *grads = run(both, q, k, v, torch.randn_like(q), mask)
    for tensor in (output, logsumexp, *grads):
        assert not tensor.any()


def test_nan_flows() -> None:
    q, k, v = tensors()
    q[0, 0, 1, 0] = math.nan
    output = run(lambda q, k, v: forward(q, k, v)[0], q, k, v)[0]
    assert output[0, 0, 1].isnan().all()
    assert output.isnan().sum() == 8


def test_sdpa_is_not_decomposed() -> None:
    graph = trace(torch.nn.functional.scaled_dot_product_attention, *tensors())
    assert forward.default in {node.target for node in graph.graph.nodes}
    check(torch.nn.functional.scaled_dot_product_attention, *tensors())
