"""Parity with eager in float32 for models of every kind, forward and gradients, one graph each."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import transformers
from torch import nn

from tests.tpu_compile.comparing import assert_same_model

Case = tuple[nn.Module, Callable[[nn.Module], object]]


def mlp() -> Case:
    model = nn.Sequential(nn.Linear(20, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 5))
    inputs = torch.randn(7, 20)
    return model, lambda m: m(inputs)


def cnn_with_batch_norm() -> Case:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, groups=2, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 10),
    ).train()
    inputs = torch.randn(4, 3, 14, 14)
    return model, lambda m: m(inputs)


def lstm() -> Case:
    model = nn.LSTM(6, 8, num_layers=2, batch_first=True, bidirectional=True)
    inputs = torch.randn(3, 9, 6)
    return model, lambda m: m(inputs)


def resnet() -> Case:
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], layer_type="basic", num_labels=4
    )
    model = transformers.ResNetForImageClassification(config).train()
    inputs = torch.randn(3, 3, 32, 32)
    return model, lambda m: m(pixel_values=inputs).logits


def vit() -> Case:
    config = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        image_size=16,
        patch_size=4,
    )
    model = transformers.ViTModel(config, add_pooling_layer=False).eval()
    inputs = torch.randn(2, 3, 16, 16)
    return model, lambda m: m(pixel_values=inputs).last_hidden_state


def _token_ids(batch: int, length: int, vocabulary: int = 99) -> torch.Tensor:
    return torch.randint(0, vocabulary, (batch, length))


def bert() -> Case:
    config = transformers.BertConfig(
        vocab_size=99,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=37,
    )
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    tokens = _token_ids(3, 11)
    mask = torch.ones(3, 11, dtype=torch.long)
    mask[1, 6:] = 0
    return model, lambda m: m(input_ids=tokens, attention_mask=mask).last_hidden_state


def gpt2() -> Case:
    config = transformers.GPT2Config(
        vocab_size=99, n_embd=32, n_layer=2, n_head=4, n_positions=64, use_cache=False
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    tokens = _token_ids(3, 11)
    return model, lambda m: m(input_ids=tokens).logits


def llama() -> Case:
    config = transformers.LlamaConfig(
        vocab_size=99,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        use_cache=False,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    tokens = _token_ids(3, 11)
    return model, lambda m: m(input_ids=tokens).logits


def t5() -> Case:
    config = transformers.T5Config(
        vocab_size=99, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, use_cache=False
    )
    model = transformers.T5ForConditionalGeneration(config).eval()
    tokens, targets = _token_ids(3, 11), _token_ids(3, 7)
    return model, lambda m: m(input_ids=tokens, decoder_input_ids=targets).logits


@pytest.mark.parametrize(
    "make", [mlp, cnn_with_batch_norm, lstm, resnet, vit, bert, gpt2, llama, t5]
)
def test_forward_and_gradients_are_eagers(make: Callable[[], Case]) -> None:
    model, run = make()
    with torch._dynamo.config.patch(allow_rnn=True):
        assert_same_model(model, run)


@pytest.mark.parametrize("make", [cnn_with_batch_norm, lstm, resnet, vit, bert, gpt2, llama, t5])
def test_inference_is_eagers(make: Callable[[], Case]) -> None:
    model, run = make()
    with torch._dynamo.config.patch(allow_rnn=True), torch.no_grad():
        assert_same_model(model.eval(), run)


@pytest.mark.parametrize("make", [cnn_with_batch_norm, bert, gpt2])
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_ten_training_steps_follow_eager(make: Callable[[], Case], optimizer: str) -> None:
    losses = []
    for backend in ("eager", "tpu"):
        torch.manual_seed(3)
        model, run = make()
        step = getattr(torch.optim, optimizer)(model.parameters(), lr=1e-3)
        compiled = torch.compile(model, backend=backend, fullgraph=True)
        history = []
        for _ in range(10):
            step.zero_grad()
            result = run(compiled)
            target = torch.linspace(-1, 1, result.numel()).reshape(result.shape)
            loss = (result - target).square().mean()
            loss.backward()
            step.step()
            history.append(loss.item())
        losses.append(torch.tensor(history, dtype=torch.float64))
    eager, ours = losses
    assert eager[0] != eager[-1]
    torch.testing.assert_close(ours, eager, rtol=1e-5, atol=0)
