"""Lowers torch functions from within a rule: for ops that are expressions of many others.

The function is traced on fake tensors of the operands' shapes, decomposed as captures are, and
its graph is lowered in place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._guards import tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from lowering.context import LoweringContext
from lowering.decompositions import decomposition_table
from lowering.dtypes import spec_of
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

    # The capture that is under way has a fake mode of its own, which must not be mixed with ours.
    with tracing(None), FakeTensorMode(allow_non_fake_inputs=True):
        fakes = [torch.empty(spec_of(v).shape, dtype=spec_of(v).dtype) for v in values]
        graph = make_fx(functionalize(on_tensors), decomposition_table=decomposition_table())(
            *fakes
        )
    return Region(graph, ctx)(*values)
