"""Models with dynamic sizes, forward and training step: padding shows nowhere, no exact shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import tpu_compile
from tests.padding.checking import FILLS, bits_equal
from tpu_compile.framing import padding_filled

Inputs = Callable[..., list[torch.Tensor]]


def tokens(batch: int, length: int) -> list[torch.Tensor]:
    """Give token ids and a mask that hides the first half of the first row."""
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[0, : length // 2] = 0
    return [torch.randint(0, 90, (batch, length)), mask]


class Last(nn.Module):
    """Gives one tensor of what a model of transformers returns."""

    def __init__(self, model: nn.Module, name: str, *arguments: str) -> None:
        super().__init__()
        self.model, self.name, self.arguments = model, name, arguments

    def forward(self, *values: torch.Tensor) -> torch.Tensor:
        result = self.model(**dict(zip(self.arguments, values, strict=True)))
        return getattr(result, self.name)


_SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 90}


def bert() -> nn.Module:
    config = transformers.BertConfig(
        **_SMALL,
        intermediate_size=64,
        max_position_embeddings=64,
        hidden_dropout_prob=0,
        attention_probs_dropout_prob=0,
    )
    model = transformers.BertForSequenceClassification(config)
    return Last(model, "logits", "input_ids", "attention_mask")


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        n_layer=2,
        n_embd=32,
        n_head=2,
        n_positions=64,
        vocab_size=90,
        use_cache=False,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
    )
    return Last(transformers.GPT2LMHeadModel(config), "logits", "input_ids", "attention_mask")


def llama() -> nn.Module:
    config = transformers.LlamaConfig(
        **_SMALL, num_key_value_heads=2, intermediate_size=64, use_cache=False
    )
    return Last(transformers.LlamaForCausalLM(config), "logits", "input_ids", "attention_mask")


def t5() -> nn.Module:
    config = transformers.T5Config(
        vocab_size=90,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        dropout_rate=0,
        use_cache=False,
        decoder_start_token_id=0,
    )
    model = transformers.T5ForConditionalGeneration(config)
    return Last(model, "logits", "input_ids", "attention_mask", "decoder_input_ids")


def whisper_encoder() -> nn.Module:
    config = transformers.WhisperConfig(
        d_model=32,
        encoder_layers=2,
        encoder_attention_heads=4,
        encoder_ffn_dim=64,
        num_mel_bins=8,
        max_source_positions=30,
    )
    model = transformers.models.whisper.modeling_whisper.WhisperEncoder(config)
    return Last(model, "last_hidden_state", "input_features")


def vit() -> nn.Module:
    config = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=16,
        patch_size=4,
    )
    return Last(transformers.ViTForImageClassification(config), "logits", "pixel_values")


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Linear(16, 4), nn.LogSoftmax(-1)
    )


class Lstm(nn.Module):
    """The last state of an LSTM of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 8, num_layers=2, batch_first=True, bidirectional=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x)[0][:, -1]


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )


# Name: what makes the model, what makes its inputs, how many sizes that takes.
MODELS: dict[str, tuple[Callable[[], nn.Module], Inputs, int]] = {
    "mlp with batch norm": (mlp, lambda b: [torch.randn(b, 6)], 1),
    "lstm": (Lstm, lambda b: [torch.randn(b, 5, 6)], 1),
    "cnn": (cnn, lambda h, w: [torch.randn(2, 3, h + 6, w + 7)], 2),
    "bert": (bert, tokens, 2),
    "gpt2": (gpt2, tokens, 2),
    "llama": (llama, tokens, 2),
    "t5": (t5, lambda b, s: [*tokens(b, s), torch.randint(0, 90, (b, 7))], 2),
    "whisper encoder": (whisper_encoder, lambda b: [torch.randn(b, 8, 60)], 1),
    "vit": (vit, lambda b: [torch.randn(b, 3, 16, 16)], 1),
}


def sizes(count: int, calls: int) -> list[tuple[int, ...]]:
    """Return tuples of `count` distinct sizes."""
    generator = torch.Generator().manual_seed(0)
    drawn = []
    for _ in range(calls):
        order = torch.randperm(30, generator=generator)[:count] + 3
        drawn.append(tuple(order.tolist()))
    return drawn


def outcome(
    call: Callable[..., torch.Tensor], model: nn.Module, given: Sequence[Any], training: bool
) -> list[torch.Tensor]:
    """Return the result, and in training the gradients and the buffers (BatchNorm's) too."""
    if not training:
        with torch.no_grad():
            return [call(*given)]
    kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.zero_grad()
    result = call(*given)
    weights = torch.linspace(-1, 1, result.numel()).reshape(result.shape)
    (result * weights).mean().backward()
    found = [result.detach()]
    found += [p.grad.clone() for p in model.parameters() if p.grad is not None]
    for name, buffer in model.named_buffers():
        found.append(buffer.clone())
        buffer.copy_(kept[name])
    return found


# The training step contains the forward pass, if with other programs.
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "training",
    [pytest.param(False, marks=pytest.mark.full, id="forward"), pytest.param(True, id="training")],
)
@pytest.mark.parametrize("name", MODELS)
def test_padding_does_not_show(name: str, training: bool, request: pytest.FixtureRequest) -> None:
    make, inputs, count = MODELS[name]
    torch.manual_seed(0)
    model = make().train(training)
    call = torch.compile(
        model, backend="tpu", dynamic=True, options={"fallback": "error", "buckets": "pow2"}
    )
    for size in sizes(count, 20 if request.config.getoption("--full") else 3):
        given = inputs(*size)
        wanted = outcome(model, model, given, training)
        reference = None
        for fill in FILLS.values():
            with padding_filled(fill):
                found = outcome(call, model, given, training)
            if reference is None:
                reference = found
                torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
            assert all(map(bits_equal, found, reference)), f"padding shows at sizes {size}"
    assert tpu_compile.stats().exact_graphs == 0
