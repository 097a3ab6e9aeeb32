"""Generation token by token, with a cache of fixed size and with one that grows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.harness import Call, agreeing
from benchmarks.peers import Contest, make_each
from benchmarks.registry import Case, Settings
from benchmarks.results import OURS, Measured
from benchmarks.zoo import gpt2_model, llama_model

PROMPT = 16
NEW_TOKENS = 32
NO_CACHE = {
    name: "only PyTorch's compilers trace the cache objects of transformers"
    for name in ("jax.jit", "torch-xla2")
}


def _static_cache(model: Any, length: int) -> Any:
    from transformers import StaticCache

    config = model.config
    cache = StaticCache(config=config, max_cache_len=length)
    heads = config.num_attention_heads
    # Made before the first call, or a compiled function would see it appear and compile twice.
    cache.early_initialization(
        1, heads, config.hidden_size // heads, torch.float32, torch.device("cpu")
    )
    return cache


def generator(
    model: Any, call: Callable[..., Any], prompt: torch.Tensor, *, count: int, static: bool
) -> Call:
    """Return a call that generates `count` tokens greedily after a prompt `[1, tokens]`."""
    from transformers import DynamicCache

    fixed = _static_cache(model, prompt.shape[1] + count) if static else None

    def generate() -> torch.Tensor:
        if fixed is not None:
            fixed.reset()
        cache = DynamicCache(config=model.config) if fixed is None else fixed
        tokens, inputs = [], prompt
        for _ in range(count):
            logits = call(inputs, cache=cache, use_cache=True).logits
            inputs = logits[:, -1:].argmax(-1)
            tokens.append(inputs)
        return torch.cat(tokens)

    return generate


def _decode(make: Callable[..., Any], static: bool, settings: Settings) -> Measured:
    import tpu_compile

    torch.manual_seed(0)
    model = make(settings.quick, cache=True).eval()
    count = 4 if settings.quick else NEW_TOKENS
    prompt = torch.randint(0, model.config.vocab_size, (1, PROMPT))

    def maker(backend: str | None) -> Callable[[], Call]:
        def make_call() -> Call:
            call = model if backend is None else torch.compile(model, backend=backend)
            return generator(model, call, prompt, count=count, static=static)

        return make_call

    with torch.no_grad():
        calls, left_out = make_each(
            {OURS: maker("tpu"), "eager": maker(None), "inductor": maker("inductor")}
        )
        right, wrong = agreeing(calls, calls["eager"]())
        found = Contest(right, {**left_out, **NO_CACHE}, wrong)
        timed = found.timed(rounds=settings.rounds_or(7), parts=count)
    stats = tpu_compile.stats()
    facts = {
        "programs that tpu_compile compiled": str(stats.xla_compiles),
        "ops that it ran in eager PyTorch": ", ".join(stats.fallback_ops) or "none",
    }
    return Measured(**{**vars(timed), "facts": facts})


CASES = tuple(
    Case(
        f"{name}-decode-{cache}",
        f"{title}, {PROMPT} tokens read and {NEW_TOKENS} made with a {cache} cache, time of one",
        functools.partial(_decode, make, cache == "static"),
        limit=1200,
    )
    for name, title, make in (
        ("gpt2", "GPT-2 124M", gpt2_model),
        ("llama", "Llama-style 148M", llama_model),
    )
    for cache in ("static", "growing")
)
