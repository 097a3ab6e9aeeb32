"""How a program is called: what of a graph's signature a call needs, without the graph.

Unlike `lowering.signature` it holds no FX node, so that it can be stored beside the module.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from lowering.dtypes import TensorSpec
from lowering.signature import Argument, Mutation, Output, ResultLayout, Signature


@dataclass(frozen=True)
class Parameter:
    """A tensor that the program takes."""

    placeholder: int | None
    """Index among the values of a call; None for a constant."""
    spec: TensorSpec
    order: tuple[int, ...]
    """The logical dims from the slowest to the fastest in memory."""
    on_device: bool
    """Whether it is a tensor of our own device."""
    constant: torch.Tensor | None
    """The value of a constant, in memory order."""

    @property
    def physical(self) -> TensorSpec:
        """The spec in memory order."""
        return _in_order(self.spec, self.order)


@dataclass(frozen=True)
class Result:
    """A tensor that the program gives back; see `Parameter`."""

    spec: TensorSpec
    order: tuple[int, ...]
    on_device: bool

    @property
    def physical(self) -> TensorSpec:
        """The spec in memory order."""
        return _in_order(self.spec, self.order)


@dataclass(frozen=True)
class Interface:
    """What a program takes and gives back, and what becomes of it."""

    parameters: tuple[Parameter, ...]
    results: tuple[Result, ...]
    outputs: tuple[Output, ...]
    mutations: tuple[Mutation, ...]
    uses_rng: bool

    @staticmethod
    def of(signature: Signature, graph_module: fx.GraphModule) -> Interface:
        """Return the interface of the module that was lowered from `graph_module`."""
        return Interface(
            tuple([_parameter(argument, graph_module) for argument in signature.arguments]),
            tuple([_result(layout) for layout in signature.results]),
            signature.outputs,
            signature.mutations,
            signature.uses_rng,
        )

    @property
    def inputs(self) -> tuple[str, ...]:
        """The specs of the parameters as text, for records."""
        return tuple([str(parameter.spec) for parameter in self.parameters])


def is_on_device(node: fx.Node) -> bool:
    """Whether the value of `node` is a tensor of our own device."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.device.type == "tpu"


def _parameter(argument: Argument, graph_module: fx.GraphModule) -> Parameter:
    constant = None
    if argument.placeholder is None:
        value = operator.attrgetter(str(argument.node.target))(graph_module)
        # For real: a capture may have its fake tensor mode in force.
        with _disable_current_modes():
            constant = value.detach().permute(argument.order).contiguous()
    return Parameter(
        argument.placeholder,
        argument.spec,
        argument.order,
        is_on_device(argument.node),
        constant,
    )


def _result(layout: ResultLayout) -> Result:
    return Result(layout.spec, layout.order, is_on_device(layout.node))


def _in_order(spec: TensorSpec, order: Sequence[int]) -> TensorSpec:
    return TensorSpec(tuple([spec.shape[dim] for dim in order]), spec.dtype)
