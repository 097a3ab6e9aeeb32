"""What hiding padding costs: a padded program beside the exact one of the same physical shape.

Both run the same ops on tensors of the same sizes; the padded one takes the sizes of the call, and
has the masks. Called at its bucket's own size it pads and cuts nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from benchmarks.harness import agreeing
from benchmarks.peers import Contest
from benchmarks.registry import Case, Settings, Suite
from benchmarks.results import OURS, Measured
from benchmarks.zoo import Logits

EXACT = "exact shapes"


def gpt2(*, layers: int, width: int) -> nn.Module:
    """Return a small GPT-2 of transformers without a cache."""
    import transformers

    transformers.logging.set_verbosity_error()
    config = transformers.GPT2Config(
        n_layer=layers, n_embd=width, n_head=width // 64, n_positions=256, use_cache=False
    )
    return Logits(transformers.GPT2LMHeadModel(config)).eval()


def _calls(quick: bool) -> tuple[nn.Module, dict[str, Callable[[], torch.Tensor]]]:
    torch.manual_seed(0)
    batch, length = (8, 32) if quick else (8, 128)
    module = gpt2(layers=2 if quick else 4, width=64 if quick else 256)
    tokens = torch.randint(0, 50257, (batch, length))
    calls: dict[str, Callable[[], torch.Tensor]] = {}
    for name, dynamic in ((OURS, True), (EXACT, False)):
        compiled = _compiled(module, dynamic)
        calls[name] = lambda call=compiled: call(tokens)
    return module, calls


def _forward(settings: Settings) -> Measured:
    _, calls = _calls(settings.quick)
    with torch.no_grad():
        right, wrong = agreeing(calls, calls[EXACT]())
        return Contest(right, {}, wrong).timed(rounds=settings.rounds_or(11))


def _backward(settings: Settings) -> Measured:
    module, calls = _calls(settings.quick)
    steps = {name: _step(module, call) for name, call in calls.items()}
    right, wrong = agreeing(steps, steps[EXACT]())
    return Contest(right, {}, wrong).timed(rounds=settings.rounds_or(11))


def _compiled(module: nn.Module, dynamic: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    # A function of its own, or the second would find the first one's graphs.
    def call(tokens: torch.Tensor) -> torch.Tensor:
        return module(tokens)  # type: ignore[no-any-return]

    return torch.compile(call, backend="tpu", dynamic=dynamic, options={"buckets": "pow2"})


def _step(module: nn.Module, forward: Callable[[], torch.Tensor]) -> Callable[[], object]:
    def step() -> object:
        module.zero_grad()
        loss = forward().logsumexp(-1).mean()
        loss.backward()
        return loss.detach(), next(module.parameters()).grad

    return step


SIZES = "GPT-2 of 4 layers, 256 wide, on 8 x 128 tokens"
SUITE = Suite(
    "padding",
    (
        Case("gpt2-forward", f"{SIZES}, forward, padded to its own size", _forward),
        Case("gpt2-backward", f"{SIZES}, forward and backward, padded to its own size", _backward),
    ),
)
