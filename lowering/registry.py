"""The table of lowerings: one rule an ATen overload, with its padding rule and capability check.

Rules are registered while `lowering.ops` is imported; afterwards only users' own ops may be
added. The registry knows FX nodes but builds no MLIR.
"""

from __future__ import annotations

import enum
import inspect
import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree

from lowering.dtypes import is_supported, missing_on
from lowering.sizes import SYMBOLIC, is_number
from lowering.source import source_line
from lowering.subgraphs import is_mutable, op_name, subgraphs, wrapped_call

if TYPE_CHECKING:
    from lowering.bucketing.atoms import Layout
    from lowering.bucketing.call import Call

# Arguments that say where and how memory is laid out: the compiler's business, not a rule's.
PLACEMENT_ARGUMENTS = frozenset({"layout", "device", "pin_memory", "memory_format", "non_blocking"})

# Where tensors of a graph may say they are: a program takes them from there. An op on any other
# device (meta, say) is not ours to run.
OUR_DEVICES = frozenset({"cpu", "tpu"})

_CUT_BY_NUMBERS = frozenset({torch.ops.aten.slice.Tensor})

Check = Callable[[fx.Node], str | None]

Target = OpOverload | HigherOrderOperator | str


class Padding(enum.Enum):
    """What is done about padded positions of a bucketed dimension, in the two simplest cases.

    `FLOWS`: element by element with broadcasting, so garbage in padded positions reaches padded
    positions only. `EXACT`: no rule; a graph in which this op meets padding runs at exact shapes.
    All others are functions of `lowering.bucketing`.
    """

    FLOWS = "flows"
    EXACT = "exact"


PaddingRule = Callable[["Call"], tuple[Any, Sequence["Layout | None"]]]


@dataclass(frozen=True)
class Rule:
    """How one overload, or one higher-order operator, is lowered."""

    overload: Target
    """A name (`"prims.fma.default"`) stands for an op that torch defines only when it needs it."""
    function: Callable[..., Any]
    padding: Padding | PaddingRule
    check: Check | None
    takes: frozenset[str]
    """Placement arguments that the function asks for by name; the others are dropped."""

    @property
    def family(self) -> str:
        """The module that holds the function, such as `reduction`."""
        return self.function.__module__.rpartition(".")[2]

    @property
    def padding_name(self) -> str:
        """The name of the padding rule; of one that a function made, that function's."""
        if isinstance(self.padding, Padding):
            return self.padding.value
        return self.padding.__qualname__.partition(".")[0]


class Registry:
    """A mapping from overload to rule that refuses silent replacement."""

    def __init__(self) -> None:
        self._rules: dict[Target, Rule] = {}
        self._frozen = False
        self._by_users: set[Target] = set()
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
            if by_user:
                self._by_users.add(rule.overload)

    def remove(self, overload: Target) -> None:
        """Take a user's rule out again (tests and notebooks that define it anew)."""
        with self._lock:
            del self._rules[overload]
            self._by_users.discard(overload)

    def freeze(self) -> None:
        """Close the table for everything but users' own ops."""
        self._frozen = True

    @property
    def has_users_rules(self) -> bool:
        """Whether there are rules that are not this project's."""
        return bool(self._by_users)

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
    overload: Target,
    function: Callable[..., Any],
    padding: Padding | PaddingRule,
    check: Check | None = None,
) -> Rule:
    """Return a rule for `overload` after checking that it is one overload, not a packet.

    Raises:
        TypeError: `overload` is neither an `OpOverload` nor a higher-order operator.
    """
    if not isinstance(overload, (OpOverload, HigherOrderOperator, str)):
        raise TypeError(
            f"a lowering is registered for one overload, such as torch.ops.aten.add.Tensor, "
            f"not for {overload!r}"
        )
    parameters = inspect.signature(function).parameters
    return Rule(overload, function, padding, check, PLACEMENT_ARGUMENTS & parameters.keys())


def lowering(
    *overloads: Target, padding: Padding | PaddingRule, check: Check | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as the lowering of `overloads`.

    The function takes the context, then the arguments of the ATen schema: tensors as MLIR values,
    numbers, lists and dtypes as they are, sizes as integers, graphs as `lowering.regions.Region`.
    It gives back one value, or a tuple for an op with several results (None for an undefined
    one). Arguments that only place memory (device, layout, memory format) are dropped unless the
    function names them.

    Args:
        overloads: the ATen overloads that share the function.
        padding: what is done about padded positions: a `Padding`, or a padding rule
            (`lowering.bucketing.call`).
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
    at the rule's own check, at the op that a wrapper wraps and at every node of the graphs that a
    higher-order operator runs.
    """
    rule = REGISTRY.get(node.target)
    if rule is None:
        return "it has no lowering"
    reason = tensor_reason(node, platform)
    if reason is None and rule.check is not None:
        reason = rule.check(node)
    call = wrapped_call(node)
    if reason is None and call is not None:
        inner = REGISTRY.get(call.target)
        if inner is None:
            return "it has no lowering"
        if inner.check is not None and not is_mutable(call):
            return inner.check(call)
    return reason or _size_reason(node) or _reason_within(node, platform)


def _size_reason(node: fx.Node) -> str | None:
    """Return why the result of an op has no size at compile time, if it has none.

    Branches whose results differ in size give sizes that only the run can tell, and so do slices
    up to a number that was read from a tensor.
    """
    if not isinstance(node.target, HigherOrderOperator) and node.target not in _CUT_BY_NUMBERS:
        return None
    known = {
        symbol
        for source in node.all_input_nodes
        for symbol in _unbacked(source.meta.get("val"), numbers=True)
    }
    given = _unbacked(node.meta.get("val"), numbers=False)
    return None if given <= known else "the shape of what it gives depends on data"


def _unbacked(value: Any, *, numbers: bool) -> set[Any]:
    """Return the symbols that only a run can bind, in shapes and, if asked, in numbers."""
    kinds = (torch.Tensor, *SYMBOLIC) if numbers else torch.Tensor
    leaves = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, kinds)]
    return set(free_unbacked_symbols(leaves))


def _reason_within(node: fx.Node, platform: str) -> str | None:
    """Return why a node in one of the graphs that `node` runs cannot be lowered."""
    for graph_module in subgraphs(node):
        for inner in graph_module.graph.nodes:
            if inner.op != "call_function" or inner.target is operator.getitem:
                continue
            if is_number(inner):
                continue
            if is_mutable(inner):
                reason: str | None = "it writes to a tensor"
            else:
                reason = unsupported_reason(inner, platform)
            if reason is not None:
                return f"it holds {op_name(inner)} ({source_line(inner)}), and {reason}"
    return None


def tensor_reason(node: fx.Node, platform: str) -> str | None:
    """Return why a tensor that goes into or comes out of `node` cannot be on `platform`."""
    for value in _tensors(node):
        if value.device.type not in OUR_DEVICES:
            return f"a tensor on the device {str(value.device)!r} takes part"
        if value.layout is not torch.strided:
            return f"a {str(value.layout).removeprefix('torch.')} tensor takes part"
        if value.is_quantized or not is_supported(value.dtype):
            return f"StableHLO has no dtype for {str(value.dtype).removeprefix('torch.')}"
        if value.dtype in missing_on(platform):
            name = str(value.dtype).removeprefix("torch.")
            return f"the platform {platform!r} has no {name} arithmetic"
    return None


def _tensors(node: fx.Node) -> Iterator[torch.Tensor]:
    for source in (node, *node.all_input_nodes):
        for item in pytree.tree_leaves(source.meta.get("val")):
            if isinstance(item, torch.Tensor):
                yield item
