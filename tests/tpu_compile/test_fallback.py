"""Ops without a lowering: split around, counted, said once; or an error that names op and line."""

from __future__ import annotations

import warnings

import pytest
import torch

import tpu_compile
from lowering.registry import REGISTRY


@torch.library.custom_op("tpu_compile_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    """Return 2 * x."""
    return x * 2


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def _backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
    return gradient * 2


twice.register_autograd(_backward)


@torch.library.custom_op("tpu_compile_tests::halves", mutates_args=())
def halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the two halves of x along dim 0, copied."""
    middle = x.shape[0] // 2
    return x[:middle].clone(), x[middle:].clone()


@halves.register_fake
def _(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    middle = x.shape[0] // 2
    return x.new_empty((middle, *x.shape[1:])), x.new_empty((x.shape[0] - middle, *x.shape[1:]))


def test_the_graph_runs_in_pieces_and_says_so_once() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(twice(x + 1) - 3) + twice(x)

    inputs = torch.randn(4)
    run = torch.compile(function, backend="tpu", fullgraph=True)
    with pytest.warns(tpu_compile.FallbackWarning) as caught:
        result = run(inputs)
    assert torch.equal(result, function(inputs))
    assert len(caught) == 1
    assert "tpu_compile_tests.twice" in str(caught[0].message)
    assert "test_fallback.py:" in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(inputs)
    (op,) = tpu_compile.stats().fallback_ops
    assert "twice" in op
    assert tpu_compile.stats().fallback_ops[op] == 4


@pytest.mark.filterwarnings("ignore::tpu_compile.FallbackWarning")
def test_a_cut_that_would_be_a_cycle() -> None:
    """The last op needs both the fallback and what the fallback needs."""

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = x + y
        b = twice(a)
        c = a * b
        d = twice(c + b) + a
        return c - d, b + y, a

    inputs = torch.randn(4), torch.randn(4)
    results = torch.compile(function, backend="tpu", fullgraph=True)(*inputs)
    for ours, eager in zip(results, function(*inputs), strict=True):
        torch.testing.assert_close(ours, eager)


@pytest.mark.filterwarnings("ignore::tpu_compile.FallbackWarning")
def test_several_results_and_mutation_and_gradients() -> None:
    def function(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        low, high = halves(x.detach() + state)
        state.add_(1)
        return twice(x * 3).sum() + (low * high).sum() + state.sum()

    states = torch.zeros(4), torch.zeros(4)
    inputs = [torch.arange(4.0, requires_grad=True) for _ in range(2)]
    eager = function(inputs[0], states[0])
    ours = torch.compile(function, backend="tpu", fullgraph=True)(inputs[1], states[1])
    torch.testing.assert_close(ours, eager)
    eager.backward()
    ours.backward()
    torch.testing.assert_close(inputs[1].grad, inputs[0].grad)
    assert torch.equal(states[1], torch.ones(4))


def test_error_names_the_op_and_the_line_and_leaves_inputs_alone() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return twice(x)  # the line that the error names

    line = function.__code__.co_firstlineno + 2
    inputs = torch.zeros(3)
    run = torch.compile(function, backend="tpu", options={"fallback": "error"})
    with pytest.raises(tpu_compile.UnsupportedOpError) as caught:
        run(inputs)
    message = str(caught.value)
    assert "tpu_compile_tests.twice" in message.splitlines()[0]
    assert f"test_fallback.py:{line}" in message
    assert 'fallback="eager"' in message
    assert torch.equal(inputs, torch.zeros(3))


def test_a_users_lowering_takes_the_place_of_the_fallback() -> None:
    from lowering import hlo
    from lowering.mlir import ir, stablehlo

    overload = torch.ops.tpu_compile_tests.twice.default

    @tpu_compile.register_lowering(overload)
    def lower_twice(ctx: object, x: ir.Value) -> ir.Value:
        return stablehlo.multiply(x, hlo.full_like(x, 2))

    try:
        run = torch.compile(
            lambda x: twice(x) + 1, backend="tpu", fullgraph=True, options={"fallback": "error"}
        )
        assert torch.equal(run(torch.ones(3)), torch.full((3,), 3.0))
        with pytest.raises(ValueError, match="already has a lowering"):
            tpu_compile.register_lowering(overload)(lower_twice)
    finally:
        REGISTRY.remove(overload)


def test_a_rule_that_declines_while_lowering_falls_back() -> None:
    overload = torch.ops.tpu_compile_tests.twice.default

    @tpu_compile.register_lowering(overload)
    def decline(ctx: object, x: object) -> object:
        raise ctx.unsupported("this rule declines everything")  # type: ignore[attr-defined]

    try:
        with pytest.warns(tpu_compile.FallbackWarning, match="declined"):
            result = torch.compile(lambda x: twice(x) + 1, backend="tpu")(torch.ones(3))
        assert torch.equal(result, torch.full((3,), 3.0))
        run = torch.compile(lambda x: twice(x) + 2, backend="tpu", options={"fallback": "error"})
        with pytest.raises(tpu_compile.UnsupportedOpError, match="declines everything"):
            run(torch.ones(3))
    finally:
        REGISTRY.remove(overload)


def test_a_faulty_rule_is_a_lowering_error() -> None:
    overload = torch.ops.tpu_compile_tests.twice.default

    @tpu_compile.register_lowering(overload)
    def wrong_shape(ctx: object, x: object) -> object:
        from lowering import hlo

        return hlo.scalar(1.0, torch.float32)

    try:
        with pytest.raises(tpu_compile.LoweringError) as caught:
            torch.compile(lambda x: twice(x) + 1, backend="tpu")(torch.ones(3))
        assert "twice" in str(caught.value)
        assert "test_fallback.py:" in str(caught.value)
        assert "float32[3]" in str(caught.value)
    finally:
        REGISTRY.remove(overload)


@pytest.mark.filterwarnings("ignore::tpu_compile.FallbackWarning")
def test_sizes_that_depend_on_data_reach_later_parts() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        positions = torch.nonzero(x)
        return positions.sum(0) * 2 + positions.shape[0]

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        run = torch.compile(function, backend="tpu", fullgraph=True)
        for count in (3, 5):
            inputs = torch.zeros(9)
            inputs[:count] = 1
            assert torch.equal(run(inputs), function(inputs))


@pytest.mark.filterwarnings("ignore::tpu_compile.FallbackWarning")
def test_sparse_tensors_fall_back_or_are_named() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.sparse.mm(x.to_sparse(), x) + 1

    inputs = torch.eye(3)
    result = torch.compile(function, backend="tpu")(inputs)
    assert torch.equal(result, function(inputs))


def test_float64_falls_back_where_the_platform_lacks_it() -> None:
    from tests.lowering.running import trace
    from tpu_compile.partition import plan

    graph = trace(lambda x: (x + 1).to(torch.float32) + 1, torch.ones(3, dtype=torch.float64))
    assert plan(graph, "cpu").is_whole
    fallbacks = plan(graph, "tpu").fallbacks
    assert [fallback.op for fallback in fallbacks] == ["aten.add.Tensor", "aten._to_copy.default"]
    assert "no float64 arithmetic" in fallbacks[0].why
