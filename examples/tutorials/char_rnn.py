"""A character-level LSTM that learns to write the Zen of Python.

    python examples/tutorials/char_rnn.py [tpu|cpu]

Nothing but the line `device = ...` knows of the TPU.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import sys

import torch
from torch import nn

import tpu_compile.device  # noqa: F401

device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "tpu")

with contextlib.redirect_stdout(io.StringIO()):
    import this

TEXT = codecs.decode(this.s, "rot13")
CHARACTERS = sorted(set(TEXT))
INDEX = {character: index for index, character in enumerate(CHARACTERS)}
LENGTH = 32
BATCH = 16


class CharRNN(nn.Module):
    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.encoder = nn.Embedding(len(CHARACTERS), hidden)
        self.rnn = nn.LSTM(hidden, hidden, batch_first=True)
        self.decoder = nn.Linear(hidden, len(CHARACTERS))

    def forward(
        self, text: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor] | None = None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        output, state = self.rnn(self.encoder(text), state)
        return self.decoder(output), state


def batch(data: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    starts = torch.randint(0, len(data) - LENGTH - 1, (BATCH,))
    pieces = torch.stack([data[start : start + LENGTH + 1] for start in starts])
    return pieces[:, :-1].to(device), pieces[:, 1:].to(device)


@torch.no_grad()
def sample(model: nn.Module, prompt: str, length: int) -> str:
    model.eval()
    written, state = prompt, None
    text = torch.tensor([[INDEX[character] for character in prompt]], device=device)
    for _ in range(length):
        logits, state = model(text, state)
        best = logits[:, -1].argmax(dim=-1, keepdim=True)
        written += CHARACTERS[best.item()]
        text = best
    return written


def main() -> None:
    torch.manual_seed(0)
    data = torch.tensor([INDEX[character] for character in TEXT])
    model = CharRNN().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    loss_function = nn.CrossEntropyLoss()
    for step in range(61):
        text, target = batch(data)
        logits, _ = model(text)
        loss = loss_function(logits.flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.6f}")
    print(repr(sample(model, "Beautiful", 40)))


if __name__ == "__main__":
    main()
