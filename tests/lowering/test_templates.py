"""Nodes like earlier ones: the same module, locations included, with and without templates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import fx
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import lowering.importer
from lowering import LoweringContext, Padding, lower_graph
from lowering.decompositions import decomposition_table
from lowering.importer import PaddingPlan
from lowering.mlir import ir, stablehlo
from lowering.registry import REGISTRY, make_rule
from lowering.templates import Templates
from tests.lowering.running import trace

X = torch.ones(4, 4)
higher_order = torch.ops.higher_order


def with_lines(graph: fx.GraphModule) -> fx.GraphModule:
    """Give every node a line of its own, as nodes of a real model have."""
    for line, node in enumerate(graph.graph.nodes):
        node.meta["stack_trace"] = f'File "model.py", line {line}, in forward'
    return graph


def text(graph: fx.GraphModule, **options: Any) -> str:
    return lower_graph(graph, **options).text(locations=True)


def text_without_templates(graph: fx.GraphModule, **options: Any) -> str:
    def plain(self: Templates, *call: Any) -> Any:
        return self._run(*call)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Templates, "lower", plain)
        return text(graph, **options)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Counter[Any]:
    """Count how often the rule of each op runs."""
    counts: Counter[Any] = Counter()
    run_rule = lowering.importer.run_rule

    def counted(context: Any, node: fx.Node, *call: Any) -> Any:
        counts[node.target] += 1
        return run_rule(context, node, *call)

    monkeypatch.setattr(lowering.importer, "run_rule", counted)
    return counts


def layers(x: torch.Tensor) -> torch.Tensor:
    weight = x.sum(0)
    for _ in range(3):
        x = F.layer_norm(x @ x.mT @ x, (4,), weight, weight) + F.gelu(x)
        x = x.softmax(-1) - x.mean(0, keepdim=True)
    return x


def gradients(x: torch.Tensor) -> torch.Tensor:
    return torch.func.grad(lambda x: layers(x).sum())(x)


def random_numbers(x: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = F.dropout(x, 0.5) + torch.rand_like(x)
    return x


def loops(x: torch.Tensor) -> torch.Tensor:
    for _ in range(2):
        (x,) = higher_order.while_loop(lambda x: x.sum() < 9, lambda x: (x + x.relu(),), (x,), ())
        (x,) = higher_order.cond(x.sum() > 0, lambda x: (x.cumsum(0),), lambda x: (-x,), (x,))
    return x


def one_value_twice(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    return (x * x) + (x * y) + (y * x) + (y * y)


def numbers_that_are_equal(x: torch.Tensor) -> list[torch.Tensor]:
    nan = float("nan")
    return [x + number for number in (1, 1.0, True, 0.0, -0.0, 0.0, nan, nan)]


def several_results(x: torch.Tensor) -> list[torch.Tensor]:
    return [*x.sort(0), *x.topk(2), *(x + 1).sort(0), *(x * 2).topk(2), *x.split(2), *x.split(2)]


def nothing_to_do(x: torch.Tensor) -> list[torch.Tensor]:
    aten = torch.ops.aten
    return [aten.view.default(aten.view.default(x, [4, 4]), [4, 4]) + 1, x.T.T.expand(4, 4)]


def indices(x: torch.Tensor) -> torch.Tensor:
    where = x.long().clamp(0, 3)
    for _ in range(2):
        x = x.gather(0, where).scatter_add(0, where, x) + x[where[0]] + torch.where(x > 1, x, 2)
    return x


@pytest.mark.parametrize(
    "function",
    [
        layers,
        gradients,
        random_numbers,
        loops,
        one_value_twice,
        numbers_that_are_equal,
        several_results,
        nothing_to_do,
        indices,
    ],
)
def test_module_is_the_same_without_templates(function: Callable[..., Any]) -> None:
    graph = with_lines(trace(function, X))
    assert text(graph) == text_without_templates(graph)


def attention_layers(x: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = (x @ x.mT / 2).softmax(-1) @ x + x.mean(0, keepdim=True).tanh() * x.sum(1, keepdim=True)
    return x


def test_padded_module_is_the_same_without_templates() -> None:
    tracer = make_fx(
        functionalize(attention_layers),
        decomposition_table=decomposition_table(),
        tracing_mode="symbolic",
    )
    graph = with_lines(tracer(torch.ones(5, 4)))
    (placeholder,) = graph.graph.find_nodes(op="placeholder")
    symbols = [size.node.expr for size in placeholder.meta["val"].shape]
    plan = PaddingPlan(dict.fromkeys(symbols, 8))
    assert text(graph, padding=plan) == text_without_templates(graph, padding=plan)


def test_rule_runs_once_for_nodes_that_are_alike(runs: Counter[Any]) -> None:
    lower_graph(with_lines(trace(lambda x: x.tanh().sum(0).tanh() + x.tanh().tanh().sum(0), X)))
    assert runs[torch.ops.aten.sum.dim_IntList] == 1
    assert runs[torch.ops.aten.tanh.default] == 2, "one for each shape"


@torch.library.custom_op("template_tests::named", mutates_args=())
def named(x: torch.Tensor) -> torch.Tensor:
    """Return x; our lowering of it depends on the name of the node."""
    return x.clone()


@named.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


NAMED = torch.ops.template_tests.named.default


@pytest.fixture
def rule_that_reads_names() -> Iterator[None]:
    def rule(ctx: LoweringContext, operand: ir.Value) -> ir.Value:
        """Negate the operand of every second node."""
        return stablehlo.negate(operand) if ctx.node.name.endswith("1") else operand

    REGISTRY.add(make_rule(NAMED, rule, Padding.FLOWS), by_user=True)
    yield
    REGISTRY.remove(NAMED)


@pytest.mark.usefixtures("rule_that_reads_names")
def test_rule_that_asks_for_its_node_runs_for_each(runs: Counter[Any]) -> None:
    graph = trace(lambda x: NAMED(NAMED(NAMED(x))), X)
    assert text(graph).count("stablehlo.negate") == 1
    assert runs[NAMED] == 3


def test_random_ops_run_for_each(runs: Counter[Any]) -> None:
    lower_graph(trace(random_numbers, X))
    assert runs[torch.ops.aten.rand_like.default] == 3
