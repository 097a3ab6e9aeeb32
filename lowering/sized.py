"""Ops whose output sizes depend on data, and how a program of static shapes computes them.

A rule is functional torch code that gives padded outputs and how much of each is real; the run
time cuts the padding off. `repeat_interleave` and `bincount` have no bound on their size: their
rules take the size, which another function computes first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, fx
from torch._ops import OpOverload

from lowering.registry import Check, tensor_reason


class Padded(NamedTuple):
    """One output: its leading `length` slices of dim `dim` are real."""

    value: Tensor
    length: Tensor
    """0-d int64."""
    dim: int = 0


class SizedRule(NamedTuple):
    """How one overload is computed.

    `build` takes the op's arguments and gives, for each output, a tensor whose shape is known or
    a `Padded`. If there is a `measure`, it takes the op's arguments and gives a 0-d int64, and
    `build` takes that number as its first argument.
    """

    build: Callable[..., tuple[Tensor | Padded, ...]]
    measure: Callable[..., Tensor] | None
    check: Check | None


SIZED: dict[OpOverload, SizedRule] = {}


def sized(
    overload: OpOverload,
    *,
    measure: Callable[..., Tensor] | None = None,
    check: Check | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as the rule of `overload`.

    `check` takes the FX node, returns why this node cannot be computed so, or None.

    Raises:
        ValueError: it has one already.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        if overload in SIZED:
            raise ValueError(f"{overload} already has a rule")
        SIZED[overload] = SizedRule(function, measure, check)
        return function

    return register


def is_sized(node: fx.Node, platform: str) -> bool:
    """Whether a rule here computes `node` on `platform` (a PJRT name)."""
    rule = SIZED.get(node.target)  # type: ignore[call-overload]
    if rule is None or tensor_reason(node, platform) is not None:
        return False
    return rule.check is None or rule.check(node) is None
