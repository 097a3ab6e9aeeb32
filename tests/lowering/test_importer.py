"""The module that comes out: locations, arguments, constants, donation, determinism."""

from __future__ import annotations

import torch
from torch import nn

from lowering import REGISTRY, lower_graph
from lowering.decompositions import KEPT_WHOLE, decomposition_table
from lowering.signature import FromArgument, FromResult, dense_order, dense_strides
from tests.lowering.running import trace


def test_no_overload_is_both_lowered_and_decomposed() -> None:
    table = decomposition_table()
    assert not [overload for overload in table if overload in REGISTRY]
    assert all(reason for reason in KEPT_WHOLE.values())


def test_registry_is_frozen_and_documented() -> None:
    for rule in REGISTRY:
        assert rule.function.__doc__, rule.overload


def test_the_text_is_the_same_every_time_and_has_no_paths() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + 1)

    first = lower_graph(trace(function, torch.ones(3)))
    second = lower_graph(trace(function, torch.ones(3)))
    assert first.text() == second.text()
    assert ".py" not in first.text()


def test_parameters_are_arguments_and_small_constants_are_embedded() -> None:
    small, large = torch.arange(4.0), torch.arange(100.0)
    lowered = lower_graph(trace(lambda x: x + small.sum() + large, torch.ones(100)))
    shapes = [argument.spec.shape for argument in lowered.signature.arguments]
    assert (100,) in shapes
    assert (4,) not in shapes


def test_every_op_has_the_users_line() -> None:
    import tpu_compile.backend
    from tpu_compile.executable import GraphExecutable

    captured = []

    def spy(*args: object, **kwargs: object) -> object:
        executable = original(*args, **kwargs)
        captured.append(executable._graph_module)
        return executable

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.inner(x)
            return torch.relu(y) + 1

    original = GraphExecutable
    tpu_compile.backend.GraphExecutable = spy  # type: ignore[assignment,misc]
    try:
        torch.compile(nn.Sequential(Block()), backend="tpu", fullgraph=True)(torch.ones(2, 3))
    finally:
        tpu_compile.backend.GraphExecutable = original  # type: ignore[misc]
    text = lower_graph(captured[0]).text(locations=True)
    operations = [line for line in text.splitlines() if "= stablehlo." in line]
    assert operations
    for line in operations:
        assert "test_importer.py" in line, line
    assert any("0.inner/aten.addmm.default" in line for line in operations)
    assert any("0/aten.relu.default" in line for line in operations)


def test_views_of_inputs_and_results_need_no_program() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x + 1
        return x.t(), y, y.t(), y[0]

    signature = lower_graph(trace(function, torch.ones(2, 3), decompose=True)).signature
    assert isinstance(signature.outputs[0], FromArgument)
    assert all(isinstance(output, FromResult) for output in signature.outputs[1:])
    assert len(signature.results) == 1


def test_mutated_arguments_are_donated() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(y)
        return x + 1

    graph = trace(function, torch.ones(3), torch.ones(3))
    assert "tf.aliasing_output" in lower_graph(graph, donate=True).text()
    assert "tf.aliasing_output" not in lower_graph(graph, donate=False).text()


def test_dense_order() -> None:
    assert dense_order((2, 3, 4), (12, 4, 1)) == (0, 1, 2)
    assert dense_order((2, 3, 4), (12, 1, 3)) == (0, 2, 1)
    assert dense_order((2, 1, 4), (4, 999, 1)) == (0, 1, 2)
    assert dense_order((2, 3), (6, 2)) is None
    assert dense_order((2, 3), (0, 1)) is None
    assert dense_order((0, 3), (1, 7)) == (0, 1)
    assert dense_order((), ()) == ()
    assert dense_strides((2, 3, 4), (0, 2, 1)) == (12, 1, 3)
