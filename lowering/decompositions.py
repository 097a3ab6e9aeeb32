"""Which ATen ops are decomposed before lowering, and which composites are kept whole and why.

The table is torch's Core ATen table less the kept ones, and our own. Start-up refuses an overload
that is both decomposed and lowered: one of the two would never run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions
from torch._ops import OpOverload

from lowering.registry import REGISTRY

aten = torch.ops.aten

# Composites that torch's table would take apart and that are better lowered whole.
KEPT_WHOLE: dict[OpOverload, str] = {
    **dict.fromkeys(
        (aten.true_divide.Tensor, aten.true_divide.Scalar),
        "torch adds divisions by dynamic sizes to graphs that are decomposed already",
    ),
    aten._scaled_dot_product_flash_attention_for_cpu.default: (
        "the decomposition returns attention weights in the logsumexp slot, which makes the "
        "backward op silently wrong"
    ),
    **dict.fromkeys(
        (
            aten.reflection_pad1d.default,
            aten.reflection_pad2d.default,
            aten.reflection_pad3d.default,
            aten.replication_pad1d.default,
            aten.replication_pad2d.default,
            aten.replication_pad3d.default,
        ),
        "the decomposition gathers by computed indices where slices and reversals do",
    ),
    aten.roll.default: "the decomposition gathers by computed indices where two slices do",
}

# Ops outside torch's Core ATen table that torch can take apart.
EXTRA: tuple[Any, ...] = (
    aten.batch_norm_backward.default,
    aten._addmm_activation.default,
    aten.rrelu_with_noise_backward.default,
)

# Our own, from `lowering.composites`.
_OWN: dict[OpOverload, Callable[..., Any]] = {}


def decomposition(*overloads: OpOverload) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function, with the arguments of the ATen schema, for `overloads`.

    Raises:
        ValueError: one of them has a decomposition of ours already.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for overload in overloads:
            if overload in _OWN:
                raise ValueError(f"{overload} already has a decomposition")
            _OWN[overload] = function
        return function

    return register


@functools.cache
def decomposition_table() -> dict[OpOverload, Callable[..., Any]]:
    """Return the decompositions that capture applies, by overload.

    Raises:
        ValueError: an overload is both decomposed and lowered.
    """
    table = {**core_aten_decompositions(), **get_decompositions(EXTRA), **_OWN}
    for overload in KEPT_WHOLE:
        table.pop(overload, None)
    both = sorted(str(overload) for overload in table if overload in REGISTRY)
    if both:
        raise ValueError(
            f"decomposed as well as lowered: {', '.join(both)}; list each in KEPT_WHOLE with its "
            f"reason, or drop its lowering"
        )
    return table
