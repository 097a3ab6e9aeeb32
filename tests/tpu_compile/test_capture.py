"""What capture tells of a graph's dynamic dimensions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import sympy
import torch
from torch import fx
from torch.fx.experimental.dynamic_spec import IntVar, ShapesSpec, ShapeVar, TensorSpec

from lowering.sizes import placeholder_symbols
from tpu_compile import capture
from tpu_compile.buckets import Dimension


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def captured(
    function: Callable[..., Any], *args: Any, **settings: Any
) -> dict[str, list[Dimension]]:
    """Return the dimensions of each graph that a call and its backward pass bring, by kind."""
    found: dict[str, list[Dimension]] = {}

    def compile_graph(graph: fx.GraphModule, kind: str) -> capture.Compiled:
        placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
        symbols = [expr for expr, _, _ in placeholder_symbols(placeholders)]
        found[kind] = capture.dimensions(symbols)
        return lambda values: graph(*values)

    def backend(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return capture.compile_captured(graph, inputs, compile_graph)

    result = torch.compile(function, backend=backend, fullgraph=True, **settings)(*args)
    if result.requires_grad:
        result.sum().backward()
    return found


def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x @ y).relu()


def test_sources_name_what_the_user_did_not() -> None:
    weight = torch.ones(7, 3, requires_grad=True)
    found = captured(product, torch.ones(5, 7), weight, dynamic=True)
    assert set(found) == {"forward", "backward"}
    for of_graph in found.values():
        assert {dimension.name for dimension in of_graph} == {"x.size(0)", "x.size(1)", "y.size(1)"}
        assert {(dimension.minimum, dimension.maximum) for dimension in of_graph} == {(2, None)}


def test_mark_dynamic_bounds_a_dimension() -> None:
    x = torch.ones(5, 7)
    torch._dynamo.mark_dynamic(x, 0, min=4, max=64)
    assert captured(product, x, torch.ones(7, 3)) == {"inference": [Dimension("x.size(0)", 4, 64)]}


def test_a_guard_bounds_a_dimension() -> None:
    def branch(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] <= 100 else x + 1

    assert captured(branch, torch.ones(5), dynamic=True)["inference"] == [
        Dimension("x.size(0)", 2, 100)
    ]


def test_shape_variables_name_dimensions() -> None:
    length = ShapeVar("length", min=1, max=2048)
    spec = ShapesSpec(
        {"x": TensorSpec([length, None]), "y": TensorSpec([None, ShapeVar()]), "n": IntVar("n")}
    )

    def function(x: torch.Tensor, y: torch.Tensor, n: int) -> torch.Tensor:
        return product(x, y) * n

    x, y = torch.ones(5, 7, requires_grad=True), torch.ones(7, 3)
    found = captured(function, x, y, 4, shapes_spec=spec)
    expected = {Dimension("length", 1, 2048), Dimension("y.size(1)"), Dimension("n")}
    assert set(found["forward"]) == expected
    assert set(found["backward"]) <= expected
    assert Dimension("length", 1, 2048) in found["backward"]


def test_one_shape_variable_for_two_inputs_is_one_dimension() -> None:
    length = ShapeVar("length", max=64)
    spec = ShapesSpec({"x": TensorSpec([length]), "y": TensorSpec([length])})
    found = captured(lambda x, y: x + y, torch.ones(5), torch.ones(5), shapes_spec=spec)
    assert found == {"inference": [Dimension("length", 0, 64)]}


def test_a_shape_id_names_an_unbacked_dimension() -> None:
    x = torch.ones(5)
    torch._dynamo.decorators.mark_unbacked(x, 0, shape_id="batch", max=64)
    assert captured(lambda x: x * 2, x)["inference"] == [Dimension("batch", 0, 64)]


class WithCache(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cache = torch.ones(6, 4)

    def forward(self, states: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.cat([states["new"], self.cache])


def test_sources_inside_modules_and_containers() -> None:
    (found,) = captured(WithCache(), {"new": torch.ones(5, 4)}, dynamic=True).values()
    names = {dimension.name for dimension in found}
    assert "states['new'].size(0)" in names
    assert any(name is not None and name.endswith(".cache.size(0)") for name in names)


def test_composite_expressions_are_named_and_bounded_whole() -> None:
    found: list[Dimension] = []

    def backend(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        (symbol,) = capture.hinted_sizes()
        found.extend(capture.dimensions([symbol, 2 * symbol + 1]))
        return graph.forward

    x = torch.ones(5)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=64)
    torch.compile(lambda x: x + 1, backend=backend)(x)
    assert found == [Dimension("x.size(0)", 2, 64), Dimension("2*x.size(0) + 1", 5, 129)]


def test_outside_of_a_capture_a_symbol_has_its_own_name() -> None:
    assert capture.dimensions([sympy.Symbol("s0")]) == [Dimension("s0", 0, None)]
