"""A transformer language model on the characters of the Zen of Python.

    python examples/tutorials/transformer_lm.py [tpu|cpu]

Nothing but the line `device = ...` knows of the TPU.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import math
import sys

import torch
from torch import nn

import tpu_compile.device  # noqa: F401

device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "tpu")

with contextlib.redirect_stdout(io.StringIO()):
    import this

TEXT = codecs.decode(this.s, "rot13")
CHARACTERS = sorted(set(TEXT))
LENGTH = 32
BATCH = 16


class PositionalEncoding(nn.Module):
    def __init__(self, features: int, length: int = 128) -> None:
        super().__init__()
        position = torch.arange(length).unsqueeze(1)
        scale = torch.exp(torch.arange(0, features, 2) * (-math.log(10000.0) / features))
        encoding = torch.zeros(length, features)
        encoding[:, 0::2] = torch.sin(position * scale)
        encoding[:, 1::2] = torch.cos(position * scale)
        self.register_buffer("encoding", encoding)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.encoding[: x.size(1)]


class TransformerModel(nn.Module):
    def __init__(self, features: int = 64, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.features = features
        self.embedding = nn.Embedding(len(CHARACTERS), features)
        self.position = PositionalEncoding(features)
        layer = nn.TransformerEncoderLayer(
            features, heads, 4 * features, dropout=0.0, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.linear = nn.Linear(features, len(CHARACTERS))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.position(self.embedding(text) * math.sqrt(self.features))
        mask = nn.Transformer.generate_square_subsequent_mask(text.size(1), device=text.device)
        return self.linear(self.encoder(x, mask=mask, is_causal=True))


def main() -> None:
    torch.manual_seed(0)
    index = {character: place for place, character in enumerate(CHARACTERS)}
    data = torch.tensor([index[character] for character in TEXT])
    model = TransformerModel().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40)
    criterion = nn.CrossEntropyLoss()
    for step in range(41):
        starts = torch.randint(0, len(data) - LENGTH - 1, (BATCH,))
        pieces = torch.stack([data[start : start + LENGTH + 1] for start in starts]).to(device)
        logits = model(pieces[:, :-1])
        loss = criterion(logits.reshape(-1, len(CHARACTERS)), pieces[:, 1:].reshape(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
