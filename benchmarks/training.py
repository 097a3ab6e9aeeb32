"""The competitors of a training step: forward, backward and AdamW.

A maker trains the module that it is given; `step_contest` gives each one a copy.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from benchmarks.harness import Call, difference
from benchmarks.peers import Contest, as_jax, extract, make_each
from benchmarks.results import OURS

LEARNING_RATE = 1e-4
BETAS = (0.9, 0.999)
EPSILON = 1e-8
DECAY = 0.01
STEPS_CHECKED = 3

NO_STEP = {
    "torch-xla2": "its tensors have no backward pass; jax.jit stands for it",
}


class WithLoss(nn.Module):
    """A model that gives logits, and the cross entropy of them with given targets."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return the loss, a scalar; the last input is the targets, any shape."""
        *others, targets = inputs
        logits = self.model(*others)
        rows = logits.reshape(-1, logits.shape[-1])
        return nn.functional.cross_entropy(rows, targets.reshape(-1))


Step = Callable[[nn.Module, Sequence[torch.Tensor]], Call]


def in_torch(backend: str | None, options: dict[str, Any] | None = None) -> Step:
    """Return the maker of a step with model and optimizer compiled by `backend`, or neither."""

    def make(module: nn.Module, inputs: Sequence[torch.Tensor]) -> Call:
        optimizer = torch.optim.AdamW(
            module.parameters(), lr=LEARNING_RATE, betas=BETAS, eps=EPSILON, weight_decay=DECAY
        )
        forward: Callable[..., torch.Tensor] = module
        update: Callable[[], object] = optimizer.step
        if backend is not None:
            forward = torch.compile(module, backend=backend, fullgraph=True, options=options)
            update = torch.compile(optimizer.step, backend=backend, options=options)

        def step() -> torch.Tensor:
            loss = forward(*inputs)
            loss.backward()
            update()
            optimizer.zero_grad()
            return loss.detach()

        return step

    return make


def jax_jit(module: nn.Module, inputs: Sequence[torch.Tensor]) -> Call:
    """One jitted function: the gradient of what torch-xla2 extracts, and the same update.

    What the forward pass writes to buffers, such as running statistics, is not part of it.
    """
    states, function = extract(module)
    import jax
    import jax.numpy as jnp

    # Tied parameters are one parameter under several names.
    by_identity: dict[int, str] = {}
    owner = {
        name: by_identity.setdefault(id(parameter), name)
        for name, parameter in module.named_parameters(remove_duplicate=False)
    }
    trained = {name: states[name] for name in by_identity.values()}
    fixed = {name: state for name, state in states.items() if name not in owner}
    arrays = as_jax(inputs)

    def loss_of(parameters: dict[str, Any]) -> Any:
        tied = {name: parameters[owner[name]] for name in owner}
        return function({**fixed, **tied}, arrays)

    def update(parameters: Any, first: Any, second: Any, count: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(parameters)
        count = count + 1
        one, two = BETAS

        def moved(p: Any, m: Any, v: Any) -> Any:
            unbiased = jnp.sqrt(v / (1 - two**count)) + EPSILON
            return p * (1 - LEARNING_RATE * DECAY) - LEARNING_RATE * m / (1 - one**count) / unbiased

        first = jax.tree.map(lambda m, g: one * m + (1 - one) * g, first, gradients)
        second = jax.tree.map(lambda v, g: two * v + (1 - two) * g * g, second, gradients)
        return loss, jax.tree.map(moved, parameters, first, second), first, second, count

    jitted = jax.jit(update, donate_argnums=(0, 1, 2))
    # Copies: the arrays of the states may be the memory of torch's tensors, and are donated.
    zeros = jax.tree.map(jnp.zeros_like, trained)
    state = [
        jax.tree.map(jnp.copy, trained),
        zeros,
        jax.tree.map(jnp.copy, zeros),
        jnp.zeros((), "float32"),
    ]

    def step() -> Any:
        loss, *state[:] = jitted(*state)
        jax.block_until_ready(state)
        return loss

    return step


STEPS: dict[str, Step] = {
    OURS: in_torch("tpu", {"fallback": "error"}),
    "eager": in_torch(None),
    "inductor": in_torch("inductor"),
    "jax.jit": jax_jit,
}


def step_contest(
    module: nn.Module, inputs: Sequence[torch.Tensor], names: Sequence[str] = tuple(STEPS)
) -> Contest:
    """Return training steps, the losses of the first three of each checked against eager's."""
    losses: dict[str, list[object]] = {}

    def checked(name: str) -> Call:
        step = STEPS[name](copy.deepcopy(module), inputs)
        losses[name] = [step() for _ in range(STEPS_CHECKED)]
        return step

    makers = {name: lambda name=name: checked(name) for name in names}
    calls, left_out = make_each(makers)
    offs = {name: difference(losses["eager"], losses[name]) for name in calls}
    wrong = {name: f"losses of three steps: {off}" for name, off in offs.items() if off}
    right = {name: call for name, call in calls.items() if name not in wrong}
    return Contest(right, {**left_out, **NO_STEP}, wrong)
