"""The models, at their real sizes with random weights: each gives logits, on inputs of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

# Dropout draws from another generator in each competitor, so that no two losses would agree.
NO_DROPOUT = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}


class Logits(nn.Module):
    """A model of transformers as a function from tensors to its logits."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Return the logits of token ids `[batch, time]` or pixels `[batch, 3, height, width]`."""
        return self.model(data).logits


class Translator(Logits):
    """An encoder and decoder of transformers."""

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """Return the logits `[batch, time, vocabulary]` of the target's tokens."""
        return self.model(input_ids=source, decoder_input_ids=target).logits


class Recurrent(nn.Module):
    """A language model of `nn.LSTM`."""

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits `[batch, time, vocabulary]` of token ids `[batch, time]`."""
        return self.head(self.lstm(self.embedding(tokens))[0])


@dataclass(frozen=True)
class Work:
    """A model with what it is called with."""

    module: nn.Module
    inputs: tuple[torch.Tensor, ...]
    targets: torch.Tensor
    """Classes, one for each row of logits."""


@dataclass(frozen=True)
class Model:
    """How a model of the benchmarks is made."""

    title: str
    make: Callable[[bool], Work]
    """Takes whether it is to be quick."""

    def work(self, *, quick: bool, training: bool = False) -> Work:
        """Return the model with random weights, always the same ones."""
        torch.manual_seed(0)
        work = self.make(quick)
        work.module.train(training)
        return work


def _tokens(vocabulary: int, batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, vocabulary, (batch, length))


def _transformers() -> Any:
    import transformers

    transformers.logging.set_verbosity_error()
    return transformers


def _on_images(model: Any, batch: int, side: int) -> Work:
    images = torch.randn(batch, 3, side, side)
    return Work(Logits(model), (images,), torch.randint(0, 1000, (batch,)))


def _resnet(quick: bool) -> Work:
    library = _transformers()
    sizes = {"hidden_sizes": [16, 32], "depths": [1, 1], "embedding_size": 8} if quick else {}
    config = library.ResNetConfig(num_labels=1000, **sizes)
    model = library.ResNetForImageClassification(config)
    side, batch = (32, 2) if quick else (224, 4)
    return _on_images(model, batch, side)


def _vit(quick: bool) -> Work:
    library = _transformers()
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2} if quick else {}
    side, batch = (32, 2) if quick else (224, 2)
    config = library.ViTConfig(num_labels=1000, image_size=side, **NO_DROPOUT, **sizes)
    model = library.ViTForImageClassification(config)
    return _on_images(model, batch, side)


def _bert(quick: bool) -> Work:
    library = _transformers()
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2} if quick else {}
    config = library.BertConfig(**NO_DROPOUT, **sizes)
    tokens = _tokens(config.vocab_size, 2, 16 if quick else 128)
    return Work(Logits(library.BertForMaskedLM(config)), (tokens,), tokens.roll(1, 1))


def gpt2_model(quick: bool, *, cache: bool = False) -> Any:
    """Return GPT-2 of transformers, 124M parameters."""
    library = _transformers()
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 2} if quick else {}
    config = library.GPT2Config(use_cache=cache, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, **sizes)
    return library.GPT2LMHeadModel(config)


def llama_model(quick: bool, *, cache: bool = False) -> Any:
    """Return a Llama of transformers, 148M parameters."""
    library = _transformers()
    layers, width, heads, vocabulary = (1, 32, 2, 256) if quick else (14, 768, 12, 32000)
    config = library.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=8 * width // 3,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=1024,
        use_cache=cache,
        bos_token_id=None,
        eos_token_id=None,
    )
    return library.LlamaForCausalLM(config)


def _gpt2(quick: bool) -> Work:
    tokens = _tokens(50257, 2, 16 if quick else 128)
    return Work(Logits(gpt2_model(quick)), (tokens,), tokens.roll(1, 1))


def _llama(quick: bool) -> Work:
    model = llama_model(quick)
    tokens = _tokens(model.config.vocab_size, 2, 16 if quick else 128)
    return Work(Logits(model), (tokens,), tokens.roll(1, 1))


def _t5(quick: bool) -> Work:
    library = _transformers()
    small = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2}
    sizes = small if quick else {}
    config = library.T5Config(dropout_rate=0, use_cache=False, **sizes)
    source = _tokens(config.vocab_size, 2, 16 if quick else 128)
    target = _tokens(config.vocab_size, 2, 8 if quick else 64)
    model = Translator(library.T5ForConditionalGeneration(config))
    return Work(model, (source, target), target.roll(1, 1))


def _lstm(quick: bool) -> Work:
    # Dynamo does not trace recurrent modules unless told to.
    torch._dynamo.config.allow_rnn = True
    vocabulary, width, length = (64, 16, 8) if quick else (10000, 512, 32)
    tokens = _tokens(vocabulary, 8, length)
    return Work(Recurrent(vocabulary, width, 2), (tokens,), tokens.roll(1, 1))


MODELS: dict[str, Model] = {
    "resnet50": Model("ResNet-50, 4 images of 224 x 224", _resnet),
    "bert": Model("BERT-base, 2 x 128 tokens", _bert),
    "gpt2": Model("GPT-2 124M, 2 x 128 tokens", _gpt2),
    "llama": Model("Llama-style 148M, 2 x 128 tokens", _llama),
    "vit": Model("ViT-B/16, 2 images of 224 x 224", _vit),
    "t5": Model("T5-small, 2 x 128 tokens to 2 x 64", _t5),
    "lstm": Model("LSTM, 2 layers of 512, 8 x 32 tokens", _lstm),
}
