"""Generates with transformers' `generate` and its default cache, compiled, beside eager PyTorch.

The cache grows by one position with each token, so every call has a new size. Programs are compiled
for a few sizes only, and calls are padded to them. The weights are random (fixed seed). Prints the
number of XLA compiles, the waste, and tokens per second. Exits with 1 if a token differs from
eager's, if more than 12 programs were compiled, if generating again compiles, or if an op ran
outside the compiled programs.

    python examples/growing_cache.py
"""

from __future__ import annotations

import sys
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import tpu_compile

PROMPT = "A compiler reads the whole program before it runs any of it."
NEW_TOKENS = 256
MOST_COMPILES = 12
CONFIG = LlamaConfig(
    vocab_size=256,  # one token a byte: no tokenizer to carry
    hidden_size=128,
    intermediate_size=352,
    num_hidden_layers=3,
    num_attention_heads=8,
    num_key_value_heads=4,
    max_position_embeddings=512,
    bos_token_id=None,
    eos_token_id=None,
)


def generate(model: LlamaForCausalLM, prompt: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Return prompt and new tokens, [1, tokens], and the seconds it took."""
    begin = time.perf_counter()
    tokens = model.generate(
        prompt, max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0, eos_token_id=None
    )
    return tokens, time.perf_counter() - begin


def main() -> int:
    """Generate with both and return the exit code."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(CONFIG).eval()
    prompt = torch.tensor([list(PROMPT.encode())])
    generate(model, prompt)
    expected, eager_seconds = generate(model, prompt)

    model.forward = torch.compile(model.forward, backend="tpu")
    print("compiling; the first text takes longer ...", flush=True)
    first, first_seconds = generate(model, prompt)
    compiles = tpu_compile.stats().xla_compiles
    tokens, our_seconds = generate(model, prompt)
    stats = tpu_compile.stats()
    recompiles = stats.xla_compiles - compiles
    waste = stats.padded_elements / (stats.padded_elements + stats.useful_elements)

    print(f"{NEW_TOKENS} tokens after a prompt of {prompt.shape[1]}\n")
    print(f"first text with compiling  {first_seconds:.2f} s")
    print(f"eager                      {NEW_TOKENS / eager_seconds:.0f} tokens/s")
    print(f"compiled                   {NEW_TOKENS / our_seconds:.0f} tokens/s")
    print(f"padding                    {waste:.0%} of the elements of padded inputs")
    print(f"XLA compiles               {stats.xla_compiles}")

    failures = [f"{op} ran in eager PyTorch" for op in stats.fallback_ops]
    if stats.exact_graphs:
        failures.append(f"{stats.exact_graphs} graphs compile for each size")
    if not (torch.equal(first, expected) and torch.equal(tokens, expected)):
        failures.append("the compiled model chose other tokens than eager")
    if compiles > MOST_COMPILES:
        failures.append(f"{compiles} programs were compiled, more than {MOST_COMPILES}")
    if recompiles:
        failures.append(f"generating the second text compiled {recompiles} programs")
    for failure in failures:
        print(f"FAILED: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
