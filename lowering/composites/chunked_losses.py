"""Custom ops of torch.nn whose Python bodies are their own decompositions."""

from __future__ import annotations

import torch
import torch.nn.modules.linear_cross_entropy as losses

from lowering.decompositions import decomposition

for _name in (
    "_linear_cross_entropy_batch_chunked",
    "_linear_cross_entropy_batch_chunked_no_reduction",
):
    _body = getattr(losses, _name)._init_fn
    decomposition(getattr(torch.ops.torch_nn, _name).default)(_body)
