"""Convolutions and their gradients against eager PyTorch."""

from __future__ import annotations

from dataclasses import astuple, dataclass

import pytest
import torch

from tests.lowering.running import check

aten = torch.ops.aten


@dataclass(frozen=True)
class Case:
    """Sizes and geometry of one convolution; channels are those of the input and the output."""

    spatial: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...] = (1,)
    padding: tuple[int, ...] = (0,)
    dilation: tuple[int, ...] = (1,)
    transposed: bool = False
    output_padding: tuple[int, ...] = (0,)
    groups: int = 1
    channels: tuple[int, int] = (4, 6)

    def tensors(self, dtype: torch.dtype, batch: int = 2) -> list[torch.Tensor]:
        """Return input, weight and bias with small values."""
        inputs, outputs = self.channels
        ends = (inputs, outputs) if self.transposed else (outputs, inputs)
        shapes = (
            (batch, inputs, *self.spatial),
            (ends[0], ends[1] // self.groups, *self.kernel),
            (outputs,),
        )
        if not dtype.is_floating_point:
            return [torch.randint(0, 5, shape).to(dtype) for shape in shapes]
        return [torch.randn(shape, dtype=dtype) for shape in shapes]

    def arguments(self) -> list[object]:
        """Return the arguments of `aten.convolution` from `stride` on."""
        rank = len(self.spatial)
        stride, padding, dilation, transposed, output_padding, groups = astuple(self)[2:8]
        spread = (list(n) * (rank // len(n)) for n in (stride, padding, dilation, output_padding))
        stride, padding, dilation, output_padding = spread
        return [stride, padding, dilation, transposed, output_padding, groups]


CASES = {
    "1d": Case((9,), (3,)),
    "1d strided": Case((10,), (3,), stride=(3,), padding=(1,)),
    "2d": Case((7, 6), (3, 2)),
    "2d uneven": Case((9, 8), (3, 2), stride=(2, 3), padding=(2, 1), dilation=(1, 2)),
    "2d grouped": Case((7, 6), (3, 3), stride=(2,), padding=(1,), groups=2),
    "2d depthwise": Case((7, 6), (3, 3), padding=(1,), groups=4, channels=(4, 8)),
    "2d windows miss the end": Case((8, 9), (2, 2), stride=(3,)),
    "2d wide padding": Case((4, 3), (2, 2), padding=(4, 3)),
    "3d": Case((5, 4, 6), (2, 3, 2), stride=(1, 2, 1), padding=(1,), groups=2),
    "1d transposed": Case((5,), (4,), stride=(2,), padding=(1,), transposed=True),
    "2d transposed": Case((5, 4), (3, 2), stride=(2, 3), transposed=True, output_padding=(1, 2)),
    "2d transposed uneven": Case((4, 5), (3, 2), (1, 2), (1, 2), (3, 2), True, (2, 1), groups=2),
    "2d transposed, wide padding": Case((5, 6), (2, 2), padding=(3,), transposed=True),
    "3d transposed": Case((3, 2, 4), (2, 3, 2), (2,), (1,), transposed=True, groups=2),
}


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("name", CASES)
def test_convolution_and_its_gradients(name: str) -> None:
    case = CASES[name]
    operand, weight, bias = case.tensors(torch.float32)
    arguments = case.arguments()
    grad = torch.randn_like(aten.convolution(operand, weight, bias, *arguments))

    def function(operand, weight, bias, grad):  # type: ignore[no-untyped-def]
        sizes = list(bias.shape)
        return (
            aten.convolution(operand, weight, bias, *arguments),
            aten.convolution(operand, weight, None, *arguments),
            aten.convolution_backward(grad, operand, weight, sizes, *arguments, [True] * 3),
        )

    check(function, operand, weight, bias, grad, tolerance=5e-6)


@pytest.mark.parametrize("mask", [(True, False, False), (False, True, False), (False, True, True)])
def test_gradients_that_are_not_wanted_are_none(mask: tuple[bool, ...]) -> None:
    case = CASES["2d grouped"]
    operand, weight, bias = case.tensors(torch.float32)
    arguments = case.arguments()
    grad = torch.randn_like(aten.convolution(operand, weight, bias, *arguments))

    def function(operand, weight, grad):  # type: ignore[no-untyped-def]
        grads = aten.convolution_backward(grad, operand, weight, [6], *arguments, list(mask))
        return tuple(grad for grad, wanted in zip(grads, mask, strict=True) if wanted)

    check(function, operand, weight, grad, tolerance=5e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("name", ["2d grouped", "2d transposed"])
def test_dtypes(name: str, dtype: torch.dtype) -> None:
    case = CASES[name]
    operand, weight, bias = case.tensors(dtype)
    arguments = case.arguments()
    grad = torch.randn_like(aten.convolution(operand, weight, bias, *arguments))
    check(
        lambda operand, weight, bias, grad: (
            aten.convolution(operand, weight, bias, *arguments),
            aten.convolution_backward(grad, operand, weight, [6], *arguments, [True] * 3),
        ),
        operand,
        weight,
        bias,
        grad,
    )


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_integers(dtype: torch.dtype) -> None:
    arguments = CASES["2d grouped"].arguments()
    check(
        lambda operand, weight, bias: aten.convolution(operand, weight, bias, *arguments),
        *CASES["2d grouped"].tensors(dtype),
    )


def test_memory_order_of_the_input_does_not_matter() -> None:
    operand, weight, bias = CASES["2d"].tensors(torch.float32)
    arguments = CASES["2d"].arguments()
    check(
        lambda operand, weight, bias: aten.convolution(operand, weight, bias, *arguments),
        operand.to(memory_format=torch.channels_last),
        weight.to(memory_format=torch.channels_last),
        bias,
        tolerance=5e-6,
    )


def test_an_empty_batch() -> None:
    operand, weight, bias = CASES["2d"].tensors(torch.float32, batch=0)
    arguments = CASES["2d"].arguments()
    grad = aten.convolution(operand, weight, bias, *arguments)
    check(
        lambda operand, weight, bias, grad: (
            aten.convolution(operand, weight, bias, *arguments),
            aten.convolution_backward(grad, operand, weight, [6], *arguments, [True] * 3),
        ),
        operand,
        weight,
        bias,
        grad,
    )
