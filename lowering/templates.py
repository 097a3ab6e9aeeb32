"""Clones what one node was lowered to for the nodes like it: models repeat their layers.

To clone an op takes a fraction of the time in which a rule builds it. Two nodes are alike when
rule, types of the operands, other arguments and specs of the results agree. From what a rule built
a `Template` is made only if nothing else can have gone into it: the rule asked the context neither
for its node nor for a random key, and the ops use values of the node and each other's, no others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from lowering.context import LoweringContext
from lowering.mlir import ir
from lowering.registry import Rule

# Arguments that are compared by type and value; -0.0 and NaN make floats a case of their own.
_PLAIN = frozenset(
    {int, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format}
)
_FLOATING = frozenset({float, complex})
_SEQUENCES = frozenset({list, tuple})


@dataclass(frozen=True)
class Step:
    """One op of a template."""

    op: ir.OpView
    operands: tuple[int, ...]
    """Which values it takes: those of the node are counted first, then the results of the ops."""
    results: int
    has_regions: bool


@dataclass(frozen=True)
class Template:
    """What a rule built for one node, to be built again on other operands."""

    location: ir.Location
    steps: tuple[Step, ...]
    results: int | tuple[int | None, ...]
    """Which values the rule gave back: one, or several (None for an undefined one)."""

    def build(self, operands: list[ir.Value]) -> Any:
        """Clone the ops to the insertion point; return the values that the rule would return."""
        point, location = ir.InsertionPoint.current, ir.Location.current
        is_elsewhere = location != self.location
        values = operands.copy()
        for step in self.steps:
            op = step.op.clone(point)
            if step.operands:
                taken = op.operands
                for position, index in enumerate(step.operands):
                    taken[position] = values[index]
            if is_elsewhere:
                _move(op, location, with_regions=step.has_regions)
            if step.results == 1:
                # The usual case; a list of one takes twice the time.
                values.append(op.results[0])
            else:
                values.extend(op.results)
        if isinstance(self.results, int):
            return values[self.results]
        return tuple([None if index is None else values[index] for index in self.results])


# Runs a rule on arguments and checks what it gives.
Run = Callable[[LoweringContext, fx.Node, Rule, Sequence[Any], dict[str, Any]], Any]


class Templates:
    """The templates of one module."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._made: dict[tuple[Any, ...], Template | None] = {}
        # Belongs to no module; each rule that is watched builds in a block of its own.
        self._workshop = ir.Operation.create("builtin.module", regions=1, ip=False)

    def lower(
        self,
        context: LoweringContext,
        node: fx.Node,
        rule: Rule,
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> Any:
        """Return what `rule` makes of the arguments; it is not run if a template serves."""
        parts: list[Any] = [rule.function, context.specs(node), *kwargs]
        operands: list[ir.Value] = []
        for argument in (*args, *kwargs.values()):
            if not _read(argument, parts, operands):
                return self._run(context, node, rule, args, kwargs)
        key = tuple(parts)
        template = self._made.get(key)
        if template is not None:
            return template.build(operands)
        if key in self._made:
            return self._run(context, node, rule, args, kwargs)
        asked = context.asked_for_own
        with self._watched() as ops:
            result = self._run(context, node, rule, args, kwargs)
        is_general = context.asked_for_own == asked
        self._made[key] = _template(ops, operands, result) if is_general else None
        return result

    @contextlib.contextmanager
    def _watched(self) -> Iterator[list[ir.OpView]]:
        """Give a list that holds the ops that the block built, after it."""
        ops: list[ir.OpView] = []
        block = self._workshop.regions[0].blocks.append()
        try:
            with ir.InsertionPoint(block):
                yield ops
        finally:
            point = ir.InsertionPoint.current
            ops.extend(block.operations)
            for op in ops:
                op.detach_from_parent()
                point.insert(op)


def _read(argument: Any, parts: list[Any], operands: list[ir.Value]) -> bool:
    """Add what makes two arguments alike to `parts` and values to `operands`; False if unknown."""
    kind = type(argument)
    if isinstance(argument, ir.Value):
        # One value given twice is another case than two: a rule may tell them apart.
        parts.append(operands.index(argument) if argument in operands else argument.type)
        operands.append(argument)
    elif kind in _PLAIN:
        parts += (kind, argument)
    elif kind in _FLOATING:
        parts += (kind, repr(argument))
    elif kind in _SEQUENCES:
        parts += (kind, len(argument))
        return all(_read(item, parts, operands) for item in argument)
    else:
        return False
    return True


def _template(
    ops: Sequence[ir.OpView], operands: Sequence[ir.Value], result: Any
) -> Template | None:
    """Return `ops`, which a rule built on `operands` and gave `result`; None if values differ."""
    location = ir.Location.current
    indices = {value: index for index, value in enumerate(operands)}
    count = len(operands)
    steps = []
    for op in ops:
        if op.location != location or not all(value in indices for value in op.operands):
            return None
        has_regions = len(op.regions) > 0
        if has_regions and not _is_closed(op, set()):
            return None
        taken = tuple([indices[value] for value in op.operands])
        results = list(op.results)
        steps.append(Step(op, taken, len(results), has_regions))
        indices.update({value: count + index for index, value in enumerate(results)})
        count += len(results)
    if isinstance(result, ir.Value):
        return Template(location, tuple(steps), indices[result]) if result in indices else None
    if not isinstance(result, (list, tuple)):
        return None
    if not all(v is None or (isinstance(v, ir.Value) and v in indices) for v in result):
        return None
    given = tuple([None if value is None else indices[value] for value in result])
    return Template(location, tuple(steps), given)


def _is_closed(op: ir.OpView, known: set[ir.Value]) -> bool:
    """Whether the ops in the regions of `op` use no values but each other's and `known`."""
    for region in op.regions:
        for block in region.blocks:
            known.update(block.arguments)
            for inner in block.operations:
                if not known.issuperset(inner.operands) or not _is_closed(inner, known):
                    return False
                known.update(inner.results)
    return True


def _move(op: ir.Operation | ir.OpView, location: ir.Location, *, with_regions: bool) -> None:
    """Set the location of `op` and, if asked, of everything in its regions."""
    op.location = location
    if with_regions:
        for region in op.regions:
            for block in region.blocks:
                for argument in block.arguments:
                    argument.set_location(location)
                for inner in block.operations:
                    _move(inner, location, with_regions=True)
