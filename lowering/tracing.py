"""Traces functional torch code of our own: for ops that are expressions of many others.

The function is traced on fake tensors, decomposed as captures are; from within a rule its graph is
lowered in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._guards import tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from lowering.context import LoweringContext
from lowering.decompositions import decomposition_table
from lowering.dtypes import TensorSpec, spec_of
from lowering.mlir import ir
from lowering.regions import Region


def lower_function(
    ctx: LoweringContext,
    function: Callable[..., Any],
    *operands: Any,
) -> list[Any]:
    """Return what `function` gives for `operands`: values become tensors, others stay.

    `function` is written in functional torch and gives a tensor or a flat list of tensors.

    Raises:
        UnsupportedOpError: an op within has no lowering.
    """
    values = [operand for operand in operands if isinstance(operand, ir.Value)]

    def on_tensors(*tensors: torch.Tensor) -> Any:
        given = iter(tensors)
        return function(*(next(given) if isinstance(o, ir.Value) else o for o in operands))

    return Region(trace(on_tensors, [spec_of(value) for value in values]), ctx)(*values)


def trace(function: Callable[..., Any], specs: Sequence[TensorSpec]) -> fx.GraphModule:
    """Return the functional, decomposed ATen graph of `function` on tensors of these specs."""
    # The capture that is under way has a fake mode of its own, which must not be mixed with ours.
    with tracing(None), FakeTensorMode(allow_non_fake_inputs=True):
        fakes = [torch.empty(spec.shape, dtype=spec.dtype) for spec in specs]
        return make_fx(functionalize(function), decomposition_table=decomposition_table())(*fakes)
