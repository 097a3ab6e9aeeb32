"""Higher-order operators, traced without Dynamo: branches, loops, numbers told by the run."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import fx
from torch._higher_order_ops.associative_scan import associative_scan_op

from lowering import LoweringOptions, UnsupportedOpError, lower_graph
from lowering.registry import unsupported_reason
from lowering.subgraphs import draws_random_numbers
from tests.lowering.running import assert_same, run, run_graph, trace

higher_order = torch.ops.higher_order


@torch.library.custom_op("control_flow_tests::unknown", mutates_args=())
def unknown(x: torch.Tensor) -> torch.Tensor:
    """Return a copy of x."""
    return x.clone()


@unknown.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


X = torch.tensor([[-1.5, 0.0, 2.0], [3.0, float("nan"), -0.0]])


def two_branches(predicate: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Any:
    return higher_order.cond(
        predicate,
        lambda x, w: (torch.softmax(x, 1) * w, x.sum()),
        lambda x, w: (x - w, w.amax()),
        (x, w),
    )


def test_cond_runs_the_branch_that_the_predicate_names():
    w = torch.tensor([1.0, 2.0, 3.0])

    def function(true: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Any:
        return [*two_branches(true, x, w), *two_branches(~true, x, w)]

    one, other = (lambda x, w: (torch.softmax(x, 1) * w, x.sum())), (lambda x, w: (x - w, w.amax()))
    for ours, eager in zip(
        run(function, torch.tensor(True), X, w), [*one(X, w), *other(X, w)], strict=True
    ):
        assert_same(ours, eager)


def test_branches_within_a_loop_within_a_branch():
    def collatz(n: torch.Tensor) -> torch.Tensor:
        def body(n: torch.Tensor, steps: torch.Tensor) -> tuple[torch.Tensor, ...]:
            halved = higher_order.cond(
                n % 2 == 0, lambda n: (n // 2,), lambda n: (3 * n + 1,), (n,)
            )[0]
            return halved, steps + 1

        def count(n: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return (higher_order.while_loop(lambda n, s: n != 1, body, (n, n * 0), ())[1],)

        return higher_order.cond(n > 1, count, lambda n: (n * 0,), (n,))[0]

    (steps,) = run(collatz, torch.tensor(27))
    assert int(steps) == 111


def test_scan_and_map_stack_what_each_row_gives():
    def function(x: torch.Tensor, w: torch.Tensor) -> Any:
        carry, sums = higher_order.scan(
            lambda c, row, w: [c * 0.5 + row * w, (c + row).sum()], [w * 0], [x], [w]
        )
        mapped = higher_order.map_impl(lambda row, w: (row.cumsum(0), w > row), [x], [w])
        return [carry, sums, *mapped]

    x, w = torch.arange(12.0).reshape(4, 3), torch.tensor([1.0, 5.0, 9.0])
    carry, sums = w * 0, []
    for row in x:
        sums.append((carry + row).sum())
        carry = carry * 0.5 + row * w
    expected = [carry, torch.stack(sums), x.cumsum(1), w > x]
    for ours, eager in zip(run(function, x, w), expected, strict=True):
        assert_same(ours, eager)


@pytest.mark.parametrize("length", [1, 5, 8])
def test_associative_scan_combines_everything_up_to_each_row(length: int):
    def combine(a: Any, b: Any, c: Any, d: Any, scale: Any) -> list[torch.Tensor]:
        return [a * c, b * c + d * scale]

    def function(a: torch.Tensor, b: torch.Tensor, scale: torch.Tensor) -> Any:
        return associative_scan_op(combine, [a, b], (scale,))

    a, b = torch.linspace(0.5, 1.5, length * 2).reshape(length, 2), torch.ones(length, 2)
    expected = [[a[0], b[0]]]
    for row in range(1, length):
        expected.append(combine(*expected[-1], a[row], b[row], 1.0))
    ours = run(function, a, b, torch.ones(2))
    for result, rows in zip(ours, zip(*expected, strict=True), strict=True):
        assert_same(result, torch.stack(rows))


def test_a_repeated_region_is_one_function():
    graph = fx.Graph()
    value = graph.placeholder("x")
    value.meta["val"] = torch.empty(3)
    for _ in range(3):
        region = graph.get_attr("region")
        call = graph.call_function(higher_order.invoke_subgraph, (region, "region", value))
        call.meta["val"] = (torch.empty(3),)
        value = graph.call_function(operator.getitem, (call, 0))
        value.meta["val"] = torch.empty(3)
    graph.output([value])
    root = {"region": trace(lambda x: torch.relu(x) + 1, torch.ones(3))}
    lowered = lower_graph(fx.GraphModule(root, graph))
    assert lowered.text().count("func.func private") == 1
    assert lowered.text().count("call @region_0") == 3
    (result,) = run_graph(lowered, [torch.tensor([-5.0, 0.0, 2.0])])
    assert result.tolist() == [3.0, 3.0, 5.0]


@pytest.mark.parametrize(
    ("op", "before", "is_spread"),
    [
        (higher_order.wrap, (), True),
        (higher_order.tag_activation_checkpoint, (), True),
        (higher_order.wrap_with_set_grad_enabled, (False,), True),
        (higher_order.strict_mode, (), False),
        (higher_order.hints_wrapper, (), False),
    ],
)
def test_wrappers_of_a_graph(op: Any, before: tuple[Any, ...], is_spread: bool):
    graph = fx.Graph()
    value = graph.placeholder("x")
    value.meta["val"] = torch.empty(2)
    operands = (value,) if is_spread else ((value,),)
    call = graph.call_function(op, (*before, graph.get_attr("body"), *operands))
    call.meta["val"] = (torch.empty(2),)
    result = graph.call_function(operator.getitem, (call, 0))
    result.meta["val"] = torch.empty(2)
    graph.output([result])
    module = fx.GraphModule({"body": trace(lambda x: x * 3, torch.ones(2))}, graph)
    (tripled,) = run_graph(lower_graph(module), [torch.tensor([1.0, -2.0])])
    assert tripled.tolist() == [3.0, -6.0]


def test_regions_build_for_a_tpu():
    graph = trace(two_branches, torch.tensor(True), X, torch.ones(3))
    assert "stablehlo.if" in lower_graph(graph, options=LoweringOptions(platform="tpu")).text()


def test_an_op_within_a_branch_is_named_with_its_line():
    def function(x: torch.Tensor) -> Any:
        return higher_order.cond(x.sum() > 0, lambda x: (unknown(x) + 1,), lambda x: (x + 0,), (x,))

    graph = trace(function, torch.ones(3))
    (node,) = [node for node in graph.graph.nodes if node.target is higher_order.cond]
    reason = unsupported_reason(node, "cpu")
    assert reason is not None
    assert "control_flow_tests.unknown" in reason
    assert "no lowering" in reason
    with pytest.raises(UnsupportedOpError) as caught:
        lower_graph(graph)
    assert caught.value.node_name == node.name
    assert "cond" in str(caught.value)


def test_random_ops_are_found_in_the_depth_of_graphs():
    def function(x: torch.Tensor) -> Any:
        def inner(x: torch.Tensor) -> tuple[torch.Tensor]:
            return (torch.nn.functional.dropout(x, 0.5),)

        def outer(x: torch.Tensor) -> tuple[torch.Tensor]:
            return higher_order.cond(x.sum() > 1, inner, lambda x: (x * 1,), (x,))

        return higher_order.cond(x.sum() > 0, outer, lambda x: (x * 1,), (x,))[0]

    graph = trace(function, torch.ones(256))
    assert [draws_random_numbers(n) for n in graph.graph.nodes if n.op == "call_function"].count(
        True
    ) == 1
    (dropped,) = run(function, torch.ones(256))
    assert set(dropped.tolist()) == {0.0, 2.0}


def test_the_passes_of_a_loop_draw_different_numbers():
    def function(x: torch.Tensor) -> Any:
        return higher_order.map_impl(lambda row: (torch.rand_like(row), row + 1), [x], [])

    numbers, _ = run(function, torch.zeros(3, 64))
    assert numbers.unique().numel() == numbers.numel()
