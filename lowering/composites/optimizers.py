"""Decompositions of the fused optimizer steps and of the loss scaler's ops.

Formulas are those of ATen's CPU kernels (`FusedAdamKernel.cpp`, `FusedSGDKernel.cpp`,
`FusedAdagradKernel.cpp`, `AmpGradScalerKernels.cpp`). 16-bit parameters are updated in float32
and rounded once. A step whose `found_inf` is 1 changes nothing.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lowering.decompositions import decomposition

aten = torch.ops.aten

Tensors = list[Tensor]
Update = Callable[..., tuple[Tensor, ...]]


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _steps(
    update: Update,
    groups: Sequence[Sequence[Tensor]],
    found_inf: Tensor | None,
) -> list[Tensors]:
    """Return the lists after `update` of one tensor of each list; empty lists stay empty."""
    present = [group for group in groups if len(group)]
    results: list[Tensors] = [[] for _ in groups]
    filled = [result for result, group in zip(results, groups, strict=True) if len(group)]
    for old in zip(*present, strict=True):
        for result, before, after in zip(filled, old, update(*map(_wide, old)), strict=True):
            after = after.to(before.dtype)
            if found_inf is not None:
                after = torch.where(found_inf.reshape(()) == 1, before, after)
            result.append(after)
    return results


def _unscaled(gradient: Tensor, grad_scale: Tensor | None) -> Tensor:
    return gradient if grad_scale is None else gradient / grad_scale.reshape(())


def _one_minus_power(base: float, step: Tensor) -> Tensor:
    """1 - base^step; the power itself would leave few digits of it while `step` is small."""
    if base == 0.0:
        return torch.ones_like(step)
    return -torch.expm1(step * math.log(base))


def fused_adam(
    params: Tensors,
    grads: Tensors,
    exp_avgs: Tensors,
    exp_avg_sqs: Tensors,
    max_exp_avg_sqs: Tensors,
    state_steps: Tensors,
    *,
    lr: float | Tensor,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
    maximize: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
    decoupled: bool,
) -> tuple[Tensors, ...]:
    """One step of Adam, or of AdamW if the weight decay is `decoupled`; the state steps stay."""

    def update(
        param: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, *rest: Tensor
    ) -> tuple[Tensor, ...]:
        step = rest[-1]
        gradient = unscaled = _unscaled(gradient, grad_scale)
        gradient = -gradient if maximize else gradient
        if weight_decay != 0 and decoupled:
            param = param - lr * weight_decay * param
        elif weight_decay != 0:
            gradient = gradient + weight_decay * param
        mean = mean + (1 - beta1) * (gradient - mean)
        square = beta2 * square + (1 - beta2) * gradient * gradient
        largest = torch.maximum(rest[0], square) if amsgrad else square
        root = largest.sqrt() / _one_minus_power(beta2, step).sqrt()
        param = param - lr / _one_minus_power(beta1, step) * mean / (root + eps)
        extra = (largest,) if len(rest) == 2 and amsgrad else rest[:-1]
        return (param, unscaled, mean, square, *extra, step)

    groups = (params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps)
    return tuple(_steps(update, groups, found_inf)[:5])


@decomposition(aten._fused_sgd.default, aten._fused_sgd.tensor_lr)
def fused_sgd(
    params: Tensors,
    grads: Tensors,
    momentum_buffer_list: Tensors,
    *,
    weight_decay: float,
    momentum: float,
    lr: float | Tensor,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> tuple[Tensors, ...]:
    """One step of SGD; the first step's momentum is the gradient."""

    def update(param: Tensor, gradient: Tensor, *buffers: Tensor) -> tuple[Tensor, ...]:
        gradient = unscaled = _unscaled(gradient, grad_scale)
        gradient = -gradient if maximize else gradient
        if weight_decay != 0:
            gradient = gradient + weight_decay * param
        after = []
        for buffer in buffers:
            moved = momentum * buffer + (1 - dampening) * gradient
            buffer = gradient if is_first_step else moved
            gradient = gradient + momentum * buffer if nesterov else buffer
            after.append(buffer)
        return (param - lr * gradient, unscaled, *after)

    return tuple(_steps(update, (params, grads, momentum_buffer_list), found_inf))


def fused_adagrad(
    params: Tensors,
    grads: Tensors,
    state_sums: Tensors,
    state_steps: Tensors,
    *,
    lr: float | Tensor,
    lr_decay: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
    results: int,
) -> tuple[Tensors, ...]:
    """One step of Adagrad; the first `results` lists (the overloads differ), state steps as is."""

    def update(param: Tensor, gradient: Tensor, total: Tensor, step: Tensor) -> tuple[Tensor, ...]:
        gradient = unscaled = _unscaled(gradient, grad_scale)
        gradient = -gradient if maximize else gradient
        if weight_decay != 0:
            gradient = gradient + weight_decay * param
        total = total + gradient * gradient
        rate = lr / (1 + (step - 1) * lr_decay)
        return (param - rate * gradient / (total.sqrt() + eps), unscaled, total, step)

    groups = (params, grads, state_sums, state_steps)
    return tuple(_steps(update, groups, found_inf)[:results])


@decomposition(aten._amp_foreach_non_finite_check_and_unscale.default)
def check_and_unscale(
    tensors: Tensors, found_inf: Tensor, inv_scale: Tensor
) -> tuple[Tensors, Tensor]:
    """Tensors times `inv_scale`, and 1 where any of them is not finite, else `found_inf`."""
    for tensor in tensors:
        bad = tensor.isfinite().logical_not().any()
        found_inf = torch.where(bad, torch.ones_like(found_inf), found_inf)
    # Not through where(inv_scale == 1): a product with one is exact.
    factor = inv_scale.reshape(())
    scaled = [(_wide(tensor) * factor).to(tensor.dtype) for tensor in tensors]
    return scaled, found_inf


@decomposition(aten._amp_update_scale.default)
def update_scale(
    scale: Tensor,
    growth_tracker: Tensor,
    found_inf: Tensor,
    scale_growth_factor: float,
    scale_backoff_factor: float,
    growth_interval: int,
) -> tuple[Tensor, Tensor]:
    """The next scale, and how many steps in a row were finite.

    After an overflow the scale shrinks; after `growth_interval` finite steps it grows, unless it
    would overflow itself.
    """
    overflowed = found_inf != 0
    successes = growth_tracker + 1
    due = successes == growth_interval
    grown = scale * scale_growth_factor
    grown = torch.where(due & grown.isfinite(), grown, scale)
    none = torch.zeros_like(growth_tracker)
    return (
        torch.where(overflowed, scale * scale_backoff_factor, grown),
        torch.where(overflowed | due, none, successes),
    )


_adam = functools.partial(fused_adam, decoupled=False)
_adamw = functools.partial(fused_adam, decoupled=True)
decomposition(aten._fused_adam.default, aten._fused_adam.tensor_lr)(_adam)
decomposition(aten._fused_adamw.default, aten._fused_adamw.tensor_lr)(_adamw)
decomposition(aten._fused_adagrad.default)(functools.partial(fused_adagrad, results=4))
decomposition(aten._fused_adagrad.tensor_lr)(functools.partial(fused_adagrad, results=3))
