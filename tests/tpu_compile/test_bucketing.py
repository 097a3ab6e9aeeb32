"""Dynamic sizes through `torch.compile`: how many programs, which ones, and what else holds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import tpu_compile
from lowering import REGISTRY, hlo
from lowering.mlir import stablehlo
from tpu_compile import (
    BucketPolicy,
    Dimension,
    OptionError,
    expect_compiles,
    explain,
    stats,
    warmup,
)
from tpu_compile.framing import padding_filled


def rows(n: int, width: int = 4) -> torch.Tensor:
    x = torch.randn(n, width)
    torch._dynamo.mark_dynamic(x, 0)
    return x


def total(x: torch.Tensor) -> torch.Tensor:
    return x.exp().sum(0)


def compiled(function: Any = total, **options: Any) -> Any:
    return torch.compile(
        function, backend="tpu", options={"fallback": "error", **options}, fullgraph=True
    )


def programs(sizes: list[int], function: Any = total, **options: Any) -> int:
    """Call with each number of rows, compare with eager, and return the compiles it took."""
    call = compiled(function, **options)
    before = stats().xla_compiles
    for n in sizes:
        x = rows(n)
        torch.testing.assert_close(call(x), function(x))
    return stats().xla_compiles - before


@pytest.mark.parametrize(
    ("buckets", "expected"),
    [("exact", 6), ("pow2", 2), (10, 3), ([7, 30], 2), ("auto", 2)],
    ids=str,
)
def test_policies_take_the_programs_that_they_promise(buckets: Any, expected: int) -> None:
    assert programs([5, 6, 7, 17, 18, 25], buckets=buckets) == expected


def test_auto_runs_in_a_larger_compiled_bucket() -> None:
    assert programs([100, 5, 6, 30, 60, 99]) == 1


def test_max_padding_makes_tighter_buckets() -> None:
    assert programs([20, 25, 30, 32], max_padding=0.1) > programs([20, 25, 30, 32])


def test_a_policy_of_the_users_own() -> None:
    class Thirds:
        weighs_cost = False

        def bucket(self, size: int, dimension: Dimension) -> int:
            return -(-size // 3) * 3

    assert isinstance(Thirds(), BucketPolicy)
    assert programs([4, 5, 6, 7], buckets=Thirds()) == 2


def test_a_policy_for_each_dimension_by_name() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.softmax(1) + x.sum(0)

    call = compiled(function, buckets={"x.size(0)": "exact", "*": "pow2"})
    before = stats().xla_compiles
    for b, s in [(3, 5), (3, 7), (4, 6), (4, 8)]:
        x = torch.randn(b, s)
        torch._dynamo.mark_dynamic(x, [0, 1])
        torch.testing.assert_close(call(x), function(x))
    assert stats().xla_compiles - before == 2


def test_declared_maximum_clamps_the_bucket() -> None:
    def give(n: int) -> torch.Tensor:
        x = torch.randn(n, 4)
        torch._dynamo.mark_dynamic(x, 0, min=2, max=20)
        return x

    call = compiled(buckets="pow2")
    for n in (17, 20):
        x = give(n)
        torch.testing.assert_close(call(x), total(x))
    assert stats().records[-1].inputs == ("float32[20, 4]",)


def test_automatic_dynamic_shapes() -> None:
    call = torch.compile(total, backend="tpu", options={"fallback": "error"})
    before = stats().xla_compiles
    for n in (5, 6, 7, 8, 9, 10, 11, 12):
        x = torch.randn(n, 4)
        torch.testing.assert_close(call(x), total(x))
    # One for the first size, which torch takes as fixed, and then buckets of 8 and 16.
    assert stats().xla_compiles - before == 3


def test_training_keeps_saved_tensors_padded() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    call = compiled(model, buckets="pow2")
    shapes: list[torch.Size] = []
    for n in (5, 7, 12):
        x = rows(n)
        model.zero_grad()
        result = call(x)
        saved = result.grad_fn.saved_tensors
        shapes += [t.shape for t in saved if t.ndim == 2 and t.shape[1] == 8 and t.shape[0] > 2]
        result.square().mean().backward()
        found = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        model(x).square().mean().backward()
        torch.testing.assert_close(found, [p.grad for p in model.parameters()])
    assert torch.Size([8, 8]) in shapes
    assert torch.Size([16, 8]) in shapes


class Two(nn.Module):
    """One size shapes a saved tensor that stays padded, the other none."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        self.scale = nn.Parameter(torch.randn(4))
        self.shift = nn.Parameter(torch.randn(4))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return self.layers(x), y * self.scale + self.shift


class Merged(nn.Module):
    """Saves a tensor whose rows are the product of both sizes: 4 * 8 of them may be 8 * 4."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        pairs = (x[:, None] + y).reshape(x.shape[0] * y.shape[0], 4)
        return self.layers(pairs).reshape(x.shape[0], y.shape[0], 2).sum(1)


@pytest.mark.parametrize("module", [Two, Merged])
def test_backward_runs_in_the_buckets_of_its_forward(module: Callable[[], nn.Module]) -> None:
    model = module().double()
    parameters = list(model.parameters())
    call = compiled(model, buckets="pow2")
    gradients = []
    steps: list[tuple[Any, Any]] = []
    for b, s in [(3, 12), (3, 5), (5, 3), (3, 12), (7, 3)]:
        x, y = rows(b).double(), rows(s).double()
        for tensor in (x, y):
            torch._dynamo.mark_dynamic(tensor, 0)
        loss = sum(part.sin().sum() for part in call(x, y))
        wanted = sum(part.sin().sum() for part in model(x, y))
        steps.append((loss, wanted))
    # Backwards come after all forwards, in another order.
    for loss, wanted in reversed(steps):
        gradients.append(torch.autograd.grad(loss, parameters))
        torch.testing.assert_close(gradients[-1], torch.autograd.grad(wanted, parameters))
    assert stats().exact_graphs == 0


def test_hooks_on_saved_tensors_see_real_sizes() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    call = compiled(model, buckets="pow2")
    seen: list[torch.Size] = []

    def pack(t: torch.Tensor) -> torch.Tensor:
        seen.append(t.shape)
        return t.clone()

    for n in (5, 7):
        x = rows(n)
        model.zero_grad()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            result = call(x)
        result.square().mean().backward()
        found = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        model(x).square().mean().backward()
        torch.testing.assert_close(found, [p.grad for p in model.parameters()])
    assert seen
    assert not any(8 in shape[:1] and shape[1:] == (8,) for shape in seen if len(shape) == 2)


def test_forwards_of_several_sizes_before_their_backwards() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    call = compiled(model)
    inputs = [rows(n).requires_grad_() for n in (5, 40, 6, 17)]
    results = [call(x) for x in inputs]
    for x, result in zip(reversed(inputs), reversed(results), strict=True):
        (found,) = torch.autograd.grad(result.square().sum(), x)
        (wanted,) = torch.autograd.grad(model(x).square().sum(), x)
        torch.testing.assert_close(found, wanted)


def test_mutated_inputs() -> None:
    def function(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        state.add_(x.sum())
        return x[:2]

    call = compiled(function, buckets="pow2")
    for n in (5, 7, 11):
        x, state = rows(n), torch.zeros(())
        expected, expected_state = x.clone(), state.clone()
        wanted = function(expected, expected_state)
        torch.testing.assert_close(call(x, state), wanted)
        torch.testing.assert_close((x, state), (expected, expected_state))


def test_outputs_have_the_strides_of_eager() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x + 1, x.mT * 2, (x + 2).reshape(-1), x.view(x.shape[0], 2, 2), x

    call = compiled(function, buckets="pow2")
    for n in (5, 11):
        x = rows(n)
        for found, wanted in zip(call(x), function(x), strict=True):
            assert (found.shape, found.stride()) == (wanted.shape, wanted.stride())
            torch.testing.assert_close(found, wanted)


def test_strided_inputs() -> None:
    call = compiled(lambda x: x.cumsum(1) if x.ndim > 9 else x * 2 + x.sum(0), buckets="pow2")
    for n in (5, 11):
        wide = torch.randn(4, n)
        x = wide.mT
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(call(x), x * 2 + x.sum(0))


def test_a_python_number_that_is_data_takes_one_program() -> None:
    call = torch.compile(
        lambda x, n: x * n + n // 3, backend="tpu", dynamic=True, options={"fallback": "error"}
    )
    x = torch.randn(5, 4)
    torch.testing.assert_close(call(x, 7), x * 7 + 2)
    with expect_compiles(0):
        for n in (2, 100, -5, 2**40):
            torch.testing.assert_close(call(x, n), x * n + n // 3)


def test_fallbacks_between_padded_parts() -> None:
    @torch.library.custom_op("bucketing_tests::plus_one", mutates_args=())
    def plus_one(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    @plus_one.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    def function(x: torch.Tensor) -> torch.Tensor:
        return plus_one(x.softmax(0)).sum(0)

    call = torch.compile(function, backend="tpu", options={"buckets": "pow2"})
    before = stats().xla_compiles
    with pytest.warns(tpu_compile.FallbackWarning):
        call(rows(5))
    for n in (6, 7, 8):
        x = rows(n)
        torch.testing.assert_close(call(x), function(x))
    assert stats().xla_compiles - before == 2


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")
@pytest.mark.parametrize("buckets", ["pow2", "exact"])
def test_a_backward_in_pieces_gets_what_its_forward_saved(buckets: str) -> None:
    @torch.library.custom_op("bucketing_tests::negative", mutates_args=())
    def negative(x: torch.Tensor) -> torch.Tensor:
        return -x

    @negative.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    class Twisted(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            result = x.tanh()
            ctx.save_for_backward(result)
            return result.exp()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            (result,) = ctx.saved_tensors
            return negative(grad * result) * result

    def function(x: torch.Tensor) -> torch.Tensor:
        return Twisted.apply(x).softmax(0)

    call = torch.compile(function, backend="tpu", options={"buckets": buckets})
    with pytest.warns(tpu_compile.FallbackWarning, match="negative"):
        call(rows(5).requires_grad_()).sum().backward()
    for n in (5, 6, 11):
        x = rows(n).requires_grad_()
        (found,) = torch.autograd.grad(call(x)[0].sum(), x)
        (wanted,) = torch.autograd.grad(function(x)[0].sum(), x)
        torch.testing.assert_close(found, wanted)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")
def test_a_backward_at_exact_shapes_gets_what_its_forward_saved(
    request: pytest.FixtureRequest,
) -> None:
    @torch.library.custom_op("bucketing_tests::halved", mutates_args=())
    def halved(x: torch.Tensor) -> torch.Tensor:
        return x / 2

    @halved.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    overload = torch.ops.bucketing_tests.halved.default

    @tpu_compile.register_lowering(overload)
    def _(ctx: Any, x: Any) -> Any:
        return stablehlo.divide(x, hlo.full_like(x, 2))

    request.addfinalizer(lambda: REGISTRY.remove(overload))

    class Halving(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            result = x.tanh()
            ctx.save_for_backward(result)
            return result * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            (result,) = ctx.saved_tensors
            return halved(grad) * result

    def function(x: torch.Tensor) -> torch.Tensor:
        return Halving.apply(x).softmax(0)

    call = compiled(function, buckets="pow2")
    for n in (5, 6, 11):
        x = rows(n).requires_grad_()
        (found,) = torch.autograd.grad(call(x)[0].sum(), x)
        (wanted,) = torch.autograd.grad(function(x)[0].sum(), x)
        torch.testing.assert_close(found, wanted)
    assert stats().exact_graphs == 1


def test_an_op_without_a_padding_rule_runs_at_exact_shapes() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.fft.fft(x, dim=0).abs()

    assert programs([5, 6, 7], function) == 3
    assert stats().exact_graphs
    explanation = explain(function, rows(5))
    (graph,) = explanation.graphs
    assert graph.exact_reason is not None
    assert "fft" in graph.exact_reason
    assert "test_bucketing.py" in graph.exact_reason
    assert "not padded" in str(explanation)


def test_explain_tells_buckets_and_waste() -> None:
    explanation = explain(total, rows(6))
    (graph,) = explanation.graphs
    assert [size.name for size in graph.dynamic_sizes] == ["x.size(0)"]
    assert graph.buckets == ((8,),)
    assert explanation.padded_elements == 2 * 4
    assert explanation.useful_elements == 6 * 4
    assert explanation.waste == pytest.approx(0.25)
    assert "(x.size(0)) to 8" in str(explanation)


def test_poison_padding_shows_nothing_where_rules_are_true() -> None:
    assert programs([5, 6, 9], poison_padding=True, buckets="pow2") == 2


def test_poison_reaches_the_padding() -> None:
    filled: list[torch.dtype] = []

    def fill(dtype: torch.dtype) -> float:
        filled.append(dtype)
        return 0.0

    call = compiled(buckets="pow2")
    with padding_filled(fill):
        call(rows(5))
    assert filled == [torch.float32]


class TestWarmup:
    def test_afterwards_nothing_compiles(self) -> None:
        call = compiled()
        count = warmup(call, [(rows(5),)], sizes={"x.size(0)": range(2, 65)}, progress=False)
        assert count == 4
        with expect_compiles(0):
            for n in (2, 9, 33, 64):
                x = rows(n)
                torch.testing.assert_close(call(x), total(x))

    def test_backward_graphs_are_compiled_too(self) -> None:
        model = nn.Linear(4, 3)
        call = compiled(model)
        warmup(call, [(rows(5),)], sizes={"args[0].size(0)": [9, 30]}, progress=False)
        with expect_compiles(0):
            for n in (9, 30, 20):
                call(rows(n)).sum().backward()

    def test_nothing_is_computed(self) -> None:
        def function(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
            state.add_(1)
            return x.sum(0)

        state = torch.zeros(3)
        warmup(compiled(function), [(rows(5), state)], progress=False)
        assert torch.equal(state, torch.zeros(3))

    def test_unknown_names_are_told(self) -> None:
        with pytest.raises(OptionError, match=r"x\.size\(0\)"):
            warmup(compiled(), [(rows(5),)], sizes={"batch": [8]}, progress=False)

    def test_an_example_is_a_tuple(self) -> None:
        with pytest.raises(OptionError, match="tuple"):
            warmup(compiled(), [rows(5)], progress=False)


def test_threads_share_programs_and_buffers() -> None:
    call = compiled(buckets="pow2")
    call(rows(5))
    wrong: list[int] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for n in (3, 5, 7, 9, 12):
            x = torch.randn(n, 4, generator=generator)
            if not torch.allclose(call(x), total(x)):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
