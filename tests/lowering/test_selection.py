import math

import pytest
import torch

from tests.lowering.running import check

INF, NAN = math.inf, math.nan


def test_where():
    check(
        lambda c, a, b, i, number: [
            torch.where(c, a, b),
            torch.where(c, a, i),
            torch.where(c, a, number),
            torch.where(c, 1.0, i),
            torch.where(c, 1, 0),
            torch.where(c, a, -INF),
            torch.where(c, a.bfloat16(), 0.0),
            torch.where(c, a, 1j),
        ],
        torch.tensor([[True], [False]]),
        torch.tensor([1.0, NAN, -INF]),
        torch.zeros(2, 3),
        torch.tensor([1, 2, 3]),
        torch.tensor(5, dtype=torch.float64),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_clamp_floats(dtype):
    x = torch.tensor([NAN, INF, -INF, 0.0, -3.0, 0.7, 5.0], dtype=dtype)
    check(
        lambda x, low, high: [
            x.clamp(-1, 2),
            x.clamp(min=0.3),
            x.clamp(max=0.3),
            x.clamp(2, -1),
            x.clamp(NAN, 1),
            x.clamp(low, high),
            x.clamp(min=low),
            x.clamp(max=high),
            x.clamp_min(0.5),
            x.clamp_max(low),
            x.clamp(min=torch.finfo(x.dtype).min),
        ],
        x,
        torch.tensor([0, 0, 0, NAN, 1, 1, 1], dtype=dtype),
        torch.tensor([[2.0]], dtype=dtype),
    )


def test_clamp_integers():
    check(
        lambda i, u: [i.clamp(-1, 2), i.clamp(0.5), u.clamp(1, 100), i.clamp(-i), i.clamp(max=u)],
        torch.tensor([-5, 0, 7]),
        torch.tensor([0, 50, 255], dtype=torch.uint8),
    )


def test_decomposed_relatives():
    check(
        lambda x: [
            torch.nan_to_num(x),
            torch.heaviside(x, x),
            torch.sgn(x),
            torch.masked_fill(x, x > 0, 7),
        ],
        torch.tensor([NAN, INF, -INF, 0.0, -2.0]),
    )
