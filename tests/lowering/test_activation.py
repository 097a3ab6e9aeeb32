import math

import pytest
import torch
from torch.nn import functional

from tests.lowering.running import check

INF, NAN = math.inf, math.nan
HARD = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.3, -0.3, 8.0, -8.0, 3.5, -3.5]

FUNCTIONS = {
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "elu": functional.elu,
    "elu_scaled": lambda x: torch.ops.aten.elu.default(x, 0.7, 1.3, 0.9),
    "leaky_relu": functional.leaky_relu,
    "leaky_relu_rising": lambda x: functional.leaky_relu(x, -0.2),
    "hardtanh": lambda x: functional.hardtanh(x, -0.5, 2),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_hard_values(name, dtype):
    function = FUNCTIONS[name]
    # float32 rounding in the far tail of gelu is relative to the operand, not to the result.
    values = torch.tensor(HARD, dtype=dtype)
    check(
        lambda x, empty, number: [function(x), function(empty), function(number)],
        values,
        torch.empty(0, 2, dtype=dtype),
        torch.tensor(0.4, dtype=dtype),
    )


def test_integers():
    check(
        lambda *tensors: [
            *(functional.hardtanh(x) for x in tensors),
            *(torch.relu(x) for x in tensors),
            *(torch.sigmoid(x) for x in tensors),
        ],
        torch.tensor([-5, 0, 5]),
        torch.tensor([-128, 0, 127], dtype=torch.int8),
    )
    check(torch.sigmoid, torch.tensor([True, False]))


def test_sigmoid_of_complex():
    check(torch.sigmoid, torch.tensor([0.5 + 1j, -2 - 0.3j]))


def test_decomposed_activations():
    check(
        lambda x: [
            functional.silu(x),
            functional.softplus(x),
            functional.hardswish(x),
            functional.mish(x),
            functional.logsigmoid(x),
        ],
        torch.tensor([-3.0, -0.5, 0.0, 0.5, 30.0]),
    )


def test_gradients():
    def loss(x):
        x = x.requires_grad_()
        total = sum(
            functional_.sum() for functional_ in (functional.gelu(x), functional.elu(x), x.relu())
        )
        return torch.autograd.grad(total, x)

    x = torch.tensor([-2.0, -0.5, 0.5, 2.0])
    check(loss, x)
