"""GPT-2 (124M parameters) as a model that `tpu-compile-inspect` can be asked about.

No TPU is needed, and no weights: only shapes count.

    tpu-compile-inspect fit examples/gpt2.py:gpt2 --target v6e --batch 1,8,64
    tpu-compile-inspect fit examples/gpt2.py:gpt2_training --target v6e --batch 1,8,64
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers

import tpu_compile

Made = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def gpt2(batch: int = 1, seq: int = 1024) -> Made:
    """Return a forward pass in bfloat16, for inference."""
    config = transformers.GPT2Config(use_cache=False)
    model = transformers.GPT2LMHeadModel(config).to(torch.bfloat16).eval().requires_grad_(False)
    return model, (), {"input_ids": torch.randint(0, config.vocab_size, (batch, seq))}


def gpt2_training(batch: int = 1, seq: int = 1024) -> Made:
    """Return a training step: forward and backward in bfloat16 under autocast, AdamW in float32."""
    config = transformers.GPT2Config(use_cache=False, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    model = transformers.GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    compiled = torch.compile(model, backend="tpu")
    update = torch.compile(lambda: optimizer.step(), backend="tpu")

    def step(tokens: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = compiled(input_ids=tokens, labels=tokens).loss
        loss.backward()
        update()
        return loss.detach()

    return step, (torch.randint(0, config.vocab_size, (batch, seq)),), {}


def main() -> None:
    """Say what one call of the model becomes; nothing is compiled, and nothing runs."""
    model, _, inputs = gpt2(seq=128)
    lowered = tpu_compile.lower(model, **inputs)
    for program in lowered.programs:
        lines = program.stablehlo.count("\n")
        print(f"{program.title}: {lines} lines of StableHLO, {program.where}")
    print(f"fallbacks     {len(lowered.fallbacks)}")
    print(f"XLA compiles  {tpu_compile.stats().xla_compiles}")


if __name__ == "__main__":
    main()
