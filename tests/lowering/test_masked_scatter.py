"""The gradient of masked_scatter's source."""

from __future__ import annotations

import torch

from tests.lowering.running import check

backward = torch.ops.aten.masked_scatter_backward


def test_gradients_of_the_source() -> None:
    gradient = torch.randn(3, 4)
    mask = torch.tensor(
        [True, False, True, True, False, False, True, False, True, True, True, False]
    )
    check(
        lambda g, m, r, e: (
            backward(g, m.reshape(3, 4), [2, 5]),  # seven taken, zeros in the last three
            backward(g, m.reshape(3, 4), [7]),
            backward(g, r, [12]),  # the mask broadcasts
            backward(g.double(), m.reshape(3, 4), [9]),
            backward(e, e > 0, [3]),
            backward(g, torch.zeros_like(m).reshape(3, 4), [4]),
            backward(g, torch.zeros_like(m).reshape(3, 4), [0]),
        ),
        gradient,
        mask,
        torch.tensor([[True], [False], [True]]).expand(3, 4),
        torch.zeros(0, 2),
    )
