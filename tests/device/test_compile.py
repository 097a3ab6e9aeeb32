"""torch.compile(backend="tpu") on device tensors: no host copies, donation, aliases as eager."""

from __future__ import annotations

import copy

import torch
from torch import nn

import tpu_compile
import tpu_compile.device
from tpu_compile.device.values import store_of

STRICT = {"fallback": "error"}


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def test_a_training_step_copies_nothing_through_the_host() -> None:
    expected = make_model()
    model = copy.deepcopy(expected).to("tpu")
    compiled = torch.compile(model, backend="tpu", fullgraph=True, options=STRICT)
    x = torch.randn(5, 6)
    given = x.to("tpu")
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (expected, model)]
    losses = []
    for step in range(3):
        if step == 1:
            tpu_compile.reset_stats()
        for run, batch, optimizer in zip((expected, compiled), (x, given), optimizers, strict=True):
            loss = run(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    stats = tpu_compile.stats()
    assert (stats.uploads, stats.downloads) == (0, 0)
    assert not stats.fallback_ops
    torch.testing.assert_close(
        torch.stack(losses[::2]), torch.stack([v.cpu() for v in losses[1::2]])
    )
    state = {name: value.cpu() for name, value in model.state_dict().items()}
    torch.testing.assert_close(state, dict(expected.state_dict()))


def test_written_arguments_are_donated() -> None:
    parameter = torch.randn(7, 3, device="tpu")
    before, expected = store_of(parameter).value.array, parameter.cpu() * 0.5
    torch.compile(lambda p: p.mul_(0.5), backend="tpu")(parameter)
    assert before.is_deleted()
    torch.testing.assert_close(parameter.cpu(), expected)


def test_nothing_is_donated_on_request() -> None:
    parameter = torch.randn(7, 4, device="tpu")
    before = store_of(parameter).value.array
    torch.compile(lambda p: p.mul_(0.5), backend="tpu", options={"donate": False})(parameter)
    assert not before.is_deleted()


def test_views_keep_their_strides_and_aliases() -> None:
    base = torch.arange(24.0).reshape(4, 6)
    device_base = base.to("tpu")
    view, device_view = base[1:, ::2].t(), device_base[1:, ::2].t()
    compiled = torch.compile(lambda x: (x.t() + 1, x), backend="tpu", fullgraph=True)
    result, same = compiled(device_view)
    assert same is device_view
    assert result.stride() == (view.t() + 1).stride()
    torch.testing.assert_close(result.cpu(), view.t() + 1)


def test_conjugated_and_negated_views_are_read_as_they_are() -> None:
    x = torch.randn(4, dtype=torch.complex64)
    given = x.to("tpu")
    compiled = torch.compile(lambda x: x * 2, backend="tpu", fullgraph=True)
    torch.testing.assert_close(compiled(given.conj()).cpu(), x.conj() * 2)
    torch.testing.assert_close(compiled(given.conj().imag).cpu(), x.conj().imag * 2)


def test_a_write_through_a_view_reaches_its_base() -> None:
    base = torch.arange(12.0).reshape(3, 4)
    device_base = base.to("tpu")

    def write(x: torch.Tensor) -> torch.Tensor:
        x[:, 1].mul_(10)
        return x.sum()

    total = torch.compile(write, backend="tpu", fullgraph=True)(device_base[1:])
    assert total.cpu() == write(base[1:])
    torch.testing.assert_close(device_base.cpu(), base)


def test_results_are_where_the_function_puts_them() -> None:
    def mixed(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x + 1, x.cpu() * 2, torch.ones(2, device=x.device), torch.zeros(2)

    x = torch.randn(3, device="tpu")
    results = torch.compile(mixed, backend="tpu", fullgraph=True)(x)
    assert [r.device.type for r in results] == ["tpu", "cpu", "tpu", "cpu"]
    torch.testing.assert_close([r.cpu() for r in results], [r.cpu() for r in mixed(x)])


def test_changing_sizes_are_padded() -> None:
    def attend(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ x.t(), dim=-1) @ x

    compiled = torch.compile(attend, backend="tpu", dynamic=True, options=STRICT)
    tpu_compile.reset_stats()
    for size in (17, 19, 25, 30, 32):
        x = torch.randn(size, 4)
        result = compiled(x.to("tpu"))
        assert result.device.type == "tpu"
        torch.testing.assert_close(result.cpu(), attend(x), rtol=1e-4, atol=1e-5)
    assert tpu_compile.stats().xla_compiles < 5


def test_backward_with_changing_sizes() -> None:
    expected = nn.Linear(4, 3)
    model = copy.deepcopy(expected).to("tpu")
    compiled = torch.compile(model, backend="tpu", dynamic=True)
    for size in (9, 12, 15):
        x = torch.randn(size, 4)
        for run, batch in ((expected, x), (compiled, x.to("tpu"))):
            run.zero_grad()
            run(batch).tanh().sum().backward()
        torch.testing.assert_close(model.weight.grad.cpu(), expected.weight.grad)


def test_ops_that_wait_run_before_a_graph() -> None:
    compiled = torch.compile(lambda x: x * 3, backend="tpu")
    x = torch.randn(3)
    with tpu_compile.device.mode("fused"):
        waiting = x.to("tpu") + 1
        torch.testing.assert_close(compiled(waiting).cpu(), (x + 1) * 3)


def test_random_numbers_follow_the_seed_of_the_device() -> None:
    compiled = torch.compile(lambda x: torch.rand_like(x), backend="tpu")
    x = torch.zeros(8, device="tpu")
    torch.manual_seed(3)
    first, second = compiled(x).cpu(), compiled(x).cpu()
    torch.manual_seed(3)
    assert torch.equal(compiled(x).cpu(), first)
    assert not torch.equal(first, second)
