"""The models in plain torch, and their training step as one function."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.parity.sizes import EPSILON, LEARNING_RATE, MOMENTUM, ROPE_BASE, Size

Tensors = dict[str, torch.Tensor]


class MLP(nn.Module):
    """Three linear layers with relu between."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.first = nn.Linear(size.width, size.hidden)
        self.second = nn.Linear(size.hidden, size.hidden)
        self.third = nn.Linear(size.hidden, size.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[batch, width]` to the same."""
        return self.third(F.relu(self.second(F.relu(self.first(x)))))


class GPT2Block(nn.Module):
    """Causal attention and an MLP with gelu, each after a layer norm and around a skip."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size
        self.norm1 = nn.LayerNorm(size.width, eps=EPSILON)
        self.qkv = nn.Linear(size.width, 3 * size.width)
        self.out = nn.Linear(size.width, size.width)
        self.norm2 = nn.LayerNorm(size.width, eps=EPSILON)
        self.up = nn.Linear(size.width, size.hidden)
        self.down = nn.Linear(size.hidden, size.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[batch, time, width]` to the same."""
        batch, time, width = x.shape
        query, key, value = (
            part.view(batch, time, self.size.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).split(width, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, time, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class LlamaBlock(nn.Module):
    """Grouped causal attention with rotary positions and SwiGLU, each after an RMS norm."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size
        shared = size.key_heads * size.head_width
        self.norm1 = nn.RMSNorm(size.width, eps=EPSILON)
        self.query = nn.Linear(size.width, size.width, bias=False)
        self.key = nn.Linear(size.width, shared, bias=False)
        self.value = nn.Linear(size.width, shared, bias=False)
        self.out = nn.Linear(size.width, size.width, bias=False)
        self.norm2 = nn.RMSNorm(size.width, eps=EPSILON)
        self.gate = nn.Linear(size.width, size.hidden, bias=False)
        self.up = nn.Linear(size.width, size.hidden, bias=False)
        self.down = nn.Linear(size.hidden, size.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[batch, time, width]` to the same."""
        batch, time, width = x.shape
        normal = self.norm1(x)
        query, key, value = (
            layer(normal).view(batch, time, -1, self.size.head_width).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        cos, sin = _rotations(time, self.size.head_width, x.dtype)
        mixed = F.scaled_dot_product_attention(
            _rotated(query, cos, sin),
            _rotated(key, cos, sin),
            value,
            is_causal=True,
            enable_gqa=True,
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, time, width))
        normal = self.norm2(x)
        return x + self.down(F.silu(self.gate(normal)) * self.up(normal))


def _rotations(time: int, width: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosine and sine of the angles, `[time, width]`."""
    powers = torch.arange(0, width, 2, dtype=torch.float32) / width
    angles = torch.outer(torch.arange(time, dtype=torch.float32), ROPE_BASE**-powers)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-high, low], dim=-1) * sin


class ResNetBlock(nn.Module):
    """Two convolutions with batch norm by the batch's own statistics, around a skip."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        for number in (1, 2):
            conv = nn.Conv2d(size.width, size.width, 3, padding=1, bias=False)
            self.add_module(f"conv{number}", conv)
            self.add_module(f"norm{number}", nn.BatchNorm2d(size.width, EPSILON, MOMENTUM))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[batch, channels, height, width]` to the same; writes the running statistics."""
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(x + self.norm2(self.conv2(y)))


MODELS: dict[str, Callable[[Size], nn.Module]] = {
    "mlp": MLP,
    "gpt2": GPT2Block,
    "llama": LlamaBlock,
    "resnet": ResNetBlock,
}


def forward_step(model: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the model as a function without gradients; buffers are written in place."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return model(x)

    return forward


def training_step(model: nn.Module) -> Callable[..., torch.Tensor]:
    """Return `step(params, buffers, x, y) -> loss`, which writes new values in place.

    Loss: the mean squared error, in float32. Update: gradient descent.
    """

    def loss_of(
        params: Tensors, buffers: Tensors, x: torch.Tensor, y: torch.Tensor
    ) -> tuple[torch.Tensor, Tensors]:
        # Within a transform only what was made there may be written.
        own = {name: buffer.clone() for name, buffer in buffers.items()}
        output = torch.func.functional_call(model, {**params, **own}, (x,))
        return (output.float() - y.float()).square().mean(), own

    def step(params: Tensors, buffers: Tensors, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        grads, (loss, new) = torch.func.grad_and_value(loss_of, has_aux=True)(params, buffers, x, y)
        for name, param in params.items():
            param.copy_(param - LEARNING_RATE * grads[name])
        for name, buffer in buffers.items():
            buffer.copy_(new[name])
        return loss

    return step
