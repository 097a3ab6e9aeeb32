"""What the device `tpu` costs: one op, and a training step of a small transformer in each mode.

Competitors of one op: CPU eager, and our device in eager mode (the op runs) and in fused mode (it
is recorded). Competitors of a step: CPU eager, our compiled step on CPU tensors and on device
tensors, and the device's modes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn

from benchmarks.harness import difference
from benchmarks.peers import Contest
from benchmarks.registry import Case, Settings, Suite
from benchmarks.results import OURS, Measured

FUSED = "ours, fused"
COMPILED = "ours, compiled"
COMPILED_CPU = "ours, compiled on cpu"
REPEATS = 100


def _one_op(settings: Settings) -> Measured:
    """Time `x + y` of 8 elements: dispatch in eager mode, recording in fused mode."""
    import tpu_compile.device

    x, y = torch.randn(8), torch.randn(8)
    given, other = x.to("tpu"), y.to("tpu")
    kept: list[torch.Tensor] = []

    def fused() -> None:
        with tpu_compile.device.mode("fused"):
            for _ in range(REPEATS):
                kept.append(given + other)
            # Nothing of the trace is alive then, so that leaving the block runs nothing.
            kept.clear()

    def in_eager() -> None:
        for _ in range(REPEATS):
            given + other

    def on_cpu() -> None:
        for _ in range(REPEATS):
            x + y

    off = difference(x + y, given + other)
    if off is not None:
        return Measured(wrong={OURS: off})
    calls = Contest({OURS: in_eager, FUSED: fused, "eager": on_cpu})
    return calls.timed(rounds=settings.rounds_or(20), parts=REPEATS)


class Language(nn.Module):
    """A transformer on tokens: 2 layers, 32 wide, 4 heads."""

    def __init__(self, tokens: int = 64, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, tokens)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Return logits, [batch, length, tokens], of `text`, [batch, length]."""
        mask = nn.Transformer.generate_square_subsequent_mask(text.size(1), device=text.device)
        return self.head(self.encoder(self.embedding(text), mask=mask, is_causal=True))


def _training(settings: Settings) -> Measured:
    """Time forward, backward and AdamW of a small transformer, 8 by 16 tokens, read each step."""
    import tpu_compile.device

    torch.manual_seed(0)
    model = Language()
    text, target = torch.randint(0, 64, (8, 16)), torch.randint(0, 64, (8, 16))

    def step_of(device: str, *, compiled: bool) -> Callable[[], float]:
        own = copy.deepcopy(model).to(device)
        run = torch.compile(own, backend="tpu") if compiled else own
        optimizer = torch.optim.AdamW(own.parameters(), lr=1e-3)
        update = torch.compile(optimizer.step, backend="tpu") if compiled else optimizer.step
        given, wanted = text.to(device), target.to(device).flatten()

        def step() -> float:
            loss = nn.functional.cross_entropy(run(given).flatten(0, 1), wanted)
            loss.backward()
            update()
            optimizer.zero_grad()
            return loss.item()

        return step

    fused_step = step_of("tpu", compiled=False)

    def fused() -> float:
        with tpu_compile.device.mode("fused"):
            return fused_step()

    calls = {
        OURS: step_of("tpu", compiled=False),
        FUSED: fused,
        COMPILED: step_of("tpu", compiled=True),
        COMPILED_CPU: step_of("cpu", compiled=True),
        "eager": step_of("cpu", compiled=False),
    }
    losses = {name: [call() for _ in range(3)] for name, call in calls.items()}
    offs = {name: difference(losses["eager"], found) for name, found in losses.items()}
    wrong = {name: off for name, off in offs.items() if off}
    right = {name: call for name, call in calls.items() if name not in wrong}
    return Contest(right, {}, wrong).timed(rounds=settings.rounds_or(20))


SUITE = Suite(
    "device",
    (
        Case("op", "one cached op on 8 elements, at once, recorded, and on the CPU", _one_op),
        Case("training", "training step of a small transformer in each mode", _training),
    ),
)
