"""What a lowering rule may know about its node: result types, promotion, precision, RNG, options.

A rule never touches global state; everything it needs hangs on the context it is given. What does
not depend on the node is in `lowering.hlo`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

from lowering import hlo
from lowering.dtypes import TensorSpec, spec_of
from lowering.errors import UnsupportedOpError
from lowering.mlir import ir
from lowering.sizes import Sizes, UnboundSizeError, representative
from lowering.source import source_line

_PRECISE = (torch.float32, torch.complex64)
PRECISIONS = {"default": "DEFAULT", "high": "HIGH", "highest": "HIGHEST"}


@dataclass(frozen=True)
class LoweringOptions:
    """What changes the StableHLO of a graph besides the graph itself."""

    platform: str = "cpu"
    """PJRT name of the platform that the module is for; custom calls differ between platforms."""
    matmul_precision: str = "highest"
    """`"default"`, `"high"` or `"highest"`: the precision of float32 contractions."""


class LoweringContext:
    """The state of one lowering, pointed at one node at a time by the importer."""

    def __init__(self, options: LoweringOptions, sizes: Sizes) -> None:
        self.options = options
        self.sizes = sizes
        self._node: Any = None
        self.results: tuple[TensorSpec | None, ...] = ()
        self.functions: Any = None
        """The functions that regions called several times become (`lowering.regions`)."""
        self.locations: Any = None
        """The MLIR locations of nodes (`lowering.regions`)."""
        self.templates: Any = None
        """What nodes were lowered to, for the nodes like them (`lowering.templates`)."""
        self.asked_for_own = 0
        """How often a rule asked for what is its node's own: the node itself, a random key."""
        self.padded: Any = None
        """The layouts of padded values (`lowering.bucketing`); None at exact shapes."""
        self._specs: dict[fx.Node, tuple[TensorSpec | None, ...]] = {}
        self._rng_key: ir.Value | None = None
        self._rng_uses = 0
        self.element_index: ir.Value | None = None
        """What numbers the elements that a random op draws (ui32, of their shape), if padded."""

    # --- the node ---------------------------------------------------------------------------

    @property
    def node(self) -> fx.Node:
        """The node that is lowered; what a rule builds that asks for it serves no other node."""
        self.asked_for_own += 1
        node: fx.Node = self._node
        return node

    def enter(self, node: fx.Node) -> tuple[Any, ...]:
        """Point the context at `node`; give back what `leave` needs to undo it."""
        before = self._node, self.results
        self.results = self._specs.get(node) or self.specs(node)
        self._node = node
        return before

    def leave(self, before: tuple[Any, ...]) -> None:
        """Point the context back at the node of before `enter`."""
        self._node, self.results = before

    @contextlib.contextmanager
    def at(self, node: fx.Node) -> Iterator[None]:
        """Point the context at `node` within the block."""
        before = self.enter(node)
        try:
            yield
        finally:
            self.leave(before)

    def specs(self, node: fx.Node) -> tuple[TensorSpec | None, ...]:
        """Return the concrete shape and dtype of each result of `node`; None for no tensor.

        Asking a fake tensor is slow, and slower still under a torch function mode: the importer
        asks for all nodes before it enters one.
        """
        found = self._specs.get(node)
        if found is None:
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor):
                found = (TensorSpec(self.sizes.shape(value.shape), value.dtype),)
            elif isinstance(value, (list, tuple)):
                found = tuple([self.spec(item) for item in value])
            else:
                found = (None,)
            self._specs[node] = found
        return found

    def read_specs(self, nodes: Iterable[fx.Node]) -> None:
        """Read the specs of `nodes`; those that depend on data are told when they are lowered."""
        for node in nodes:
            try:
                self.specs(node)
            except UnboundSizeError:
                continue

    @contextlib.contextmanager
    def with_sizes(self, sizes: Sizes) -> Iterator[None]:
        """Evaluate symbolic sizes under another binding within the block: in a region."""
        before = self.sizes, self._specs
        self.sizes, self._specs = sizes, {}
        try:
            yield
        finally:
            self.sizes, self._specs = before

    def spec(self, value: Any) -> TensorSpec | None:
        """Return the concrete shape and dtype of a fake tensor; None for anything else."""
        if not isinstance(value, torch.Tensor):
            return None
        return TensorSpec(self.sizes.shape(value.shape), value.dtype)

    @property
    def result(self) -> TensorSpec:
        """Shape and dtype of the node's first (or only) result."""
        first = self.results[0]
        if first is None:
            raise TypeError(f"{self.node.target} has no tensor result")
        return first

    def argument(self, index: int) -> Any:
        """Return argument `index` as torch saw it: a fake tensor, a number, a list, or None."""
        return fx.node.map_arg(self.node.args[index], lambda node: node.meta["val"])

    def unsupported(self, why: str) -> UnsupportedOpError:
        """Return the error to raise when these arguments cannot be lowered.

        The importer adds the op and the line; under `fallback="eager"` the node then runs in
        eager PyTorch.
        """
        return unsupported_op(self.node, why)

    # --- promotion ----------------------------------------------------------------------------

    def promoted_dtype(
        self, *indices: int, kind: ELEMENTWISE_TYPE_PROMOTION_KIND | None = None
    ) -> torch.dtype:
        """Return the dtype in which torch computes with the arguments at `indices`.

        Python scalars and 0-d tensors weigh less than tensors with dims, exactly as in eager
        (`torch._prims_common.elementwise_dtypes`). `kind` defaults to plain promotion.
        """
        kind = ELEMENTWISE_TYPE_PROMOTION_KIND.NO_OPMATH if kind is None else kind
        arguments: list[tuple[torch.dtype, bool] | type] = []
        for index in indices:
            value = self._node.args[index]
            values = value if isinstance(value, (list, tuple)) else (value,)
            arguments.extend(self._kind(item) for item in values if item is not None)
        return _promoted(tuple(arguments), kind)

    def _kind(self, argument: Any) -> tuple[torch.dtype, bool] | type:
        """Return what promotion looks at: dtype and whether it has dims, or the Python type."""
        if isinstance(argument, fx.Node):
            (spec,) = self.specs(argument)
            if spec is not None:
                return spec.dtype, bool(spec.shape)
            # Whether it is known now or only at run time, the rule sees another kind of argument.
            self.asked_for_own += 1
            argument = argument.meta["val"]
        return type(representative(argument))

    def as_value(self, operand: Any, dtype: torch.dtype) -> ir.Value:
        """Return a tensor value or a Python scalar as a value of `dtype`."""
        if isinstance(operand, ir.Value):
            return hlo.convert(operand, dtype)
        return hlo.scalar(operand, dtype)

    def broadcast_operands(
        self, operands: Sequence[Any], dtype: torch.dtype, shape: Sequence[int] | None = None
    ) -> list[ir.Value]:
        """Return tensors and scalars as values of `dtype`, broadcast to the result's shape."""
        shape = self.result.shape if shape is None else shape
        wanted = TensorSpec(tuple(shape), dtype)
        broadcast = []
        for operand in operands:
            if not isinstance(operand, ir.Value):
                broadcast.append(hlo.full(shape, dtype, operand))
            elif spec_of(operand) == wanted:
                broadcast.append(operand)
            else:
                broadcast.append(hlo.broadcast_to(hlo.convert(operand, dtype), shape))
        return broadcast

    # --- options ------------------------------------------------------------------------------

    def precision(self, *operands: ir.Value) -> str:
        """Return the precision attribute for a contraction of `operands`.

        Only float32 has a choice: narrower types are exact in one pass, wider ones have no
        faster path.
        """
        for operand in operands:
            if spec_of(operand).dtype in _PRECISE:
                return PRECISIONS[self.options.matmul_precision]
        return "DEFAULT"

    # --- randomness ----------------------------------------------------------------------------

    def set_rng_key(self, key: ir.Value) -> None:
        """Give the module's key argument, ui32[2] (the importer's call)."""
        self._rng_key = key

    def rng_key(self) -> tuple[ir.Value, int]:
        """Return the module's key (ui32[2]) and a number that no other random op of it has."""
        if self._rng_key is None:
            raise TypeError(
                f"{self.node.target} draws random numbers but lacks the tag that says so"
            )
        self._rng_uses += 1
        self.asked_for_own += 1
        return self._rng_key, self._rng_uses

    @contextlib.contextmanager
    def with_rng_key(self, key: ir.Value | None) -> Iterator[None]:
        """Draw from another key within the block, numbering its random ops from the start."""
        before = self._rng_key, self._rng_uses
        self._rng_key, self._rng_uses = key, 0
        try:
            yield
        finally:
            self._rng_key, self._rng_uses = before

    @contextlib.contextmanager
    def with_element_index(self, index: ir.Value) -> Iterator[None]:
        """Number the elements of random ops by `index` within the block, whatever their place."""
        before, self.element_index = self.element_index, index
        try:
            yield
        finally:
            self.element_index = before


@functools.cache
def _promoted(
    arguments: tuple[tuple[torch.dtype, bool] | type, ...], kind: ELEMENTWISE_TYPE_PROMOTION_KIND
) -> torch.dtype:
    """Return `elementwise_dtypes` of arguments of these kinds."""
    samples = [
        argument()
        if isinstance(argument, type)
        else torch.empty((1,) * argument[1], dtype=argument[0], device="meta")
        for argument in arguments
    ]
    return elementwise_dtypes(*samples, type_promotion_kind=kind)[1]


def unsupported_op(node: fx.Node, why: str) -> UnsupportedOpError:
    """Return the `UnsupportedOpError` for `node`, with its dtypes, shapes and the user's line."""
    error = UnsupportedOpError(
        f"{node.target} on {describe_arguments(node)} cannot be compiled",
        where=f"{source_line(node)}, node `{node.name}`",
        why=why,
        ways_out=(
            'fallback="eager" to run this op in eager PyTorch between compiled parts',
            "tpu_compile.register_lowering to lower it yourself",
        ),
    )
    error.node_name = node.name
    return error


def describe_arguments(node: fx.Node) -> str:
    """Return dtypes and shapes of the tensors that go into `node`, such as `float32[2, 3]`."""
    described = []
    for source in node.all_input_nodes:
        value = source.meta.get("val")
        if isinstance(value, torch.Tensor):
            dtype = str(value.dtype).removeprefix("torch.")
            described.append(f"{dtype}[{', '.join(str(size) for size in value.shape)}]")
    return ", ".join(described) or "no tensors"
