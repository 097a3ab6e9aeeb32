"""Generates greedily with a small Llama, compiled, beside eager PyTorch.

The weights are random (fixed seed), so the text means nothing; what counts is that both choose the
same tokens. A static cache keeps the shapes fixed: one program reads the prompt, one makes every
further token. Prints the tokens, tokens per second, and the number of XLA compiles. Exits with 1 if
a token differs, if generating a second time compiles again, or if an op ran outside the compiled
programs.

    python examples/generate_text.py
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

import tpu_compile

PROMPT = "A compiler reads the whole program before it runs any of it."
NEW_TOKENS = 48
CONFIG = LlamaConfig(
    vocab_size=256,  # one token a byte: no tokenizer to carry
    hidden_size=256,
    intermediate_size=704,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=4,
    max_position_embeddings=256,
    bos_token_id=None,
    eos_token_id=None,
)


class Generator:
    """Greedy generation with one model and one static cache, reset before each text."""

    def __init__(self, model: LlamaForCausalLM, call: Callable[..., object], length: int) -> None:
        self.call = call
        self.cache = StaticCache(config=model.config, max_cache_len=length)
        heads = model.config.num_key_value_heads
        # Made before the first call: a cache that is made inside the compiled function would
        # change from absent to present and so compile twice.
        self.cache.early_initialization(
            1, heads, model.config.head_dim, torch.float32, torch.device("cpu")
        )

    def generate(self, prompt: torch.Tensor) -> tuple[list[int], float]:
        """Return the new tokens and the seconds they took, for a prompt [1, tokens]."""
        self.cache.reset()
        tokens: list[int] = []
        begin = time.perf_counter()
        with torch.no_grad():
            inputs = prompt
            for _ in range(NEW_TOKENS):
                logits = self.call(inputs, cache=self.cache).logits
                inputs = logits[:, -1:].argmax(-1)
                tokens.append(inputs.item())
        return tokens, time.perf_counter() - begin


def main() -> int:
    """Generate with both and return the exit code."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(CONFIG).eval()
    prompt = torch.tensor([list(PROMPT.encode())])
    length = prompt.shape[1] + NEW_TOKENS
    eager = Generator(model, model, length)
    ours = Generator(model, torch.compile(model, backend="tpu", fullgraph=True), length)

    print(f"prompt: {PROMPT!r}")
    print("compiling; the first text takes longer ...", flush=True)
    first, first_seconds = ours.generate(prompt)
    compiles = tpu_compile.stats().xla_compiles
    tokens, our_seconds = ours.generate(prompt)
    recompiles = tpu_compile.stats().xla_compiles - compiles
    eager.generate(prompt)
    expected, eager_seconds = eager.generate(prompt)

    print(f"eager:    {bytes(expected)!r}")
    print(f"compiled: {bytes(tokens)!r}\n")
    print(f"first text with compiling  {first_seconds:.2f} s")
    print(f"eager                      {NEW_TOKENS / eager_seconds:.0f} tokens/s")
    print(f"compiled                   {NEW_TOKENS / our_seconds:.0f} tokens/s")
    print(f"XLA compiles               {compiles + recompiles}")

    failures = [f"{op} ran in eager PyTorch" for op in tpu_compile.stats().fallback_ops]
    if first != expected or tokens != expected:
        failures.append("the compiled model chose other tokens than eager")
    if recompiles:
        failures.append(f"generating the second text compiled {recompiles} programs")
    for failure in failures:
        print(f"FAILED: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
