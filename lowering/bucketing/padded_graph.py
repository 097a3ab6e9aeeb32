"""One graph lowered with padded dims: the layouts of its nodes, and their padding rules run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch import fx

from lowering.bucketing.atoms import Layout, static_layout
from lowering.bucketing.bounds import UnboundedSizeError
from lowering.bucketing.call import (
    Call,
    NoPaddingRuleError,
    Outcome,
    check_outcome,
)
from lowering.bucketing.rules import flows
from lowering.bucketing.run_time import RunTimeSizes
from lowering.context import LoweringContext
from lowering.dtypes import missing_on
from lowering.errors import LoweringError, UnsupportedOpError
from lowering.mlir import ir
from lowering.registry import Padding, PaddingRule
from lowering.sizes import SYMBOLIC, expression, free_symbols, is_number
from lowering.source import source_line

Run = Callable[[Sequence[Any], dict[str, Any]], Any]


class PaddedGraph:
    """The layouts of the values of one graph, filled node by node."""

    def __init__(
        self,
        context: LoweringContext,
        symbols: Sequence[sympy.Expr],
        vector: ir.Value,
        placeholders: Mapping[fx.Node, Layout],
    ) -> None:
        """Start from the `placeholders`' layouts; `vector` holds the `symbols` at run time."""
        self.context = context
        missing = missing_on(context.options.platform)
        fractions = torch.float32 if torch.float64 in missing else torch.float64
        self.run_time = RunTimeSizes(symbols, vector, fractions)
        self._layouts: dict[fx.Node, tuple[Layout | None, ...]] = {
            node: (layout,) for node, layout in placeholders.items()
        }

    def layout(self, node: fx.Node) -> Layout:
        """Return the layout of a node's (only) value."""
        return self._of(node)[0]

    def _of(self, node: fx.Node) -> tuple[Any, ...]:
        found = self._layouts.get(node)
        if found is None:
            specs = self.context.specs(node)
            found = tuple(None if s is None else static_layout(s.shape) for s in specs)
            self._layouts[node] = found
        return found

    def item(self, node: fx.Node, source: fx.Node, index: int) -> None:
        """Note that `node` is result `index` of `source`."""
        layouts = self._of(source)
        # What a nested result holds (the gradients of flex attention's buffers) is not padded.
        layout = layouts[index] if index < len(layouts) else None
        if layout is not None:
            self._layouts[node] = (layout,)

    def concerns(self, node: fx.Node) -> bool:
        """Whether a dynamic size takes part in `node`."""
        if any(self._is_dynamic(source) for source in node.all_input_nodes):
            return True
        value = node.meta.get("val")
        values = value if isinstance(value, (list, tuple)) else (value,)
        return any(_is_symbolic(item) for item in values)

    def _is_dynamic(self, node: fx.Node) -> bool:
        if is_number(node):
            value = node.meta["val"]
            return isinstance(value, SYMBOLIC) and bool(free_symbols(expression(value)))
        layouts = self._layouts.get(node, ())
        return any(layout is not None and layout.is_padded for layout in layouts)

    def lower(
        self,
        node: fx.Node,
        padding: Padding | PaddingRule,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        run: Run,
    ) -> Any:
        """Return the value (or values) of a node that `concerns` dynamic sizes.

        Raises:
            NoPaddingRuleError: the node has no padding rule, or its rule declines.
        """
        rule = flows if padding is Padding.FLOWS else padding
        if isinstance(rule, Padding):
            raise NoPaddingRuleError(node, "it has no padding rule")
        try:
            values, layouts = self._outcome(Call(self, node, args, kwargs, run), rule)
        except (NoPaddingRuleError, UnsupportedOpError, LoweringError):
            raise
        except UnboundedSizeError as error:
            raise NoPaddingRuleError(node, str(error)) from error
        except Exception as error:
            raise LoweringError(
                f"The padding rule of {node.target} failed",
                where=f"{source_line(node)}, node `{node.name}`",
                why=f"{type(error).__name__}: {error}",
                ways_out=("report this graph as a fault of tpu_compile",),
            ) from error
        self._layouts[node] = tuple(layouts)
        return values

    def _outcome(self, call: Call, rule: PaddingRule) -> Outcome:
        values, layouts = rule(call)
        specs = self.context.specs(call.node)
        if len(layouts) != len(specs):
            raise call.decline(f"its padding rule gave {len(layouts)} layouts")
        for index, (spec, layout) in enumerate(zip(specs, layouts, strict=True)):
            if layout is not None:
                check_outcome(call.node, spec, layout, call.result_sizes(index))
        return values, layouts


def _is_symbolic(value: Any) -> bool:
    if not isinstance(value, torch.Tensor):
        return isinstance(value, SYMBOLIC)
    return any(isinstance(size, torch.SymInt) for size in value.shape)
