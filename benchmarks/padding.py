"""What hiding padding costs: a padded program beside the exact one of the same physical shape.

Both run the same ops on tensors of the same sizes; the padded one takes the sizes of the call, and
has the masks. Called at its bucket's own size it pads and cuts nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from benchmarks.harness import OURS, Result, interleave

EXACT = "exact shapes"


def mask_cost(*, quick: bool) -> list[Result]:
    """Time GPT-2 (4 layers, 256 wide, 8 by 128 tokens) padded, forward and with backward."""
    from benchmarks.suites import Gpt2

    torch.manual_seed(0)
    batch, length = (8, 32) if quick else (8, 128)
    module = Gpt2(2 if quick else 4, 256, 256).eval()
    tokens = torch.randint(0, 50257, (batch, length))
    rounds = 2 if quick else 11
    forwards: dict[str, Callable[[], torch.Tensor]] = {}
    for name, dynamic in ((OURS, True), (EXACT, False)):
        compiled = _compiled(module, dynamic)
        forwards[name] = lambda call=compiled: call(tokens)  # type: ignore[misc]
    with torch.no_grad():
        forward = interleave(forwards, rounds=rounds)
    steps = {name: _step(module, call) for name, call in forwards.items()}
    return [
        Result("GPT-2 forward, masks", forward),
        Result("GPT-2 forward and backward, masks", interleave(steps, rounds=rounds)),
    ]


def _compiled(module: nn.Module, dynamic: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    # A function of its own, or the second would find the first one's graphs.
    def call(tokens: torch.Tensor) -> torch.Tensor:
        return module(tokens)  # type: ignore[no-any-return]

    return torch.compile(call, backend="tpu", dynamic=dynamic, options={"buckets": "pow2"})


def _step(module: nn.Module, forward: Callable[[], torch.Tensor]) -> Callable[[], None]:
    def step() -> None:
        module.zero_grad()
        forward().logsumexp(-1).mean().backward()

    return step
