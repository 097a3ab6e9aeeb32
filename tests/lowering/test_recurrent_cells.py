"""The fused cells' decompositions against torch's cells, which the CPU makes of other ops."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from lowering.composites import recurrent_cells as cells

BATCH, SIZE, HIDDEN = 2, 3, 4


def inputs(gates: int) -> tuple[torch.Tensor, ...]:
    """(x, hidden state, two weights, two biases) in float64, as leaves."""
    shapes = [(BATCH, SIZE), (BATCH, HIDDEN)]
    shapes += [(gates * HIDDEN, SIZE), (gates * HIDDEN, HIDDEN)]
    made = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    made += [torch.randn(gates * HIDDEN, dtype=torch.float64) for _ in range(2)]
    return tuple(tensor.requires_grad_() for tensor in made)


def test_lstm_cell() -> None:
    x, hx, w_ih, w_hh, b_ih, b_hh = inputs(4)
    cx = torch.randn(BATCH, HIDDEN, dtype=torch.float64, requires_grad=True)
    hy, cy = torch._VF.lstm_cell(x, (hx, cx), w_ih, w_hh, b_ih, b_hh)
    gates = F.linear(x, w_ih), F.linear(hx, w_hh)
    ours, cell, workspace = cells.lstm_cell(*gates, cx, b_ih, b_hh)
    torch.testing.assert_close((ours, cell), (hy, cy))
    torch.testing.assert_close(
        cells.lstm_cell(F.linear(x, w_ih, b_ih), F.linear(hx, w_hh, b_hh), cx)[0], hy
    )
    grad_hy, grad_cy = torch.randn_like(hy), torch.randn_like(cy)
    for given in ((grad_hy, grad_cy), (grad_hy, None), (None, grad_cy)):
        outputs = [(y, g) for y, g in zip((hy, cy), given, strict=True) if g is not None]
        expected = torch.autograd.grad(
            [y for y, _ in outputs], (cx, b_ih), [g for _, g in outputs], retain_graph=True
        )
        grad_gates, grad_cx, grad_bias = cells.lstm_cell_backward(*given, cx, cell, workspace, True)
        torch.testing.assert_close((grad_cx, grad_bias), expected)
        torch.testing.assert_close(grad_gates.sum(0), grad_bias)
    assert cells.lstm_cell_backward(grad_hy, None, cx, cell, workspace, False)[2] is None


def test_gru_cell() -> None:
    x, hx, w_ih, w_hh, b_ih, b_hh = inputs(3)
    hy = torch._VF.gru_cell(x, hx, w_ih, w_hh, b_ih, b_hh)
    ours, workspace = cells.gru_cell(F.linear(x, w_ih), F.linear(hx, w_hh), hx, b_ih, b_hh)
    torch.testing.assert_close(ours, hy)
    grad_hy = torch.randn_like(hy)
    expected = torch.autograd.grad(hy, (x, hx, b_ih, b_hh), grad_hy)
    of_input, of_hidden, of_hx, of_b_ih, of_b_hh = cells.gru_cell_backward(grad_hy, workspace, True)
    actual = (of_input @ w_ih, of_hx + of_hidden @ w_hh, of_b_ih, of_b_hh)
    torch.testing.assert_close(actual, expected)
    assert cells.gru_cell_backward(grad_hy, workspace, False)[3:] == (None, None)
