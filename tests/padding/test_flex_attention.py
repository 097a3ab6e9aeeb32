"""Padding rules of flex attention."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.flex_attention import AuxRequest, flex_attention

from tests.padding.checking import check

pytestmark = [
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
]
BIAS = torch.tensor([0.3, -0.2])


def inputs(b: int, s: int) -> list[torch.Tensor]:
    return [torch.randn(b, 2, s, 8) for _ in range(3)]


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
    output, aux = flex_attention(
        query,
        key,
        value,
        score_mod=lambda score, b, h, q, k: torch.tanh(score) + (q - k) * BIAS[h],
        return_aux=AuxRequest(lse=True),
    )
    return output, aux.lse


def test_scores_of_padded_keys() -> None:
    check(attention, inputs, [(3, 5), (6, 9), (8, 16), (17, 3)], rtol=1e-4, atol=1e-5)


def test_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's public function refuses gradients on the CPU; its operator has them."""
    monkeypatch.setattr(flex, "_validate_device", lambda *_: None)
    sizes = [(3, 5), (6, 9), (8, 16)]
    check(attention, inputs, sizes, gradients=True, rtol=1e-3, atol=1e-4)
