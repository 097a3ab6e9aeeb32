"""Custom ops of torch.nn that bound the memory of a linear layer's cross entropy by chunks.

Their Python bodies write to accumulators of their own, so they are traced here, where that can be
made functional, and not by a decomposition, which runs below functionalization.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.modules.linear_cross_entropy as losses

from lowering.context import LoweringContext
from lowering.registry import Padding, lowering
from lowering.tracing import lower_function


def _register(name: str) -> None:
    body = getattr(losses, name)._init_fn

    @lowering(getattr(torch.ops.torch_nn, name).default, padding=Padding.EXACT)
    def rule(ctx: LoweringContext, *args: Any) -> Any:
        """What the body gives: the loss and, where asked for, its gradients."""
        results = lower_function(ctx, body, *args)
        return results[0] if len(ctx.results) == 1 else results


for _name in (
    "_linear_cross_entropy_batch_chunked",
    "_linear_cross_entropy_batch_chunked_no_reduction",
):
    _register(_name)
