"""Autograd on the device: functions, hooks, checkpoints, higher derivatives, torch.func."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import tpu_compile.device
from tests.device.comparing import assert_same, moved


def leaf(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32).to("tpu").requires_grad_()


class Cube(torch.autograd.Function):
    """x ** 3, with a derivative of its own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x * x * x * scale

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (x,) = ctx.saved_tensors
        return 3 * x * x * ctx.scale * gradient, None


def test_custom_function_and_double_backward() -> None:
    x = leaf(1.0, 2.0)
    y = Cube.apply(x, 2.0)
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    assert first.tolist() == [6, 24]
    (second,) = torch.autograd.grad(first.sum(), x)
    assert second.tolist() == [12, 24]


def test_functions_may_write_to_their_inputs() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * 2

    x = leaf(1.0, 2.0)
    y = x * 3
    Double.apply(y)
    y.sum().backward()
    assert y.tolist() == [6, 12]
    assert x.grad.tolist() == [6, 6]


def test_tensor_hooks() -> None:
    x = leaf(1.0, 2.0)
    seen: list[Any] = []
    x.register_hook(lambda gradient: gradient * 10)
    x.register_post_accumulate_grad_hook(lambda tensor: seen.append(tensor.grad.tolist()))
    y = x * 2
    y.register_hook(lambda gradient: seen.append(gradient.tolist()))
    y.retain_grad()
    y.sum().backward()
    assert seen == [[1, 1], [20, 20]]
    assert y.grad.tolist() == [1, 1]
    y.grad_fn.name()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.cpu(), lambda t: t.to("tpu")):
        (x * x).sum().backward()
    assert x.grad.tolist() == [40, 60]


def test_module_hooks() -> None:
    model = torch.nn.Linear(2, 2).to("tpu")
    seen = []
    model.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    model.register_forward_hook(lambda module, args, output: output + 1)
    model.register_full_backward_pre_hook(lambda module, gradient: (gradient[0] * 3,))
    model.register_full_backward_hook(
        lambda module, given, got: seen.append((given[0].device.type, got[0].tolist()))
    )
    x = leaf(1.0, 2.0)
    y = model(x)
    expected = torch.nn.functional.linear(x * 2, model.weight, model.bias) + 1
    torch.testing.assert_close(y, expected)
    y.sum().backward()
    assert seen == [("tpu", [3, 3])]
    torch.testing.assert_close(x.grad, 6 * model.weight.detach().sum(0))


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("mode", ["eager", "fused"])
def test_checkpoint_draws_the_same_numbers_again(use_reentrant: bool, mode: str) -> None:
    with tpu_compile.device.mode(mode):
        x = leaf(*range(1, 9))

        def block(x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.dropout(x, 0.5, training=True) * x

        y = checkpoint(block, x, use_reentrant=use_reentrant)
        y.sum().backward()
        # The gradient of x * x * mask is twice that of the mask.
        torch.testing.assert_close(x.grad, 2 * y.detach() / x.detach())
        assert 0 < (x.grad == 0).sum().item() < 8


# torch's own forward-mode rules are scripted at their first use.
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_func_transforms() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * x).sum()

    def g(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * x

    x = torch.tensor([0.5, 1.0, 2.0])
    device = x.to("tpu")
    for transformed in (
        torch.func.grad(f),
        torch.func.jacrev(g),
        torch.func.jacfwd(g),
        torch.func.hessian(f),
        torch.func.vmap(f, in_dims=0),
        torch.func.vmap(torch.func.grad(lambda x: x.sin() * x)),
        lambda x: torch.func.vjp(g, x)[1](x)[0],
        lambda x: torch.func.jvp(g, (x,), (x,)),
    ):
        assert_same(transformed(device), transformed(x))


def test_functional_call_and_per_sample_gradients() -> None:
    model = torch.nn.Linear(2, 1)
    x = torch.randn(3, 2)

    def gradients(model: torch.nn.Module, x: torch.Tensor) -> Any:
        def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(model, parameters, (x,)).square().sum()

        parameters = {name: p.detach() for name, p in model.named_parameters()}
        return torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)

    assert_same(gradients(moved(model), x.to("tpu")), gradients(model, x))


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_forward_mode() -> None:
    x, tangent = torch.tensor([1.0, 2.0]).to("tpu"), torch.ones(2).to("tpu")
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, tangent)
        assert torch.autograd.forward_ad.unpack_dual(dual * dual).tangent.tolist() == [2, 4]


@pytest.mark.parametrize("foreach", [True, False, None])
def test_clipping(foreach: bool | None) -> None:
    def clip(parameters: list[torch.Tensor]) -> list[Any]:
        for p in parameters:
            p.grad = p.detach() * 3
        norm = torch.nn.utils.clip_grad_norm_(parameters, 2.0, foreach=foreach)
        clipped = [p.grad.clone() for p in parameters]
        torch.nn.utils.clip_grad_value_(parameters, 0.5, foreach=foreach)
        return [norm, *clipped, *[p.grad for p in parameters]]

    parameters = [torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 2.0])]
    assert_same(clip([p.to("tpu") for p in parameters]), clip(parameters))


def test_anomaly_mode_finds_the_op() -> None:
    x = leaf(0.0, 1.0)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with torch.autograd.detect_anomaly(check_nan=True):
            y = (x.sqrt() * 0).sum()
            with pytest.raises(RuntimeError, match=r"'SqrtBackward0' returned nan"):
                y.backward()
    assert any("x.sqrt() * 0" in str(warning.message) for warning in warned)


def test_modes_of_gradients() -> None:
    x = leaf(1.0, 2.0)
    with torch.no_grad():
        assert not (x * 2).requires_grad
    with torch.inference_mode():
        y = x * 2
        assert y.is_inference()
        torch._foreach_mul_([y], 2.0)
        y.add_(1)
    assert y.tolist() == [5, 9]
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
        (x * y).sum()
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        x.add_(1)


def test_gradients_accumulate_and_are_dropped() -> None:
    model = torch.nn.Linear(2, 1).to("tpu")
    x = torch.ones(3, 2, device="tpu")
    for _ in range(2):
        model(x).sum().backward()
    assert model.weight.grad.tolist() == [[6, 6]]
    model.zero_grad(set_to_none=False)
    assert model.weight.grad.tolist() == [[0, 0]]
    model.zero_grad()
    assert model.weight.grad is None


def test_gradcheck() -> None:
    x = torch.tensor([0.3, 0.7], dtype=torch.float64).to("tpu").requires_grad_()
    assert torch.autograd.gradcheck(lambda x: (x * x).sum(), (x,))


def test_backward_from_other_threads() -> None:
    import threading

    results: dict[int, Any] = {}

    def work(index: int) -> None:
        x = leaf(1.0, 2.0)
        for _ in range(5):
            (x * index).sum().backward()
        results[index] = x.grad.tolist()

    threads = [threading.Thread(target=work, args=(index,)) for index in range(1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {index: [5.0 * index] * 2 for index in range(1, 4)}


def test_backward_of_a_process_that_ran_one_before() -> None:
    """The engine knows devices from its first backward pass on; threads of its own or not."""
    code = """
import threading, torch
x = torch.ones(2, requires_grad=True)
(x * 2).sum().backward()
import tpu_compile.device
def run():
    y = torch.ones(2, device="tpu", requires_grad=True)
    (y * 2).sum().backward()
    results.append(y.grad.tolist())
results = []
run()
thread = threading.Thread(target=run)
thread.start()
thread.join()
assert results == [[2.0, 2.0]] * 2, results
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
