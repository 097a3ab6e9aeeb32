"""`torch.autocast("tpu")`: which ops run in which precision, and scaled gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tpu_compile.device.autocast import kernels

BFLOAT16, FLOAT16, FLOAT32 = torch.bfloat16, torch.float16, torch.float32


def square(dtype: torch.dtype = FLOAT32) -> torch.Tensor:
    return torch.tensor([[0.5, 0.25], [1.0, 0.75]], dtype=dtype).to("tpu")


@pytest.mark.parametrize(
    ("call", "given", "expected"),
    [
        (lambda x: x @ x, FLOAT32, BFLOAT16),
        (lambda x: F.linear(x, x), FLOAT32, BFLOAT16),
        (lambda x: F.conv1d(x[None], x[None]), FLOAT32, BFLOAT16),
        (lambda x: torch.bmm(x[None], x[None]), FLOAT32, BFLOAT16),
        (lambda x: torch.baddbmm(x[None], x[None], x[None]), FLOAT32, BFLOAT16),
        (lambda x: F.scaled_dot_product_attention(x, x, x), FLOAT32, BFLOAT16),
        (lambda x: x.softmax(-1), BFLOAT16, FLOAT32),
        (lambda x: x.softmax(-1, dtype=BFLOAT16), BFLOAT16, BFLOAT16),
        (lambda x: x.log_softmax(-1), BFLOAT16, FLOAT32),
        (lambda x: F.layer_norm(x, (2,)), BFLOAT16, FLOAT32),
        (lambda x: F.mse_loss(x, x), BFLOAT16, FLOAT32),
        (lambda x: F.binary_cross_entropy_with_logits(x, x), BFLOAT16, FLOAT32),
        (lambda x: F.cross_entropy(x, torch.tensor([0, 1]).to(x.device)), BFLOAT16, FLOAT32),
        (lambda x: x.exp(), BFLOAT16, FLOAT32),
        (lambda x: x.pow(2), BFLOAT16, FLOAT32),
        (lambda x: x.sum(), BFLOAT16, FLOAT32),
        (lambda x: x.cumsum(0), BFLOAT16, FLOAT32),
        (lambda x: x.norm(), BFLOAT16, FLOAT32),
        (lambda x: x.norm(2, dim=1), BFLOAT16, FLOAT32),
        (lambda x: torch.addcmul(x, x.float(), x), BFLOAT16, FLOAT32),
        (lambda x: torch.addcmul(x, x, x), BFLOAT16, BFLOAT16),
        (lambda x: x + x.float(), BFLOAT16, FLOAT32),
        (lambda x: x.relu(), BFLOAT16, BFLOAT16),
        (lambda x: x * 2, FLOAT32, FLOAT32),
        (lambda x: x.double() @ x.double(), FLOAT32, torch.float64),
    ],
)
def test_precision(
    call: Callable[[torch.Tensor], torch.Tensor], given: torch.dtype, expected: torch.dtype
) -> None:
    x = square(given)
    with torch.autocast("tpu", dtype=BFLOAT16):
        assert call(x).dtype is expected
    host = call(x.cpu().float() if given is BFLOAT16 else x.cpu())
    with torch.autocast("tpu", dtype=BFLOAT16):
        torch.testing.assert_close(call(x).cpu().to(host.dtype), host, atol=0.02, rtol=0.02)


def test_lists_are_those_of_cuda() -> None:
    """Against the lists that torch tests CUDA with."""
    from torch.testing._internal.autocast_test_lists import AutocastTestLists

    lists = AutocastTestLists("cpu")
    ours = {op._schema.name.removeprefix("aten::") for op, _ in kernels()}
    for group in ("torch_fp16", "torch_fp32", "nn_fp16", "nn_fp32", "torch_need_autocast_promote"):
        names = {entry[0] for entry in getattr(lists, group)}
        # stack and cat promote by themselves.
        names = {name for name in names - {"stack", "cat"} if not name.startswith("cudnn")}
        assert names <= ours, group


def test_default_dtype_and_float16() -> None:
    x = square()
    with torch.autocast("tpu"):
        assert (x @ x).dtype is torch.get_autocast_dtype("tpu")
    with torch.autocast("tpu", dtype=FLOAT16):
        assert (x @ x).dtype is FLOAT16
    with pytest.warns(UserWarning, match="autocast only supports|not supported"):
        context = torch.autocast("tpu", dtype=torch.float64)
    with context:
        assert (x @ x).dtype is FLOAT32
    assert torch.amp.is_autocast_available("tpu")


def test_nesting() -> None:
    x = square()
    with torch.autocast("tpu", dtype=BFLOAT16):
        with torch.autocast("tpu", enabled=False):
            assert (x @ x).dtype is FLOAT32
            with torch.autocast("tpu", dtype=FLOAT16):
                assert (x @ x).dtype is FLOAT16
        assert (x @ x).dtype is BFLOAT16
        with torch.autocast("cpu", dtype=BFLOAT16):
            assert (x.cpu() @ x.cpu()).dtype is BFLOAT16
        assert (x.cpu() @ x.cpu()).dtype is FLOAT32
    assert (x @ x).dtype is FLOAT32
    assert not torch.is_autocast_enabled("tpu")


def test_decorator_and_custom_functions() -> None:
    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="tpu")
        def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x, y)
            return x @ y

        @staticmethod
        @torch.amp.custom_bwd(device_type="tpu")
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x, y = ctx.saved_tensors
            seen.append((gradient @ y.t()).dtype)
            return gradient @ y.t(), x.t() @ gradient

    class Float32Product(Product):
        @staticmethod
        @torch.amp.custom_fwd(device_type="tpu", cast_inputs=torch.float32)
        def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x, y)
            return x @ y

    seen: list[torch.dtype] = []
    x = square().requires_grad_()
    with torch.autocast("tpu", dtype=BFLOAT16):
        y = Product.apply(x, x)
        z = Float32Product.apply(x.bfloat16(), x)
    assert y.dtype is BFLOAT16
    assert z.dtype is FLOAT32
    y.float().sum().backward()
    assert seen == [BFLOAT16]
    assert x.grad.dtype is FLOAT32
    decorated = torch.autocast("tpu", dtype=BFLOAT16)(lambda x: x @ x)
    assert decorated(x).dtype is BFLOAT16


def test_training_step() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LayerNorm(2)).to("tpu")
    with torch.autocast("tpu", dtype=BFLOAT16):
        loss = model(square()).square().mean()
    loss.backward()
    assert loss.dtype is FLOAT32
    assert {p.grad.dtype for p in model.parameters()} == {FLOAT32}


def test_bce_is_refused() -> None:
    x = square()
    with (
        torch.autocast("tpu", dtype=BFLOAT16),
        pytest.raises(RuntimeError, match="unsafe to autocast"),
    ):
        F.binary_cross_entropy(x, x)


def test_grad_scaler() -> None:
    model = torch.nn.Linear(2, 1).to("tpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("tpu", init_scale=8.0, growth_interval=1)
    before = model.weight.detach().clone()
    with torch.autocast("tpu", dtype=FLOAT16):
        loss = model(square()).float().sum()
    scaled = scaler.scale(loss)
    torch.testing.assert_close(scaled, loss * 8)
    scaled.backward()
    scaler.unscale_(optimizer)
    torch.testing.assert_close(model.weight.grad.cpu(), square().cpu().sum(0)[None])
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 16
    torch.testing.assert_close(model.weight, before - 0.1 * model.weight.grad)

    before = model.weight.detach().clone()
    scaler.scale(model(square() * float("inf")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 8
    assert model.weight.equal(before)
    scaler.load_state_dict(scaler.state_dict())


def test_compiled_functions_follow_autocast() -> None:
    @torch.compile(backend="tpu")
    def step(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("tpu", dtype=BFLOAT16):
            return x @ x

    y = step(square())
    assert y.dtype is BFLOAT16
    assert y.is_tpu
