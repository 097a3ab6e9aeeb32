"""One set of weights and inputs for both sides, and the check that both compute the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn

from benchmarks.parity import jax_models, torch_models
from benchmarks.parity.sizes import SMALL, Size

# Of the largest element of a result, by the dtype that the model computes in.
TOLERANCES = {"float32": 1e-4, "bfloat16": 6e-2}


def torch_side(name: str, size: Size) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Return the model in training mode, an input and a target, from a fixed seed."""
    torch.manual_seed(0)
    dtype = getattr(torch, size.dtype)
    model = torch_models.MODELS[name](size).to(dtype)
    return model, torch.randn(size.input).to(dtype), torch.randn(size.input).to(dtype)


def to_jax(tensor: torch.Tensor) -> Any:
    """Return a tensor as JAX's users hold it: matrices `[in, out]`, channels last."""
    value = tensor.detach()
    if value.dtype is torch.bfloat16:
        array = jnp.asarray(value.float().numpy()).astype(jnp.bfloat16)
    else:
        array = jnp.asarray(value.numpy())
    return array


def parameter_to_jax(tensor: torch.Tensor) -> Any:
    """Return a parameter or its gradient: `[out, in]` as `[in, out]`, OIHW as HWIO."""
    array = to_jax(tensor)
    if array.ndim == 4:
        return array.transpose(2, 3, 1, 0)
    return array.T if array.ndim == 2 else array


def image_to_jax(tensor: torch.Tensor) -> Any:
    """Return an activation: NCHW as NHWC, others as they are."""
    array = to_jax(tensor)
    return array.transpose(0, 2, 3, 1) if array.ndim == 4 else array


def jax_side(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor
) -> tuple[dict[str, Any], dict[str, Any], Any, Any]:
    """Return parameters, buffers, input and target of the torch side as JAX arrays."""
    params = {name: parameter_to_jax(value) for name, value in model.named_parameters()}
    buffers = {name: to_jax(value) for name, value in model.named_buffers()}
    return params, buffers, image_to_jax(x), image_to_jax(y)


def largest_difference(name: str, dtype: str) -> float:
    """Return how far both sides' results of one training step lie apart, run on the CPU.

    Compared are output, loss, buffers and parameters (in float32 what the step added to them; in
    16 bits that is mostly rounding), each relative to its largest element. The torch side is eager.
    """
    size = replace(SMALL[name], dtype=dtype)
    model, x, y = torch_side(name, size)
    forward = jax_models.MODELS[name](size)
    params, buffers, image, target = jax_side(model, x, y)
    with jax.default_device(jax.devices("cpu")[0]), jax.default_matmul_precision("highest"):
        output, _ = forward(params, buffers, image)
        old = dict(params)
        new_params, new_buffers, loss = jax.jit(jax_models.training_step(forward).__wrapped__)(
            params, buffers, image, target
        )
    own_params = {key: value.detach().clone() for key, value in model.named_parameters()}
    own_buffers = {key: value.clone() for key, value in model.named_buffers()}
    own_output = torch.func.functional_call(
        model, {**own_params, **{key: value.clone() for key, value in own_buffers.items()}}, (x,)
    )
    own_loss = torch_models.training_step(model)(own_params, own_buffers, x, y)
    pairs = [(image_to_jax(own_output), output), (to_jax(own_loss), loss)]
    pairs += [
        (parameter_to_jax(own_params[key]) - old[key], new_params[key] - old[key])
        if dtype == "float32"
        else (parameter_to_jax(own_params[key]), new_params[key])
        for key in own_params
    ]
    pairs += [(to_jax(own_buffers[key]), new_buffers[key]) for key in own_buffers]
    return max(_distance(ours, theirs) for ours, theirs in pairs)


def _distance(ours: Any, theirs: Any) -> float:
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        raise ValueError(
            f"one side gives {ours.dtype}{ours.shape}, the other {theirs.dtype}{theirs.shape}"
        )
    first, second = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    return float(np.abs(first - second).max() / max(np.abs(second).max(), 1e-30))
