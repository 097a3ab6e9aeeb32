"""The models in plain JAX, as its users write them; parameters are a flat dict.

Names are those of the torch models. Matrices are `[in, out]`, kernels `[height, width, in, out]`,
images `[batch, height, width, channels]`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.parity.sizes import EPSILON, LEARNING_RATE, MOMENTUM, ROPE_BASE, Size

Arrays = dict[str, Any]
Forward = Callable[[Arrays, Arrays, Any], tuple[Any, Arrays]]


def mlp(size: Size) -> Forward:
    """Return a function of parameters, buffers (none) and `[batch, width]`."""

    def forward(params: Arrays, buffers: Arrays, x: Any) -> tuple[Any, Arrays]:
        x = jax.nn.relu(_linear(params, "first", x))
        x = jax.nn.relu(_linear(params, "second", x))
        return _linear(params, "third", x), buffers

    return forward


def gpt2(size: Size) -> Forward:
    """Return a function of parameters, buffers (none) and `[batch, time, width]`."""

    def forward(params: Arrays, buffers: Arrays, x: Any) -> tuple[Any, Arrays]:
        batch, time, width = x.shape
        query, key, value = (
            part.reshape(batch, time, size.heads, size.head_width)
            for part in jnp.split(_linear(params, "qkv", _layer_norm(params, "norm1", x)), 3, -1)
        )
        mixed = jax.nn.dot_product_attention(query, key, value, is_causal=True)
        x = x + _linear(params, "out", mixed.reshape(batch, time, width))
        inner = jax.nn.gelu(_linear(params, "up", _layer_norm(params, "norm2", x)))
        return x + _linear(params, "down", inner), buffers

    return forward


def llama(size: Size) -> Forward:
    """Return a function of parameters, buffers (none) and `[batch, time, width]`."""

    def forward(params: Arrays, buffers: Arrays, x: Any) -> tuple[Any, Arrays]:
        batch, time, width = x.shape
        normal = _rms_norm(params, "norm1", x)
        query, key, value = (
            (normal @ params[f"{name}.weight"]).reshape(batch, time, -1, size.head_width)
            for name in ("query", "key", "value")
        )
        cos, sin = _rotations(time, size.head_width, x.dtype)
        mixed = jax.nn.dot_product_attention(
            _rotated(query, cos, sin), _rotated(key, cos, sin), value, is_causal=True
        )
        x = x + mixed.reshape(batch, time, width) @ params["out.weight"]
        normal = _rms_norm(params, "norm2", x)
        gated = jax.nn.silu(normal @ params["gate.weight"]) * (normal @ params["up.weight"])
        return x + gated @ params["down.weight"], buffers

    return forward


def resnet(size: Size) -> Forward:
    """Return a function of parameters, running statistics, `[batch, height, width, channels]`."""

    def forward(params: Arrays, buffers: Arrays, x: Any) -> tuple[Any, Arrays]:
        new: Arrays = {}
        y = jax.nn.relu(_batch_norm(params, buffers, new, "norm1", _conv(params, "conv1", x)))
        y = _batch_norm(params, buffers, new, "norm2", _conv(params, "conv2", y))
        return jax.nn.relu(x + y), new

    return forward


def _linear(params: Arrays, name: str, x: Any) -> Any:
    return x @ params[f"{name}.weight"] + params[f"{name}.bias"]


def _conv(params: Arrays, name: str, x: Any) -> Any:
    return jax.lax.conv_general_dilated(
        x, params[f"{name}.weight"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _layer_norm(params: Arrays, name: str, x: Any) -> Any:
    wide = x.astype(jnp.float32)
    mean = wide.mean(-1, keepdims=True)
    normal = (wide - mean) * jax.lax.rsqrt(wide.var(-1, keepdims=True) + EPSILON)
    return (normal * params[f"{name}.weight"] + params[f"{name}.bias"]).astype(x.dtype)


def _rms_norm(params: Arrays, name: str, x: Any) -> Any:
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + EPSILON)
    return (wide * scale * params[f"{name}.weight"]).astype(x.dtype)


def _batch_norm(params: Arrays, buffers: Arrays, new: Arrays, name: str, x: Any) -> Any:
    wide = x.astype(jnp.float32)
    mean, variance = wide.mean((0, 1, 2)), wide.var((0, 1, 2))
    count = x.size // x.shape[-1]
    for kind, value in (("mean", mean), ("var", variance * (count / (count - 1)))):
        key = f"{name}.running_{kind}"
        old = buffers[key]
        new[key] = ((1 - MOMENTUM) * old + MOMENTUM * value).astype(old.dtype)
    new[f"{name}.num_batches_tracked"] = buffers[f"{name}.num_batches_tracked"] + 1
    scale = jax.lax.rsqrt(variance + EPSILON) * params[f"{name}.weight"]
    return ((wide - mean) * scale + params[f"{name}.bias"]).astype(x.dtype)


def _rotations(time: int, width: int, dtype: Any) -> tuple[Any, Any]:
    """Return cosine and sine of the angles, `[time, 1, width]`."""
    powers = jnp.arange(0, width, 2, dtype=jnp.float32) / width
    angles = jnp.outer(jnp.arange(time, dtype=jnp.float32), ROPE_BASE**-powers)
    angles = jnp.concatenate([angles, angles], axis=-1)[:, None]
    return jnp.cos(angles).astype(dtype), jnp.sin(angles).astype(dtype)


def _rotated(x: Any, cos: Any, sin: Any) -> Any:
    low, high = jnp.split(x, 2, axis=-1)
    return x * cos + jnp.concatenate([-high, low], axis=-1) * sin


MODELS: dict[str, Callable[[Size], Forward]] = {
    "mlp": mlp,
    "gpt2": gpt2,
    "llama": llama,
    "resnet": resnet,
}


def forward_step(model: Forward) -> Any:
    """Return `step(params, buffers, x) -> (output, buffers)`; buffers are donated."""
    return jax.jit(model, donate_argnums=1)


def training_step(model: Forward) -> Any:
    """Return `step(params, buffers, x, y) -> (params, buffers, loss)`; the first two are donated.

    Loss: the mean squared error, in float32. Update: gradient descent.
    """

    def loss_of(params: Arrays, buffers: Arrays, x: Any, y: Any) -> tuple[Any, Arrays]:
        output, new = model(params, buffers, x)
        return jnp.square(output.astype(jnp.float32) - y.astype(jnp.float32)).mean(), new

    def step(params: Arrays, buffers: Arrays, x: Any, y: Any) -> tuple[Arrays, Arrays, Any]:
        (loss, new), grads = jax.value_and_grad(loss_of, has_aux=True)(params, buffers, x, y)
        params = {name: value - LEARNING_RATE * grads[name] for name, value in params.items()}
        return params, new, loss

    return jax.jit(step, donate_argnums=(0, 1))
