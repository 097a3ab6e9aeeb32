"""Tiny transformers models of many families are eager's, outputs and all gradients.

The rest of the types that transformers knows: `python -m tests.models --all`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.models.tiny import make_tiny
from tests.tpu_compile.comparing import STRICT, assert_same_model

CORE = ("bert", "gpt2", "llama", "mamba2", "mixtral", "resnet", "t5", "vit")
FULL = (
    "albert",
    "bart",
    "beit",
    "bloom",
    "clip",
    "cohere",
    "convnext",
    "deberta-v2",
    "deepseek_v3",
    "detr",
    "dinov2",
    "distilbert",
    "electra",
    "falcon",
    "gemma3",
    "gemma3_text",
    "gpt_neox",
    "gpt_oss",
    "granitemoe",
    "hubert",
    "mamba",
    "mistral",
    "olmo",
    "opt",
    "pegasus",
    "phi3",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "roberta",
    "rwkv",
    "segformer",
    "siglip",
    "stablelm",
    "swin",
    "wav2vec2",
    "whisper",
    "xlnet",
    "xlstm",
)
# Dynamo breaks the graph of these, whatever the backend.
BROKEN_GRAPHS = {
    "detr": "branches on whether a value is finite",
    "hubert": "sets requires_grad of a tensor inside forward",
    "rwkv": "calls a logger",
    "wav2vec2": "sets requires_grad of a tensor inside forward",
}


def _check(name: str) -> None:
    def compile_model(model: nn.Module) -> Any:
        whole = name not in BROKEN_GRAPHS
        return torch.compile(model, backend="tpu", fullgraph=whole, options=STRICT)

    tiny = make_tiny(name)
    assert_same_model(tiny.model, tiny.run, compile_model=compile_model)


@pytest.mark.parametrize("name", CORE)
def test_forward_and_gradients_are_eagers(name: str) -> None:
    _check(name)


# transformers' own decorators make torch warn while it traces some of them.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.full
@pytest.mark.parametrize("name", FULL)
def test_forward_and_gradients_of_more_models_are_eagers(name: str) -> None:
    _check(name)
