"""Assertions about values of tensors: a compiled program cannot raise, so they check nothing.

Inductor's GPU code stops the device there and eager PyTorch raises. An assertion never changes a
result, and leaving it out keeps the graph in one piece.
"""

from __future__ import annotations

import torch

from lowering.context import LoweringContext
from lowering.mlir import ir
from lowering.registry import Padding, lowering

aten = torch.ops.aten


@lowering(aten._assert_async.default, aten._assert_async.msg, padding=Padding.FLOWS)
def assert_async(ctx: LoweringContext, condition: ir.Value, message: str = "") -> None:
    """Nothing; the condition is not looked at."""


@lowering(aten._functional_assert_async.msg, padding=Padding.FLOWS)
def functional_assert_async(
    ctx: LoweringContext, condition: ir.Value, message: str, token: ir.Value
) -> ir.Value:
    """The token, which only orders assertions."""
    return token
