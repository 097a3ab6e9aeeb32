import math

import pytest
import torch
from torch.nn import functional

from tests.lowering.elementwise import check_each
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
def test_hard_values(dtype):
    functions = {name: f for name, f in FUNCTIONS.items() if "gelu" not in name}
    check_each(functions, torch.tensor(HARD, dtype=dtype), signed_zeros=False)
    # In the tail of gelu rounding is relative to the operand, not to the result.
    for name in ("gelu", "gelu_tanh"):
        check(FUNCTIONS[name], torch.tensor(HARD, dtype=dtype))


def test_shapes():
    for values in torch.empty(0, 2), torch.tensor(0.4), torch.rand(2, 3).t():
        check_each(FUNCTIONS, values)


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


def test_decomposed_gradients():
    aten = torch.ops.aten
    check(
        lambda grad, x: [
            aten.gelu_backward.default(grad, x),
            aten.gelu_backward.default(grad, x, approximate="tanh"),
            aten.elu_backward.default(grad, 1.0, 1.0, 1.0, False, x),
            aten.threshold_backward.default(grad, x, 0),
            aten.sigmoid_backward.default(grad, x),
            aten.tanh_backward.default(grad, x),
            aten.leaky_relu_backward.default(grad, x, 0.1, False),
            aten.hardtanh_backward.default(grad, x, -1, 1),
            aten.silu_backward.default(grad, x),
        ],
        torch.tensor([1.0, 2.0, -1.0, 0.3]),
        torch.tensor([-2.0, -0.5, 0.5, 2.0]),
    )
