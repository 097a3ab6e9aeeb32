"""A plan on values that lie in certain ways: what one call of an op adds to a trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tpu_compile.device.plans import Plan
from tpu_compile.device.values import Kind, View, whole_order


class Step:
    """A plan, and how each of its tensors lies in its value; compared by identity."""

    __slots__ = ("kinds", "made", "plan", "program", "views")

    def __init__(self, plan: Plan, kinds: Sequence[Kind], views: Sequence[View | None]) -> None:
        self.plan = plan
        self.kinds = tuple(kinds)
        """The kinds of the values that the tensors lie in."""
        self.views = tuple(views)
        """How they lie there; None for all of a value."""
        written = [self._written(index) for index in plan.writes]
        self.made = (*[Kind.of(r.dtype, r.shape) for r in plan.results], *written)
        """The kinds of the values that the step makes: its results, then what it writes to."""
        self.program: Any = None
        """The step as a program of its own, once it ran as one."""

    def _written(self, index: int) -> Kind:
        """Return the kind of the value that tensor `index` lies in once it is written to."""
        view, kind = self.views[index], self.kinds[index]
        if view is None:
            return kind
        order = whole_order(view, kind)
        if order is not None:
            return Kind.of(kind.dtype, [view.size[dim] for dim in order])
        if view.dtype is kind.dtype:
            return kind
        return Kind.of(view.dtype, (kind.nbytes // view.dtype.itemsize,))
