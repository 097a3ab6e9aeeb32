"""Single ops and short chains, each at a small and a large size."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.peers import contest
from benchmarks.registry import Case, Settings, Suite
from benchmarks.results import OURS, Measured

NAMES = (OURS, "eager", "inductor", "jax.jit")


class Function(nn.Module):
    """A function as a module, which is what competitors are given."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the function's result."""
        return self.function(*inputs)


@dataclass(frozen=True)
class Op:
    """A function, and the shapes of its inputs at both sizes."""

    name: str
    function: Callable[..., Tensor]
    small: tuple[tuple[int, ...], ...]
    large: tuple[tuple[int, ...], ...]
    indexed: int | None = None
    """The dim of the first input that the last one holds indices into."""


def _chain(x: Tensor, y: Tensor) -> Tensor:
    return torch.sigmoid(x * 2 + y) * torch.tanh(x - y) + x.exp().clamp(max=3)


def _residual(x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    return F.layer_norm(x + F.gelu(y), weight.shape, weight)


def _masked(x: Tensor) -> Tensor:
    return torch.where(x > 0, x.square(), -x).mul(0.5).add(1).rsqrt()


def _sorted(x: Tensor) -> Tensor:
    return torch.sort(x, -1).values


def _topk(x: Tensor) -> Tensor:
    return torch.topk(x, 8, -1).values


def _index_add(x: Tensor, source: Tensor, index: Tensor) -> Tensor:
    return x.index_add(0, index, source)


def _conv(x: Tensor, weight: Tensor) -> Tensor:
    return F.conv2d(x, weight, padding=1)


def _depthwise(x: Tensor, weight: Tensor) -> Tensor:
    return F.conv2d(x, weight, padding=1, groups=x.shape[1])


def _batch_norm(x: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, training=True)


def _embedding(table: Tensor, index: Tensor) -> Tensor:
    return F.embedding(index, table)


def _causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


IMAGES_SMALL, IMAGES_LARGE = (1, 16, 16, 16), (4, 64, 56, 56)
HEADS_SMALL, HEADS_LARGE = ((1, 2, 16, 32),) * 3, ((2, 12, 256, 64),) * 3
ROWS_SMALL, ROWS_LARGE = (16, 64), (2048, 1024)
CLASSES = (256, 32000)

OPS = (
    Op("matmul", torch.matmul, ((64, 64),) * 2, ((1024, 1024),) * 2),
    Op("matmul-thin", torch.matmul, ((1, 256), (256, 256)), ((1, 4096), (4096, 4096))),
    Op("matmul-batched", torch.bmm, ((8, 32, 32),) * 2, ((32, 256, 128), (32, 128, 256))),
    Op("linear", F.linear, ((8, 128), (128, 128), (128,)), ((512, 768), (3072, 768), (3072,))),
    Op("conv2d", _conv, (IMAGES_SMALL, (16, 16, 3, 3)), (IMAGES_LARGE, (64, 64, 3, 3))),
    Op(
        "conv2d-depthwise", _depthwise, (IMAGES_SMALL, (16, 1, 3, 3)), (IMAGES_LARGE, (64, 1, 3, 3))
    ),
    Op("max-pool2d", lambda x: F.max_pool2d(x, 3, 2, 1), (IMAGES_SMALL,), (IMAGES_LARGE,)),
    Op("attention", F.scaled_dot_product_attention, HEADS_SMALL, HEADS_LARGE),
    Op("attention-causal", _causal, HEADS_SMALL, HEADS_LARGE),
    Op("softmax", lambda x: x.softmax(-1), (ROWS_SMALL,), (ROWS_LARGE,)),
    Op("log-softmax", lambda x: x.log_softmax(-1), (ROWS_SMALL,), (CLASSES,)),
    Op("layer-norm", lambda x: F.layer_norm(x, x.shape[-1:]), (ROWS_SMALL,), (ROWS_LARGE,)),
    Op("batch-norm", _batch_norm, (IMAGES_SMALL,), (IMAGES_LARGE,)),
    Op("gelu", F.gelu, (ROWS_SMALL,), (ROWS_LARGE,)),
    Op("silu", F.silu, (ROWS_SMALL,), (ROWS_LARGE,)),
    Op("chain", _chain, (ROWS_SMALL,) * 2, (ROWS_LARGE,) * 2),
    Op("where-chain", _masked, (ROWS_SMALL,), (ROWS_LARGE,)),
    Op("residual-norm", _residual, (*(ROWS_SMALL,) * 2, (64,)), (*(ROWS_LARGE,) * 2, (1024,))),
    Op("sum-rows", lambda x: x.sum(-1), (ROWS_SMALL,), (ROWS_LARGE,)),
    Op("sum-columns", lambda x: x.sum(0), (ROWS_SMALL,), (ROWS_LARGE,)),
    Op("mean-all", lambda x: x.mean(), (ROWS_SMALL,), (ROWS_LARGE,)),
    Op("argmax", lambda x: x.argmax(-1), (ROWS_SMALL,), (CLASSES,)),
    Op("cumsum", lambda x: x.cumsum(-1), (ROWS_SMALL,), ((512, 1024),)),
    Op("sort", _sorted, (ROWS_SMALL,), ((512, 1024),)),
    Op("topk", _topk, (ROWS_SMALL,), ((64, 32000),)),
    Op("cat", lambda *parts: torch.cat(parts, -1), (ROWS_SMALL,) * 3, ((1024, 512),) * 3),
    Op("transpose", lambda x: x.mT.contiguous(), ((64, 64),), ((2048, 2048),)),
    Op("embedding", _embedding, ((100, 32), (16,)), ((30000, 768), (4, 256)), 0),
    Op("gather", lambda x, i: x.gather(1, i), ((16, 64), (16, 8)), ((512, 4096), (512, 1024)), 1),
    Op(
        "index-add", _index_add, ((32, 16), (64, 16), (64,)), ((1024, 256), (8192, 256), (8192,)), 0
    ),
)


def inputs_of(op: Op, *, large: bool) -> list[Tensor]:
    """Return random inputs, always the same ones."""
    torch.manual_seed(0)
    shapes = op.large if large else op.small
    inputs = [torch.randn(shape) for shape in shapes]
    if op.indexed is not None:
        inputs[-1] = torch.randint(0, shapes[0][op.indexed], shapes[-1])
    return inputs


def _op(op: Op, large: bool, settings: Settings) -> Measured:
    inputs = inputs_of(op, large=large)
    with torch.no_grad():
        return contest(Function(op.function), inputs, NAMES).timed(rounds=settings.rounds_or(15))


def _shapes(shapes: tuple[tuple[int, ...], ...]) -> str:
    return ", ".join(str(list(shape)) for shape in shapes)


SUITE = Suite(
    "ops",
    tuple(
        Case(
            f"{op.name}-{size}",
            f"{op.name.replace('-', ' ')} of {_shapes(shapes)}",
            functools.partial(_op, op, size == "large"),
        )
        for op in OPS
        for size, shapes in (("small", op.small), ("large", op.large))
    ),
)
