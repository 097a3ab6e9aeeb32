"""Decompositions of the fused LSTM and GRU cells, which torch uses on devices other than the CPU.

Formulas, and what the workspaces hold, are those of ATen's CUDA kernels (`RNN.cu`). Gates are
`[batch, gates * hidden]`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lowering.decompositions import decomposition

aten = torch.ops.aten


def _plus(gates: Tensor, bias: Tensor | None) -> Tensor:
    return gates if bias is None else gates + bias


@decomposition(aten._thnn_fused_lstm_cell.default)
def lstm_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(hidden state, cell state, the four gates after their activations)."""
    gates = _plus(input_gates, input_bias) + _plus(hidden_gates, hidden_bias)
    enter, forget, cell, leave = gates.chunk(4, 1)
    enter, forget, cell, leave = enter.sigmoid(), forget.sigmoid(), cell.tanh(), leave.sigmoid()
    cy = forget * cx + enter * cell
    return leave * cy.tanh(), cy, torch.cat([enter, forget, cell, leave], 1)


@decomposition(aten._thnn_fused_lstm_cell_backward_impl.default)
def lstm_cell_backward(
    grad_hy: Tensor | None,
    grad_cy: Tensor | None,
    cx: Tensor,
    cy: Tensor,
    workspace: Tensor,
    has_bias: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of (gates, cell state before, bias)."""
    enter, forget, cell, leave = workspace.chunk(4, 1)
    squashed = cy.tanh()
    grad_hy = torch.zeros_like(cy) if grad_hy is None else grad_hy
    grad_cell = grad_hy * leave * (1 - squashed * squashed)
    if grad_cy is not None:
        grad_cell = grad_cell + grad_cy
    gates = torch.cat(
        [
            grad_cell * cell * (1 - enter) * enter,
            grad_cell * cx * (1 - forget) * forget,
            grad_cell * enter * (1 - cell * cell),
            grad_hy * squashed * (1 - leave) * leave,
        ],
        1,
    )
    return gates, grad_cell * forget, gates.sum(0) if has_bias else None


@decomposition(aten._thnn_fused_gru_cell.default)
def gru_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(hidden state, [reset, update, new, hidden state before, new's hidden part])."""
    of_input = _plus(input_gates, input_bias).chunk(3, 1)
    of_hidden = _plus(hidden_gates, hidden_bias).chunk(3, 1)
    reset = (of_input[0] + of_hidden[0]).sigmoid()
    update = (of_input[1] + of_hidden[1]).sigmoid()
    new = (of_input[2] + reset * of_hidden[2]).tanh()
    hy = new + update * (hx - new)
    return hy, torch.cat([reset, update, new, hx, of_hidden[2]], 1)


@decomposition(aten._thnn_fused_gru_cell_backward.default)
def gru_cell_backward(
    grad_hy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Gradients of (input gates, hidden gates, hidden state before, input bias, hidden bias)."""
    reset, update, new, hx, hidden = workspace.chunk(5, 1)
    grad_update = grad_hy * (hx - new) * (1 - update) * update
    grad_new = grad_hy * (1 - update) * (1 - new * new)
    grad_reset = grad_new * hidden * (1 - reset) * reset
    of_input = torch.cat([grad_reset, grad_update, grad_new], 1)
    of_hidden = torch.cat([grad_reset, grad_update, grad_new * reset], 1)
    biases = (of_input.sum(0), of_hidden.sum(0)) if has_bias else (None, None)
    return of_input, of_hidden, grad_hy * update, *biases
