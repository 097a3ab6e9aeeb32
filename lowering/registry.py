"""The table of lowerings: one rule an ATen overload, with its padding rule and capability check.

Rules are registered while `lowering.ops` is imported; afterwards only users' own ops may be
added. The registry knows FX nodes but builds no MLIR.
"""

from __future__ import annotations

import enum
import inspect
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from lowering.dtypes import is_supported, missing_on

# Arguments that say where and how memory is laid out: the compiler's business, not a rule's.
PLACEMENT_ARGUMENTS = frozenset({"layout", "device", "pin_memory", "memory_format", "non_blocking"})

# An op on any other device (meta, say) is not ours to run.
HOST_DEVICES = frozenset({"cpu"})

Check = Callable[[fx.Node], str | None]


class Padding(enum.Enum):
    """What a rule does about padded positions of a bucketed dimension.

    `FLOWS`: garbage in padded positions reaches padded positions only. `MASKED`: the rule hides
    padding behind the identity of its reduction. `INDEXED`: the rule computes with logical
    indices and run-time sizes. `EXACT`: no rule; a graph with this op runs at exact shapes.
    """

    FLOWS = "flows"
    MASKED = "masked"
    INDEXED = "indexed"
    EXACT = "exact"


@dataclass(frozen=True)
class Rule:
    """How one overload is lowered."""

    overload: OpOverload | str
    """A name (`"prims.fma.default"`) stands for an op that torch defines only when it needs it."""
    function: Callable[..., Any]
    padding: Padding
    check: Check | None
    takes: frozenset[str]
    """Placement arguments that the function asks for by name; the others are dropped."""


class Registry:
    """A mapping from overload to rule that refuses silent replacement."""

    def __init__(self) -> None:
        self._rules: dict[OpOverload | str, Rule] = {}
        self._frozen = False
        self._lock = threading.Lock()

    def add(self, rule: Rule, *, by_user: bool = False) -> None:
        """Add `rule`.

        Raises:
            ValueError: the overload already has a rule, or the table is frozen and the rule is
                not a user's own.
        """
        with self._lock:
            if rule.overload in self._rules:
                raise ValueError(f"{rule.overload} already has a lowering")
            if self._frozen and not by_user:
                raise ValueError(f"the registry is frozen: {rule.overload} comes too late")
            self._rules[rule.overload] = rule

    def remove(self, overload: OpOverload) -> None:
        """Take a user's rule out again (tests and notebooks that define it anew)."""
        with self._lock:
            del self._rules[overload]

    def freeze(self) -> None:
        """Close the table for everything but users' own ops."""
        self._frozen = True

    def get(self, overload: object) -> Rule | None:
        """Return the rule of `overload`, or None."""
        rule = self._rules.get(overload)  # type: ignore[call-overload]
        if rule is None and isinstance(overload, OpOverload):
            rule = self._rules.get(str(overload))
        return rule

    def __contains__(self, overload: object) -> bool:
        return overload in self._rules

    def __iter__(self) -> Iterator[Rule]:
        return iter(sorted(self._rules.values(), key=lambda rule: str(rule.overload)))

    def __len__(self) -> int:
        return len(self._rules)


REGISTRY = Registry()


def make_rule(
    overload: OpOverload | str,
    function: Callable[..., Any],
    padding: Padding,
    check: Check | None = None,
) -> Rule:
    """Return a rule for `overload` after checking that it is one overload, not a packet.

    Raises:
        TypeError: `overload` is not an `OpOverload`.
    """
    if not isinstance(overload, (OpOverload, str)):
        raise TypeError(
            f"a lowering is registered for one overload, such as torch.ops.aten.add.Tensor, "
            f"not for {overload!r}"
        )
    parameters = inspect.signature(function).parameters
    return Rule(overload, function, padding, check, PLACEMENT_ARGUMENTS & parameters.keys())


def lowering(
    *overloads: OpOverload | str, padding: Padding, check: Check | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as the lowering of `overloads`.

    The function takes the context, then the arguments of the ATen schema: tensors as MLIR values,
    numbers, lists and dtypes as they are, sizes as integers. It gives back one value, or a tuple
    for an op with several results (None for an undefined one). Arguments that only place memory
    (device, layout, memory format) are dropped unless the function names them.

    Args:
        overloads: the ATen overloads that share the function.
        padding: what the rule does about padded positions.
        check: takes the FX node, returns why this node cannot be lowered, or None. It runs
            before anything is compiled.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for overload in overloads:
            REGISTRY.add(make_rule(overload, function, padding, check))
        return function

    return register


def unsupported_reason(node: fx.Node, platform: str) -> str | None:
    """Return why `node` cannot be lowered for `platform` (a PJRT name), or None if it can.

    Looks at the registry, at the dtypes and layouts of every tensor that goes in or comes out,
    and at the rule's own check.
    """
    rule = REGISTRY.get(node.target)
    if rule is None:
        return "it has no lowering"
    for value in _tensors(node):
        if value.device.type not in HOST_DEVICES:
            return f"a tensor on the device {str(value.device)!r} takes part"
        if value.layout is not torch.strided:
            return f"a {str(value.layout).removeprefix('torch.')} tensor takes part"
        if value.is_quantized or not is_supported(value.dtype):
            return f"StableHLO has no dtype for {str(value.dtype).removeprefix('torch.')}"
        if value.dtype in missing_on(platform):
            name = str(value.dtype).removeprefix("torch.")
            return f"the platform {platform!r} has no {name} arithmetic"
    return None if rule.check is None else rule.check(node)


def _tensors(node: fx.Node) -> Iterator[torch.Tensor]:
    for source in (node, *node.all_input_nodes):
        value = source.meta.get("val")
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(item, torch.Tensor):
                yield item
