"""LSTM layers and their gradients against eager PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lowering import lower_graph
from lowering.errors import UnsupportedOpError
from tests.lowering.running import assert_same, check, run, trace

aten = torch.ops.aten
TOLERANCE = 1e-5


def tensors(
    time: int = 6, batch: int = 2, features: int = 3, hidden: int = 4, biases: bool = True
) -> list[torch.Tensor]:
    """Return input, two weights, two biases, hidden and cell state of one layer."""
    wide = 4 * hidden
    shapes = ((time, batch, features), (wide, features), (wide, hidden), (wide,), (wide,))
    data = [torch.randn(shape) for shape in shapes]
    if not biases:
        # PyTorch passes zeros in the shape of the weights.
        data[3:] = [torch.zeros(wide, features), torch.zeros(wide, hidden)]
    return [*data, torch.randn(1, batch, hidden), torch.randn(1, batch, hidden)]


def forward(
    *data: torch.Tensor, reverse: bool = False, biases: bool = True, mode: int = 2, **other: Any
) -> list[torch.Tensor]:
    """Return outputs, last hidden and last cell state; the workspace is eager's own business."""
    options = {"train": False, "bidirectional": False, "batch_first": False, **other}
    hidden = data[2].shape[1]
    return aten.mkldnn_rnn_layer(
        *data,
        reverse,
        [],
        mode,
        hidden,
        1,
        biases,
        options["bidirectional"],
        options["batch_first"],
        options["train"],
    )


def backward(
    data: tuple[torch.Tensor, ...],
    outputs: tuple[torch.Tensor, ...],
    grads: tuple[torch.Tensor | None, ...],
    workspace: torch.Tensor,
    *,
    reverse: bool,
    biases: bool,
) -> list[torch.Tensor]:
    """Return the seven gradients of a layer."""
    return aten.mkldnn_rnn_layer_backward(
        *data,
        *outputs,
        *grads,
        reverse,
        2,
        data[2].shape[1],
        1,
        biases,
        True,
        False,
        [],
        False,
        workspace,
    )


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize(
    ("time", "biases", "reverse"), [(1, True, False), (6, False, False), (6, True, True)]
)
def test_layer_and_its_gradients(time: int, biases: bool, reverse: bool) -> None:
    data = tuple(tensors(time, biases=biases))
    *outputs, workspace = forward(*data, reverse=reverse, biases=biases, train=True)
    grads = tuple(torch.randn_like(output) for output in outputs)
    check(
        lambda *data: forward(*data, reverse=reverse, biases=biases)[:3],
        *data,
        tolerance=TOLERANCE,
    )
    check(
        lambda data, outputs, grads, workspace: backward(
            data, outputs, grads, workspace, reverse=reverse, biases=biases
        ),
        data,
        tuple(outputs),
        grads,
        workspace,
        tolerance=TOLERANCE,
    )


def test_missing_gradients_are_zero() -> None:
    data = tuple(tensors())
    *outputs, workspace = forward(*data, train=True)
    grads = [torch.zeros_like(output) for output in outputs]
    grads[0] = torch.randn_like(outputs[0])
    expected = backward(data, outputs, grads, workspace, reverse=False, biases=True)
    ours = run(
        lambda data, outputs, grad, workspace: backward(
            data, outputs, (grad, None, None), workspace, reverse=False, biases=True
        ),
        data,
        tuple(outputs),
        grads[0],
        workspace,
    )
    for mine, eager in zip(ours, expected, strict=True):
        assert_same(mine, eager, tolerance=TOLERANCE)


@pytest.mark.parametrize("reverse", [False, True])
def test_no_steps_give_back_the_states(reverse: bool) -> None:
    data = tensors(time=0)
    ours = run(lambda *data: forward(*data, reverse=reverse)[:3], *data)
    for mine, expected in zip(ours, (torch.zeros(0, 2, 4), *data[5:]), strict=True):
        assert_same(mine, expected)
    outputs, grads = tuple(ours), tuple(torch.randn_like(output) for output in ours)
    ours = run(
        lambda data, outputs, grads, workspace: backward(
            data, outputs, grads, workspace, reverse=reverse, biases=True
        ),
        tuple(data),
        outputs,
        grads,
        torch.zeros(0, dtype=torch.uint8),
    )
    assert not any(grad.any() for grad in ours[:5])
    for mine, expected in zip(ours[5:], grads[1:], strict=True):
        assert_same(mine, expected)


def test_bfloat16_follows_float32() -> None:
    data = [tensor.bfloat16() for tensor in tensors(time=3)]
    expected = forward(*(tensor.float() for tensor in data))[:3]
    for mine, exact in zip(run(lambda *data: forward(*data)[:3], *data), expected, strict=True):
        assert mine.dtype is torch.bfloat16
        assert_same(mine.float(), exact, tolerance=3e-2)


def test_the_loop_does_not_grow_with_time() -> None:
    sizes = {
        len(lower_graph(trace(lambda *data: forward(*data)[:3], *tensors(time))).text())
        for time in (20, 80)
    }
    assert len(sizes) == 1


@pytest.mark.parametrize(
    ("options", "why"),
    [({"mode": 1}, "only the LSTM mode"), ({"batch_first": True}, "batch-first")],
)
def test_other_layers_are_refused(options: dict[str, Any], why: str) -> None:
    graph = trace(lambda *data: forward(*data, **options)[:3], *tensors())
    with pytest.raises(UnsupportedOpError, match=why):
        lower_graph(graph)
