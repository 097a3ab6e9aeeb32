"""The models' sizes, which both sides share, and the conditions that ours must meet."""

from __future__ import annotations

from dataclasses import dataclass

# Ours over JAX's. Operations may differ in either direction, the rest only upwards.
FLOPS_TOLERANCE = 0.01
BYTES_TOLERANCE = 0.05
CYCLES_TOLERANCE = 0.05

TARGETS = ("v5e", "v6e", "tpu7x")
KINDS = ("forward", "training")

LEARNING_RATE = 0.01
EPSILON = 1e-5
MOMENTUM = 0.1
"""Of batch norm's running statistics, as torch means it: the share of the new."""
ROPE_BASE = 10000.0


@dataclass(frozen=True)
class Size:
    """One model: shape of its input `[batch, ...]`, dtype of weights and activations, widths."""

    input: tuple[int, ...]
    dtype: str
    width: int
    hidden: int = 0
    heads: int = 0
    key_heads: int = 0

    @property
    def head_width(self) -> int:
        """Features of one attention head."""
        return self.width // self.heads


SIZES = {
    # Channels are dim 1 here; in JAX they are the last.
    "mlp": Size((1024, 512), "float32", 512, hidden=1024),
    "gpt2": Size((8, 256, 512), "bfloat16", 512, hidden=2048, heads=8, key_heads=8),
    "llama": Size((8, 256, 512), "bfloat16", 512, hidden=1408, heads=8, key_heads=2),
    "resnet": Size((8, 128, 16, 16), "bfloat16", 128),
}

SMALL = {
    "mlp": Size((16, 24), "float32", 24, hidden=48),
    "gpt2": Size((2, 16, 32), "bfloat16", 32, hidden=64, heads=4, key_heads=4),
    "llama": Size((2, 16, 32), "bfloat16", 32, hidden=48, heads=4, key_heads=2),
    "resnet": Size((4, 8, 6, 6), "bfloat16", 8),
}
"""For the check that both sides compute the same function, which runs on the CPU."""
