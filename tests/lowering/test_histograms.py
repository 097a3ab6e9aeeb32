import math

import pytest
import torch

from tests.lowering.running import check

VALUES = torch.tensor([0.1, 0.5, 1.0, 2.0, 2.1, -1.0, 0.5, 1.75, 0.0])
WEIGHTS = torch.linspace(0.5, 3.0, 9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_dim(dtype):
    def function(x, weight, edges, constant, special):
        return [
            *torch.histogram(x, 7),
            *torch.histogram(x, 4, range=(0, 2)),
            *torch.histogram(x, 4, range=(1, 1)),
            *torch.histogram(x.reshape(3, 3), 5, weight=weight.reshape(3, 3), density=True),
            *torch.histogram(constant, 3),
            *torch.histogram(x[:0], 4),
            *torch.histogram(special, 4, range=(0, 2)),
            *torch.histogram(x, edges),
            *torch.histogram(x, edges, weight=weight, density=True),
        ]

    check(
        function,
        VALUES.to(dtype),
        WEIGHTS.to(dtype),
        torch.tensor([0.0, 0.5, 1.0, 2.0], dtype=dtype),
        torch.ones(2, dtype=dtype),
        torch.tensor([math.nan, math.inf, 1.0, 2.0, -0.0], dtype=dtype),
    )


def test_several_dims():
    def function(x, weight, first, second):
        return [
            *flat(torch.histogramdd(x, [3, 4])),
            *flat(torch.histogramdd(x, [2, 3], range=[-1, 1, 0, 0.5], weight=weight)),
            *flat(torch.histogramdd(x, [3, 2], density=True)),
            *flat(torch.histogramdd(x, [first, second], weight=weight, density=True)),
        ]

    def flat(result):
        return [result.hist, *result.bin_edges]

    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    weight = torch.linspace(0.1, 2, 40)
    check(function, x, weight, torch.tensor([-1.0, 0.0, 0.7]), torch.tensor([-2.0, 0.1, 0.2, 3.0]))
