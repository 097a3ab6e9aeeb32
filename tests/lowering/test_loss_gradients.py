"""Gradients that autograd asks for by name, beside eager's."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from lowering.decompositions import decomposition_table
from lowering.registry import REGISTRY

aten = torch.ops.aten


def calls():
    data = torch.randn(4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    target = torch.tensor([0, 4, 2, 2])
    labels = torch.tensor([[1, 3, -1, 0, 0], [-1, 2, 2, 2, 2], [0, 1, 2, 3, 4], [4, -1, 1, 1, 1]])
    is_target = torch.zeros_like(data)
    for row, column in ((0, 1), (0, 3), (3, 4), *((2, column) for column in range(5))):
        is_target[row, column] = 1
    weight = torch.rand(5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mean, row_grads = torch.tensor(0.7, dtype=torch.float64), data[:, 0].clone()
    multi, multilabel = aten.multi_margin_loss_backward, aten.multilabel_margin_loss_backward
    with_nan = torch.tensor([0.0, 0.5, -0.5, 2.0, torch.nan])
    return [
        (multi.default, (mean, data, target, 1, 1.0, weight)),
        (multi.default, (mean, data, target, 2, 0.5, None, 2)),
        (multi.default, (row_grads, data, target, 2, 1.0, weight, 0)),
        (multi.default, (mean, data[0], target[:1], 1, 1.0)),
        (multilabel.default, (mean, data, labels, 1, is_target)),
        (multilabel.default, (row_grads, data, labels, 0, is_target)),
        (multilabel.default, (mean, data[0], labels[0], 2, is_target[0])),
        (aten.softshrink_backward.default, (torch.ones(5), with_nan, 0.5)),
        (aten.hardshrink_backward.default, (torch.ones(5), with_nan, 0.5)),
    ]


@pytest.mark.parametrize(("op", "args"), calls())
def test_gradients_equal_eagers(op, args):
    graph = make_fx(op, decomposition_table=decomposition_table())(*args)
    targets = {node.target for node in graph.graph.nodes if node.op == "call_function"}
    assert all(target in REGISTRY for target in targets)
    torch.testing.assert_close(graph(*args), op(*args))
