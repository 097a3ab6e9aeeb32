"""How far two tensors are apart, and how far they may be for their dtype."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

# Relative and absolute, those of `torch.testing.assert_close`; what is not here has to be equal.
TOLERANCES: dict[torch.dtype, tuple[float, float]] = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.complex64: (1.3e-6, 1e-5),
    torch.complex128: (1e-7, 1e-7),
    # Two numbers of these are at least this far apart.
    torch.float8_e4m3fn: (0.125, 2**-9),
    torch.float8_e4m3fnuz: (0.125, 2**-10),
    torch.float8_e5m2: (0.25, 2**-16),
    torch.float8_e5m2fnuz: (0.25, 2**-17),
}

WIDER = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}

# How much farther from the float64 result than eager's own result ours may be: two good sums of
# the same numbers, added in another order, differ by less.
ARBITRATION_FACTOR = 3.0


@dataclass(frozen=True)
class Difference:
    """Where two tensors differ the most, in terms of what is allowed there."""

    error: float
    """The difference of the two elements; NaN where it is no number."""
    tolerance: float
    """What is allowed there."""
    ratio: float
    """Error by tolerance; infinite where nothing is allowed."""
    note: str = ""
    """What differs, if it is not the values."""

    @property
    def is_beyond(self) -> bool:
        """Whether the two differ by more than is allowed."""
        return self.ratio > 1.0


def compare(ours: torch.Tensor, expected: torch.Tensor) -> Difference:
    """Return the worst difference of two tensors; NaN equals NaN.

    Allowed is `rtol * |expected| + atol * min(1, s)`, where `s` is the largest finite
    `|expected|`: an absolute tolerance of 1e-5 would let through whatever is done to tensors of
    small numbers.
    """
    for what, one, other in (
        ("dtype", ours.dtype, expected.dtype),
        ("shape", tuple(ours.shape), tuple(expected.shape)),
    ):
        if one != other:
            return Difference(math.nan, 0.0, math.inf, f"{what} {one}, expected {other}")
    if expected.numel() == 0:
        return Difference(0.0, 0.0, 0.0)
    if expected.dtype not in TOLERANCES:
        return _compare_exactly(ours, expected)
    one, other = wide(ours), wide(expected)
    same = (one == other) | (one.isnan() & other.isnan())
    size = other.abs()
    finite = size[size.isfinite()]
    scale = float(finite.max()) if finite.numel() else 1.0
    rtol, atol = TOLERANCES[expected.dtype]
    # Numbers below the smallest normal one may be flushed to zero.
    floor = torch.finfo(expected.dtype).tiny
    allowed = rtol * size.nan_to_num(posinf=0.0) + atol * min(1.0, scale or 1.0) + floor
    error = (one - other).abs().masked_fill(same, 0.0)
    # NaN for a number, one infinity for the other.
    ratio = (error / allowed).nan_to_num(nan=math.inf)
    worst = int(ratio.argmax())
    return Difference(
        float(error.flatten()[worst]), float(allowed.flatten()[worst]), float(ratio.max())
    )


def _compare_exactly(ours: torch.Tensor, expected: torch.Tensor) -> Difference:
    differ = ours != expected
    if not bool(differ.any()):
        return Difference(0.0, 0.0, 0.0)
    error = float((ours[differ].double() - expected[differ].double()).abs().max())
    return Difference(error, 0.0, math.inf)


def wide(value: Any) -> Any:
    """Return a tensor, or a dtype, in float64 or complex128; anything else as it is."""
    if isinstance(value, torch.dtype):
        return WIDER.get(value, value)
    if not isinstance(value, torch.Tensor):
        return value
    is_float = value.dtype.is_floating_point
    return value.to(WIDER.get(value.dtype, torch.float64 if is_float else value.dtype))


def widened(tree: Any) -> Any:
    """Return a tree of arguments with every tensor and dtype in it made `wide`."""
    return pytree.tree_map(wide, tree)


def is_as_near(ours: torch.Tensor, expected: torch.Tensor, reference: torch.Tensor) -> bool:
    """Whether `ours` is about as near to a float64 `reference` as `expected` is, or nearer."""
    if reference.shape != ours.shape or expected.dtype not in WIDER:
        return False
    return distance(ours, reference) <= ARBITRATION_FACTOR * distance(expected, reference)


def distance(value: torch.Tensor, reference: torch.Tensor) -> float:
    """Return the largest difference of a tensor from a float64 one; infinite if one is none."""
    one = wide(value)
    same = (one == reference) | (one.isnan() & reference.isnan())
    error = (one - reference).abs().masked_fill(same, 0.0).nan_to_num(nan=math.inf)
    return float(error.max()) if error.numel() else 0.0


def excuse_of(
    ours: torch.Tensor, expected: torch.Tensor, reference: torch.Tensor | None
) -> str | None:
    """Return why a difference from eager is none of ours; None if there is no such reason."""
    if not isinstance(reference, torch.Tensor) or not is_as_near(ours, expected, reference):
        return None
    mine, eager = distance(ours, reference), distance(expected, reference)
    nearer = "nearer" if mine < eager else "as near"
    return f"{nearer} to float64 than eager is ({mine:.1e}, {eager:.1e})"
