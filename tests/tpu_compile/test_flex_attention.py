"""Flex attention through the backend: modified scores, block masks, shared key heads, gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

from tests.tpu_compile.comparing import relative_difference

pytestmark = [
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
]

BIAS = torch.tensor([0.3, -0.2, 0.1, 0.5])


def inputs(heads: int, key_heads: int, keys: int = 8, **how: Any) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = (2, heads, 8, 16), (2, key_heads, keys, 16), (2, key_heads, keys, 12)
    return [torch.randn(shape, generator=generator, **how) for shape in shapes]


def assert_like_eager(
    function: Callable[..., Any], args: list[torch.Tensor], *, tolerance: float = 2e-6
) -> None:
    """Assert equal outputs, and gradients where the arguments take one."""
    run = torch.compile(function, backend="tpu", fullgraph=True, options={"fallback": "error"})
    results = []
    for call in (function, run):
        given = [x.detach().clone().requires_grad_(x.requires_grad) for x in args]
        outputs = [o for o in call(*given) if o is not None]
        if any(output.requires_grad for output in outputs):
            weighed = [
                (o * torch.linspace(0.5, 1.5, o.numel()).reshape(o.shape)).sum() for o in outputs
            ]
            torch.stack(weighed).sum().backward()
        results.append([*outputs, *(x.grad for x in given if x.grad is not None)])
    for eager, ours in zip(*results, strict=True):
        finite = eager.isfinite()
        assert torch.equal(ours[~finite], eager[~finite])
        assert relative_difference(ours[finite], eager[finite]) <= tolerance


def test_scores_pass_through_the_users_function() -> None:
    def function(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
        output, aux = flex_attention(
            query,
            key,
            value,
            score_mod=lambda score, b, h, q, k: torch.tanh(score) + (q - k) * BIAS[h],
            scale=0.5,
            enable_gqa=True,
            return_aux=AuxRequest(lse=True),
        )
        return output, aux.lse

    assert_like_eager(function, inputs(4, 2, keys=11))


def test_rows_that_see_no_key() -> None:
    def function(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
        mask = create_block_mask(lambda b, h, q, k: (q >= k) & (q != 5), 2, None, 8, 8, "cpu")
        output, aux = flex_attention(
            query, key, value, block_mask=mask, return_aux=AuxRequest(lse=True)
        )
        return output, aux.lse

    args = inputs(2, 2)
    assert_like_eager(function, args)
    assert_like_eager(function, [x.bfloat16() for x in args], tolerance=8e-3)


def test_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's public function refuses gradients on the CPU; its operator has them."""
    monkeypatch.setattr(flex, "_validate_device", lambda *_: None)

    def function(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor
    ) -> Any:
        mask = create_block_mask(lambda b, h, q, k: (q >= k) & (q != 5), None, None, 8, 8, "cpu")
        output, aux = flex_attention(
            query,
            key,
            value,
            score_mod=lambda score, b, h, q, k: score * 1.5 + (q - k) * bias[h],
            block_mask=mask,
            enable_gqa=True,
            return_aux=AuxRequest(lse=True),
        )
        return output, torch.where(aux.lse > -1e30, aux.lse, 0)

    args = [x.requires_grad_() for x in (*inputs(4, 2), BIAS.clone())]
    assert_like_eager(function, args, tolerance=5e-6)
