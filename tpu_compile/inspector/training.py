"""`--train`: a module as a whole training step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from tpu_compile.inspector.exits import ExitCode, InspectorError

OPTIMIZERS = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}


def training_step(model: Any, optimizer: str) -> Callable[..., torch.Tensor]:
    """Return a training step of a module: forward, backward, optimizer, each compiled.

    The loss is what the model calls `loss`, else the mean of its first floating-point output.

    Raises:
        InspectorError: `model` is no module, or has no parameters.
    """
    if not isinstance(model, torch.nn.Module) or not any(True for _ in model.parameters()):
        raise InspectorError(
            "--train needs a module with parameters",
            ExitCode.INPUT,
            why=f"the model is a {type(model).__name__}",
            ways_out=("a factory whose callable is the whole training step",),
        )
    model.train()
    chosen = OPTIMIZERS[optimizer](model.parameters(), lr=1e-3)
    compiled = torch.compile(model, backend="tpu")
    update = torch.compile(lambda: chosen.step(), backend="tpu")

    def step(*args: Any, **kwargs: Any) -> torch.Tensor:
        chosen.zero_grad()
        loss = _loss(compiled(*args, **kwargs))
        loss.backward()
        update()
        return loss.detach()

    return step


def _loss(output: Any) -> torch.Tensor:
    loss = getattr(output, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    values = output.values() if isinstance(output, Mapping) else output
    leaves = values if isinstance(output, (tuple, list, Mapping)) else [values]
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.requires_grad:
            return leaf.mean() if leaf.dim() else leaf
    raise InspectorError(
        "The model gives no loss",
        ExitCode.MODEL,
        why="no output is a floating-point tensor that depends on its parameters",
    )
