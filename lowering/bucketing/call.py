"""What a padding rule sees of its node: operands with their layouts, and the op's own rule to run.

A padding rule takes a `Call`. It hides padding where the op would mix it with real elements, runs
the op's rule on physical shapes, and gives back the result (or results) with the layout of each.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._ops import OpOverload

from lowering import hlo
from lowering.bucketing.atoms import Layout, dim_of, is_padded, monomial
from lowering.dtypes import TensorSpec, spec_of
from lowering.mlir import ir
from lowering.run_time_numbers import ACCEPT_RUN_TIME_NUMBERS
from lowering.sizes import SYMBOLIC, expression, is_number, number_dtype

if TYPE_CHECKING:
    from lowering.bucketing.padded_graph import PaddedGraph
    from lowering.context import LoweringContext

Outcome = tuple[Any, Sequence[Layout | None]]


class NoPaddingRuleError(Exception):
    """This node cannot run on padded dims: its graph runs at exact shapes."""

    def __init__(self, node: fx.Node, why: str) -> None:
        super().__init__(f"{node.target}: {why}")
        self.node = node
        self.why = why


class Fill(enum.Enum):
    """Identities of reductions, in the dtype of what is filled."""

    LOWEST = "lowest"
    HIGHEST = "highest"


class Call:
    """One node whose operands or results are padded, or that computes with a dynamic size."""

    def __init__(
        self,
        graph: PaddedGraph,
        node: fx.Node,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        run: Callable[[Sequence[Any], dict[str, Any]], Any],
    ) -> None:
        self.graph = graph
        self.node = node
        self._run = run
        self._names = _parameter_names(node)
        self._count = len(args)
        self._given = dict(zip(self._names, args, strict=False)) | kwargs
        self._told: set[str] = set()
        self._nodes: dict[str, Any] = dict(zip(self._names, node.args, strict=False)) | dict(
            node.kwargs
        )

    # --- arguments -----------------------------------------------------------------------------

    @property
    def ctx(self) -> LoweringContext:
        """The context of the lowering."""
        return self.graph.context

    @property
    def sizes(self) -> Any:
        """The run-time sizes (`RunTimeSizes`)."""
        return self.graph.run_time

    @property
    def names(self) -> Sequence[str]:
        """The names of the op's parameters."""
        return self._names

    def value(self, name: str, default: Any = None) -> Any:
        """Return the argument that the schema calls `name`, as the op's rule would get it."""
        return self._given.get(name, default)

    def size(self, name: str, default: Any = None) -> Any:
        """Return a size (or a list of them) among the arguments: numbers and expressions."""
        self._told.add(name)
        return _expressions(self._nodes.get(name, default))

    def names_shape(self, *names: str) -> None:
        """Say that the sizes in these arguments name the result's shape and are no data."""
        self._told.update(names)

    def layout(self, name: str) -> Layout:
        """Return the layout of the tensor argument `name`."""
        return self.graph.layout(self._nodes[name])

    def layouts(self, name: str) -> list[Layout | None]:
        """Return the layouts of a list of tensors; None where the list has None."""
        return [
            self.graph.layout(item) if isinstance(item, fx.Node) else None
            for item in self._nodes[name]
        ]

    def tensors(self) -> list[str]:
        """Return the names of the arguments that are tensors."""
        return [
            name
            for name, node in self._nodes.items()
            if isinstance(node, fx.Node)
            and not is_number(node)
            and isinstance(self._given[name], ir.Value)
        ]

    def numbers(self) -> list[int | float]:
        """Return the arguments that are real numbers, known when the graph is lowered."""
        return [value for value in self._given.values() if isinstance(value, int | float)]

    def replace(self, name: str, value: Any) -> None:
        """Give the op's rule `value` for the argument `name`."""
        self._given[name] = value

    def fake(self, name: str) -> Any:
        """Return the argument `name` as torch saw it."""
        return fx.node.map_arg(self._nodes.get(name), lambda node: node.meta["val"])

    def decline(self, why: str) -> NoPaddingRuleError:
        """Return the error to raise when these arguments cannot be padded."""
        return NoPaddingRuleError(self.node, why)

    # --- padding -------------------------------------------------------------------------------

    def hide(self, name: str, along: Sequence[int], fill: Any) -> None:
        """Fill the padding of tensor `name` along the dims `along` with a number or a `Fill`."""
        self.replace(name, self.hidden(self.value(name), self.layout(name), along, fill))

    def hidden(self, value: ir.Value, layout: Layout, along: Sequence[int], fill: Any) -> ir.Value:
        """Return `value` with the padding along the dims `along` filled."""
        along = [dim for dim in along if is_padded(layout.dims[dim])]
        if fill is not Fill.LOWEST and fill is not Fill.HIGHEST and fill == 0:
            along = [dim for dim in along if dim not in layout.zeros]
        if not along:
            return value
        mask = self.sizes.mask(layout.dims, along)
        dtype = spec_of(value).dtype
        if fill is Fill.LOWEST:
            fill = hlo.lowest(dtype)
        elif fill is Fill.HIGHEST:
            fill = hlo.highest(dtype)
        return hlo.select(mask, value, hlo.full_like(value, fill))

    def element_count(self, layout: Layout, dims: Sequence[int], dtype: torch.dtype) -> ir.Value:
        """Return how many real elements lie along `dims`, as a 0-d value of `dtype`."""
        size: Any = 1
        for dim in dims:
            for atom in layout.dims[dim]:
                size = size * atom.size
        return self.sizes.number(size, dtype)

    def numbers_at_run_time(self) -> None:
        """Give the op's rule 0-d values for its dynamic sizes, which are data to it.

        Raises:
            NoPaddingRuleError: it takes none.
        """
        for name, argument in self._nodes.items():
            if isinstance(argument, fx.Node) and is_number(argument):
                value = argument.meta["val"]
                if isinstance(value, SYMBOLIC) and not isinstance(self._given[name], ir.Value):
                    if self.node.target not in ACCEPT_RUN_TIME_NUMBERS:
                        raise self.decline("it computes with a dynamic size")
                    dtype = number_dtype(value)
                    if dtype.is_floating_point:
                        dtype = self.sizes.fractions
                    self.replace(name, self.sizes.number(expression(value), dtype))
                    self._told.add(name)

    # --- results -------------------------------------------------------------------------------

    def run(self) -> Any:
        """Return what the op's rule makes of the arguments, at physical shapes.

        Raises:
            NoPaddingRuleError: a dynamic size among them is data that nobody looked at.
        """
        for name, argument in self._nodes.items():
            if name not in self._told and _holds_numbers(argument):
                raise self.decline(f"its argument `{name}` is a dynamic size")
        count = self._count
        args = [self._given[name] for name in self._names[:count]]
        kwargs = {k: v for k, v in self._given.items() if k not in self._names[:count]}
        return self._run(args, kwargs)

    def bound(self, size: Any) -> int:
        """Return the physical size of a number or an expression."""
        return int(self.ctx.sizes.bound(size))  # type: ignore[attr-defined]

    @property
    def result(self) -> TensorSpec:
        """Physical shape and dtype of the first result."""
        spec = self.ctx.specs(self.node)[0]
        assert spec is not None
        return spec

    def result_sizes(self, index: int = 0) -> list[Any]:
        """Return the logical shape of a result: numbers and expressions."""
        value = self.node.meta["val"]
        fake = value[index] if isinstance(value, (list, tuple)) else value
        return [_expressions(size) for size in fake.shape]

    def plain(self, index: int = 0) -> Layout:
        """Return the layout of a result whose real positions come first in every dim."""
        spec = self.ctx.specs(self.node)[index]
        assert spec is not None
        sizes = self.result_sizes(index)
        dims = [dim_of(size, extent) for size, extent in zip(sizes, spec.shape, strict=True)]
        return Layout(tuple(dims))


def check_outcome(node: fx.Node, spec: TensorSpec | None, layout: Layout, sizes: list[Any]) -> None:
    """Check a result's layout against its physical shape and its logical sizes.

    Raises:
        NoPaddingRuleError: they differ, so the padding rule must not be trusted.
    """
    if spec is None:
        return
    if layout.shape != spec.shape:
        raise NoPaddingRuleError(node, f"its layout is {layout.shape}, its result {spec.shape}")
    for dim, size in zip(layout.dims, sizes, strict=True):
        product: Any = 1
        for atom in dim:
            product = product * atom.size
        if product != size and monomial(product) != monomial(size):
            raise NoPaddingRuleError(node, f"its layout has {product} where torch has {size}")


def _expressions(argument: Any) -> Any:
    if isinstance(argument, fx.Node):
        argument = argument.meta["val"]
    if isinstance(argument, (list, tuple)):
        return [_expressions(item) for item in argument]
    size = expression(argument)
    return int(size) if getattr(size, "is_Integer", False) else size


def _holds_numbers(argument: Any) -> bool:
    if isinstance(argument, (list, tuple)):
        return any(_holds_numbers(item) for item in argument)
    value = argument.meta.get("val") if isinstance(argument, fx.Node) else argument
    return isinstance(value, SYMBOLIC)


def _parameter_names(node: fx.Node) -> list[str]:
    target: Any = node.target
    if isinstance(target, OpOverload):
        return [argument.name for argument in target._schema.arguments]
    return [f"argument_{index}" for index in range(len(node.args))]
