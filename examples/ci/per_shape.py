"""Scores batches of every size with one program a size: what a check of recompiles is to catch.

tpu-compile-inspect recompiles per_shape.py --at-most 2
"""

from __future__ import annotations

import torch


def score(features: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return a number between 0 and 1 for each row, [batch]."""
    return torch.sigmoid(features @ weights)


def main() -> None:
    """Score batches of six sizes."""
    compiled = torch.compile(score, backend="tpu", dynamic=False)
    weights = torch.linspace(-1, 1, 4)
    for size in (3, 4, 5, 6, 7, 8):
        compiled(torch.ones(size, 4), weights)


if __name__ == "__main__":
    main()
