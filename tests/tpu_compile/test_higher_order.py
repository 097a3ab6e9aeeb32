"""Control flow, regions, checkpoints and custom autograd as users write them, against eager."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops import associative_scan, map, scan, while_loop
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import tpu_compile
from lowering import REGISTRY, LoweringContext
from lowering.mlir import ir, stablehlo
from tests.tpu_compile.comparing import relative_difference

# Dynamo reads attributes of whatever it meets, and torch warns of some.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
]

W = torch.tensor([0.5, -1.0, 2.0, 1.5])
dropout = torch.nn.functional.dropout


def assert_like_eager(
    function: Callable[..., Any], *args: torch.Tensor, fallback: str = "error", **how: Any
) -> None:
    """Assert equal outputs and gradients of all arguments that take one."""
    how = {"fullgraph": True, **how}
    run = torch.compile(function, backend="tpu", options={"fallback": fallback}, **how)
    results = []
    for call in (function, run):
        given = [x.detach().clone().requires_grad_(x.requires_grad) for x in args]
        outputs = pytree.tree_leaves(call(*given))
        tensors = [o for o in outputs if isinstance(o, torch.Tensor)]
        if any(tensor.requires_grad for tensor in tensors):
            sum(
                (t * torch.linspace(0.5, 1.5, t.numel()).reshape(t.shape)).sum()
                for t in tensors
                if t.requires_grad
            ).backward()  # type: ignore[union-attr]
        results.append((outputs, [x.grad for x in given], given))
    for eager, ours in zip(
        pytree.tree_leaves(results[0]), pytree.tree_leaves(results[1]), strict=True
    ):
        if isinstance(eager, torch.Tensor):
            assert relative_difference(ours, eager) <= 1e-5
        else:
            assert ours == eager


def leaf(*shape: int) -> torch.Tensor:
    values = torch.linspace(-1.5, 4.0, torch.Size(shape).numel()).sin()
    return values.reshape(shape).requires_grad_()


@pytest.mark.parametrize("dynamic", [False, True])
def test_cond(dynamic: bool) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        return torch.cond(
            x.sum() > 0,
            lambda x, y: (torch.softmax(x, 0) * W, y * x.shape[0]),
            lambda x, y: (torch.nn.functional.layer_norm(x, (4,)), y + 1),
            (x, y),
        )

    for sign in (1, -1):
        x = (sign * leaf(3, 4)).detach().requires_grad_()
        assert_like_eager(function, x, leaf(2), dynamic=dynamic)


def test_while_loop_with_a_tensor_and_with_a_number() -> None:
    def by_tensor(x: torch.Tensor) -> Any:
        return while_loop(
            lambda i, x: i < x.shape[0], lambda i, x: (i + 1, x.sin() + i), (torch.tensor(0), x)
        )

    def by_number(x: torch.Tensor) -> Any:
        return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * x[i] + i), (0, x))

    x = leaf(4).detach()
    assert_like_eager(lambda x: [by_tensor(x), by_number(x)], x)


@pytest.mark.filterwarnings("ignore::tpu_compile.FallbackWarning")
def test_a_number_of_a_loop_is_used_outside() -> None:
    def function(x: torch.Tensor) -> Any:
        count, x = while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (0, x))
        return count + 1, thrice(x) * (count + 2) - count, torch.zeros(count)

    assert_like_eager(function, leaf(4).detach(), fallback="eager")
    assert sorted(tpu_compile.stats().fallback_ops) == [
        "aten.full.default",
        "higher_order_tests.thrice.default",
    ]


def test_a_differentiated_while_loop_stacks_its_passes_in_eager() -> None:
    def function(x: torch.Tensor) -> Any:
        return while_loop(
            lambda i, x: i < 3, lambda i, x: (i + 1, x.sin() * W), (torch.tensor(0), x)
        )

    with pytest.warns(tpu_compile.FallbackWarning, match="only the run can tell"):
        assert_like_eager(function, leaf(4), fallback="eager")
    assert tpu_compile.stats().fallback_ops == {"while_loop_stack_output": 1}


def test_scan_map_and_associative_scan() -> None:
    def function(x: torch.Tensor) -> Any:
        return (
            scan(lambda c, x: (c + torch.tanh(x) * W, c * x), torch.zeros(4), x),
            map(lambda x: x.sin() * W, x),
            associative_scan(
                lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]),
                (x, x * 2),
                0,
                combine_mode="generic",
            ),
        )

    assert_like_eager(function, leaf(3, 4), dynamic=True)


@torch.compiler.nested_compile_region
def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ w)


@torch.compiler.nested_compile_region
def dropped(x: torch.Tensor) -> torch.Tensor:
    return dropout(x, 0.5)


def test_regions_that_repeat() -> None:
    """Torch's fake results of the calls share storages, which must not make them aliases."""
    assert_like_eager(lambda x, w: layer(layer(x, w), w), leaf(3, 4), leaf(4, 4))


class Doubled(torch.autograd.Function):
    """Sine with twice its gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradient * x.cos() * 2


def keep_products(ctx: object, op: object, *args: object, **kwargs: object) -> CheckpointPolicy:
    saved = op is torch.ops.aten.mm.default
    return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE


SELECTIVE = functools.partial(create_selective_checkpoint_contexts, keep_products)


def test_checkpoints_and_custom_autograd() -> None:
    def function(x: torch.Tensor) -> Any:
        body = lambda x: torch.sigmoid((x @ x).sin()) @ x  # noqa: E731
        return (
            checkpoint(body, x, use_reentrant=False),
            checkpoint(body, x, use_reentrant=False, context_fn=SELECTIVE),
            Doubled.apply(x) + 1,
        )

    assert_like_eager(function, leaf(4, 4))


def recomputed(x: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda x: dropout(x.sin(), 0.5).sin(), x, use_reentrant=False)


def recomputed_selectively(x: torch.Tensor) -> torch.Tensor:
    return checkpoint(
        lambda x: dropout(x.sin(), 0.5).sin(), x, use_reentrant=False, context_fn=SELECTIVE
    )


@pytest.mark.parametrize("function", [recomputed, recomputed_selectively])
def test_recomputation_drops_the_same_elements(function: Callable[..., Any]) -> None:
    run = torch.compile(function, backend="tpu", fullgraph=True, options={"fallback": "error"})
    x = torch.ones(64, 8, requires_grad=True)
    torch.manual_seed(3)
    first = run(x)
    first.sum().backward()
    kept = first != 0
    assert 0.3 < float(kept.float().mean()) < 0.7
    chain = torch.cos(2 * torch.sin(x)) * 2 * torch.cos(x)
    torch.testing.assert_close(x.grad, torch.where(kept, chain, 0.0).detach())
    assert not torch.equal(run(x), first)
    torch.manual_seed(3)
    assert torch.equal(run(x), first)


def test_calls_of_a_region_draw_different_numbers() -> None:
    run = torch.compile(
        lambda x: dropped(dropped(x)), backend="tpu", fullgraph=True, options={"fallback": "error"}
    )
    x = torch.ones(64, 8, requires_grad=True)
    result = run(x)
    result.sum().backward()
    assert set(result.unique().tolist()) == {0.0, 4.0}
    assert 0.15 < float((result != 0).float().mean()) < 0.35
    assert torch.equal(x.grad, result.detach())


def test_a_gradient_that_draws_other_numbers_is_told() -> None:
    """Torch recomputes a branch for its gradient without its random state, in eager too."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: dropout(x, 0.5), lambda x: x * 1, (x,))

    run = torch.compile(function, backend="tpu")
    x = torch.ones(64, requires_grad=True)
    with pytest.warns(tpu_compile.TpuCompileWarning, match=r"gradient of cond \(.*higher_order"):
        run(x).sum().backward()
    assert x.grad is not None
    assert set(x.grad.tolist()) == {0.0, 2.0}


# --- custom ops ----------------------------------------------------------------------------------


@torch.library.custom_op("higher_order_tests::add_to", mutates_args=("x",))
def add_to(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Add y to x and return twice the sum."""
    x.add_(y)
    return x * 2


@add_to.register_fake
def _(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("higher_order_tests::thrice", mutates_args=())
def thrice(x: torch.Tensor) -> torch.Tensor:
    """Return 3 * x."""
    return x * 3


@thrice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


thrice.register_autograd(lambda ctx, gradient: gradient * 3)

_register_effectful_op("higher_order_tests::noted", _EffectType.ORDERED)


@torch.library.custom_op("higher_order_tests::noted", mutates_args=())
def noted(x: torch.Tensor) -> torch.Tensor:
    """Return 2 * x, in the order of the program."""
    return x * 2


@noted.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def mutating(x: torch.Tensor, y: torch.Tensor) -> Any:
    z = x.clone()
    doubled = add_to(z, y)
    part = add_to(z[1:3], y[1:3])
    add_to(x, y)
    return z, doubled, part, x.sum()


def test_an_op_that_mutates_falls_back_under_its_own_name() -> None:
    with pytest.warns(tpu_compile.FallbackWarning, match="higher_order_tests.add_to"):
        assert_like_eager(mutating, torch.ones(4, 2), torch.ones(4, 2), fallback="eager")
    assert tpu_compile.stats().fallback_ops == {"higher_order_tests.add_to.default": 3}


def test_the_lowering_of_an_op_that_mutates_gives_the_new_values() -> None:
    overload = torch.ops.higher_order_tests.add_to.default

    @tpu_compile.register_lowering(overload)
    def lowered(ctx: LoweringContext, x: ir.Value, y: ir.Value) -> tuple[ir.Value, ir.Value]:
        total = stablehlo.add(x, y)
        return stablehlo.add(total, total), total

    try:
        assert_like_eager(mutating, torch.ones(4, 2), torch.ones(4, 2))
    finally:
        REGISTRY.remove(overload)


def test_an_op_with_an_effect_falls_back_or_is_lowered() -> None:
    def function(x: torch.Tensor) -> Any:
        return noted(noted(x) + 1) * 2

    overload = torch.ops.higher_order_tests.noted.default
    with pytest.warns(tpu_compile.FallbackWarning, match="higher_order_tests.noted"):
        assert_like_eager(function, torch.ones(3), fallback="eager")
    torch._dynamo.reset()
    tpu_compile.register_lowering(overload)(lambda ctx, x: stablehlo.add(x, x))
    try:
        assert_like_eager(function, torch.ones(3))
    finally:
        REGISTRY.remove(overload)


def test_an_op_without_lowering_in_a_branch() -> None:
    def function(x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: thrice(x) + 1, lambda x: x * 2, (x + 1,)) * 2

    with pytest.warns(tpu_compile.FallbackWarning) as caught:
        assert_like_eager(function, leaf(5), fallback="eager")
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == 1
    assert "cond runs in eager PyTorch" in messages[0]
    assert "higher_order_tests.thrice.default" in messages[0]
    assert "test_higher_order.py:" in messages[0]
    torch._dynamo.reset()
    with pytest.raises(tpu_compile.UnsupportedOpError, match=r"higher_order_tests\.thrice"):
        assert_like_eager(function, leaf(5))


# --- sizes that depend on data -------------------------------------------------------------------

X = torch.tensor([0.0, 1.0, 2.0, 0.0, 3.0])
N = torch.tensor([1, 2, 2, 0, 3])

DATA_DEPENDENT: dict[str, Callable[..., Any]] = {
    "nonzero": lambda x, n: (x.nonzero() * 2, x + 1),
    "masked_select": lambda x, n: torch.masked_select(x, x > 0).sin().sum() + x,
    "boolean index": lambda x, n: x[x > 0].sin() + 1,
    "unique": lambda x, n: [t + 1 for t in torch.unique(n, return_inverse=True)],
    "repeat_interleave": lambda x, n: torch.repeat_interleave(x * 2, n, dim=0) + 1,
    "item": lambda x, n: x * x.sum().item() + n.max().item(),
    "size from data": lambda x, n: torch.zeros(n[1].item()) + x.sum(),
    "bincount": lambda x, n: torch.bincount(n) * 2,
    "split": lambda x, n: [t * 2 for t in torch.split(torch.arange(8.0), n.tolist())],
    "branch on it": lambda x, n: torch.cond(
        x.sum() > 0, lambda y: y * 2, lambda y: y - 1, (x.nonzero().float(),)
    ),
}


@pytest.mark.filterwarnings("ignore::tpu_compile.FallbackWarning")
@pytest.mark.parametrize("captured", [False, True], ids=["by default", "captured"])
@pytest.mark.parametrize("name", DATA_DEPENDENT)
def test_sizes_that_depend_on_data(name: str, captured: bool) -> None:
    how = {"capture_scalar_outputs": captured, "capture_dynamic_output_shape_ops": captured}
    function = DATA_DEPENDENT[name]
    with torch._dynamo.config.patch(**how), warnings.catch_warnings():
        run = torch.compile(function, backend="tpu")
        for x, n in ((X, N), (1 - X, N.flip(0))):
            expected = pytree.tree_leaves(function(x, n))
            for ours, eager in zip(pytree.tree_leaves(run(x, n)), expected, strict=True):
                assert relative_difference(ours, eager) <= 1e-6
