"""Modules whose ops are torch's special cases: recurrent ones, attention, running statistics."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import tpu_compile.device
from tests.device.comparing import assert_same, fallbacks, moved

TOLERANCES = {"atol": 1e-4, "rtol": 1e-4}


@pytest.fixture(autouse=True)
def fused() -> Any:
    """Fused ops compile once per pass, single ones each."""
    with tpu_compile.device.mode("fused"):
        yield


def compare(
    module: nn.Module, *inputs: Any, call: Callable[..., Any] | None = None, backward: bool = True
) -> None:
    """Check outputs, gradients and buffers of `module` against the CPU's."""
    module.zero_grad()
    call = call or (lambda module, *inputs: module(*inputs))
    ours, given = moved(module), moved(list(inputs))
    expected, actual = call(module, *inputs), call(ours, *given)
    assert_same(actual, expected, **TOLERANCES)
    assert not fallbacks()
    if not backward:
        return
    for outputs in (expected, actual):
        leaves = torch.utils._pytree.tree_leaves(outputs)
        sum((x.square().sum() for x in leaves if x.requires_grad), torch.tensor(0.0)).backward()
    for (name, p), mine in zip(module.named_parameters(), ours.parameters(), strict=True):
        assert (p.grad is None) == (mine.grad is None), name
        if p.grad is not None:
            assert_same(mine.grad, p.grad, atol=1e-3, rtol=1e-3)
    assert_same(list(ours.buffers()), list(module.buffers()), **TOLERANCES)


SLOW = pytest.mark.full


@pytest.mark.parametrize("kind", [nn.RNN, pytest.param(nn.GRU, marks=SLOW), nn.LSTM])
def test_recurrent(kind: type[nn.RNNBase]) -> None:
    compare(kind(3, 4, batch_first=True, bidirectional=True), torch.randn(2, 2, 3))


@SLOW
@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_recurrent_layers(kind: type[nn.RNNBase]) -> None:
    compare(kind(3, 4, num_layers=2, bidirectional=True), torch.randn(3, 2, 3))


@pytest.mark.parametrize("kind", [nn.GRU, pytest.param(nn.LSTM, marks=SLOW)])
def test_packed_sequences(kind: type[nn.RNNBase]) -> None:
    def call(module: nn.Module, x: torch.Tensor) -> Any:
        packed = nn.utils.rnn.pack_padded_sequence(
            x, torch.tensor([2, 1]), batch_first=True, enforce_sorted=False
        )
        output, state = module(packed)
        return nn.utils.rnn.pad_packed_sequence(output, batch_first=True)[0], state

    compare(kind(3, 4, batch_first=True), torch.randn(2, 2, 3), call=call)


def test_packed_sequences_move() -> None:
    packed = nn.utils.rnn.pack_sequence([torch.ones(2, 1), torch.zeros(1, 1)])
    there = packed.to("tpu")
    assert there.data.is_tpu
    assert there.batch_sizes.device.type == "cpu"
    assert there.to("cpu").data.equal(packed.data)


@pytest.mark.parametrize("kind", [nn.RNNCell, nn.GRUCell, nn.LSTMCell])
def test_cells(kind: type[nn.RNNCellBase]) -> None:
    compare(kind(3, 4), torch.randn(2, 3))


def test_dropout_between_layers() -> None:
    module = nn.LSTM(3, 4, num_layers=2, dropout=0.5).to("tpu")
    x = torch.randn(1, 2, 3).to("tpu")
    with torch.no_grad():
        one, other = module(x)[0], module(x)[0]
        assert not one.equal(other)
        module.eval()
        assert module(x)[0].equal(module(x)[0])


@SLOW
def test_multihead_attention() -> None:
    x = torch.randn(2, 3, 4)
    compare(nn.MultiheadAttention(4, 2, batch_first=True), x, x, x)


def test_multihead_attention_with_masks() -> None:
    def call(module: nn.Module, x: torch.Tensor, padding: torch.Tensor, mask: torch.Tensor) -> Any:
        return module(x, x, x, key_padding_mask=padding, attn_mask=mask)

    padding = torch.tensor([[False, False, True], [False, False, False]])
    compare(
        nn.MultiheadAttention(4, 2, batch_first=True),
        torch.randn(2, 3, 4),
        padding,
        torch.ones(3, 3, dtype=torch.bool).triu(1),
        call=call,
    )


@pytest.mark.parametrize("training", [True, False])
def test_transformer_encoder(training: bool) -> None:
    layer = nn.TransformerEncoderLayer(4, 2, dim_feedforward=8, dropout=0.0, batch_first=True)
    module = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).train(training)
    with torch.set_grad_enabled(training):  # the fast path is for inference
        compare(module, torch.randn(2, 3, 4), backward=training)


@SLOW
def test_transformer_decoder() -> None:
    module = nn.TransformerDecoderLayer(4, 2, dim_feedforward=8, dropout=0.0, batch_first=True)
    mask = nn.Transformer.generate_square_subsequent_mask(3)

    def call(module: nn.Module, x: torch.Tensor, memory: torch.Tensor, mask: torch.Tensor) -> Any:
        return module(x, memory, tgt_mask=mask, tgt_is_causal=True)

    compare(module, torch.randn(2, 3, 4), torch.randn(2, 2, 4), mask, call=call)


@pytest.mark.parametrize("momentum", [0.1, pytest.param(None, marks=SLOW)])
def test_batch_norm(momentum: float | None) -> None:
    module = nn.BatchNorm2d(3, momentum=momentum)
    compare(module, torch.randn(2, 3, 2, 2))
    compare(module, torch.randn(2, 3, 2, 2))
    compare(module.eval(), torch.randn(2, 3, 2, 2))


@pytest.mark.parametrize("kind", ["sum", pytest.param("mean", marks=SLOW), "max"])
def test_embedding_bag(kind: str) -> None:
    module = nn.EmbeddingBag(5, 2, mode=kind, padding_idx=0)
    indices = torch.tensor([1, 2, 0, 4, 4])
    compare(module, indices, torch.tensor([0, 3]))


def test_embedding() -> None:
    module = nn.Embedding(5, 2, padding_idx=0, scale_grad_by_freq=True)
    compare(module, torch.tensor([[1, 1], [0, 4]]))


def test_convolutions_and_pooling() -> None:
    module = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, groups=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.ConvTranspose2d(4, 2, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 2),
    )  # fmt: skip
    compare(module, torch.randn(1, 2, 4, 4))


def test_channels_last() -> None:
    module = nn.Conv2d(2, 3, 1).to(memory_format=torch.channels_last)
    ours = copy.deepcopy(module).to("tpu")
    x = torch.randn(1, 2, 2, 2).to(memory_format=torch.channels_last)
    there = x.to("tpu")
    assert there.is_contiguous(memory_format=torch.channels_last)
    assert_same(ours(there), module(x), **TOLERANCES)


def test_parametrizations() -> None:
    module = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    ours = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)).to("tpu")
    ours.load_state_dict(module.state_dict())
    x = torch.randn(3, 2)
    assert_same(ours(x.to("tpu")), module(x), **TOLERANCES)


def test_lazy_modules_and_initialization() -> None:
    module = nn.LazyLinear(2, device="tpu")
    assert module(torch.ones(1, 3, device="tpu")).shape == (1, 2)
    weight = nn.init.orthogonal_(torch.empty(2, 2, device="tpu"))
    torch.testing.assert_close((weight @ weight.t()).cpu(), torch.eye(2), **TOLERANCES)
    assert nn.init.kaiming_uniform_(weight).is_tpu


def test_compiled_functions_run_recurrent_modules_eagerly() -> None:
    """Dynamo leaves them to torch, and must leave alone the kernels that run then."""
    module = nn.GRU(2, 2)
    ours = moved(module)
    x = torch.randn(1, 1, 2)
    compiled = torch.compile(lambda x: ours(x)[0] * 2, backend="tpu")
    with torch.no_grad():
        assert_same(compiled(x.to("tpu")), module(x)[0] * 2, **TOLERANCES)
