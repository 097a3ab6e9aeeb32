"""Reading and writing through views: lazily conjugated ones, parts of one memory, other dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tpu_compile
from tests.device.comparing import assert_same, moved


def complex_writes() -> list[Callable[[torch.Tensor], Any]]:
    return [
        lambda z: z.conj().mul_(1j),
        lambda z: z.conj().copy_(torch.tensor([1 + 2j, 3, 4, 5j])),
        lambda z: z.imag.neg_(),
        lambda z: z.conj().imag.copy_(torch.ones(4, device=z.device)),
        lambda z: torch.view_as_real(z)[1:, 1].add_(2),
        lambda z: z.conj()[1:].zero_(),
    ]


@pytest.mark.parametrize("write", complex_writes())
def test_writes_through_lazy_views(write: Callable[[torch.Tensor], Any]) -> None:
    host = torch.tensor([1 + 2j, 3 - 1j, -2j, 4])
    device = moved(host)
    write(device)
    write(host)
    assert_same(device, host)


def test_lazy_views_are_read_as_what_they_are() -> None:
    host = torch.tensor([1 + 2j, 3 - 1j])
    device = moved(host)
    assert device.conj().is_conj()
    for read in (
        torch.conj,
        lambda z: z.conj().clone(),
        lambda z: z.conj().imag,
        lambda z: z.conj().imag * 2,
        lambda z: z.conj() @ z,
        lambda z: torch.fft.ifft(z.real),
    ):
        assert_same(read(device).resolve_conj().resolve_neg(), read(host))


def test_writes_to_parts_of_one_memory_all_count() -> None:
    """One op writes to several views of one storage."""
    host = torch.arange(4.0)
    device = moved(host)
    for tensor in (device, host):
        torch._foreach_add_([tensor[:2], tensor[2:]], 1.0)
    assert_same(device, host)
    results = []
    for data in (device, host):
        values = torch.zeros(6, device=data.device)
        torch.linalg.slogdet(torch.eye(2, device=data.device) * 3, out=(values[1], values[4]))
        results.append(values)
    assert_same(*results)


def test_out_takes_the_size_of_the_result_in_its_own_memory() -> None:
    results = []
    for device in ("tpu", "cpu"):
        memory = torch.arange(8.0, device=device)
        part, ones = memory[2:2], torch.ones(3, device=device)
        torch.add(ones, ones, out=part)
        assert part.shape == (3,)
        results.append(memory)
    assert_same(*results)


def test_writes_through_another_dtype() -> None:
    host = torch.arange(12.0).reshape(3, 4)
    device = moved(host)
    for tensor in (device, host):
        tensor.view(torch.int32)[1].zero_()
    assert_same(device, host)


def test_expanded_tensors_are_not_written_to() -> None:
    tensor = torch.ones(1, device="tpu").expand(3)
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        tensor.add_(1)
    assert tensor.fill_(2).tolist() == [2, 2, 2]


def wrong_calls() -> list[Callable[[torch.Tensor], Any]]:
    return [
        lambda x: x + torch.zeros(7, device=x.device),
        lambda x: x.long().add_(1.5),
        lambda x: torch.add(x, x, out=x.long()),
        lambda x: x.gather(0, torch.zeros(1, 1, dtype=torch.int64, device=x.device)),
        lambda x: torch.gather(x, 0, x.long(), out=x.double()),
        lambda x: torch.nn.functional.embedding(x.long(), x),
        lambda x: x.amax(7),
        lambda x: torch.linalg.inv(x),
    ]


@pytest.mark.parametrize("call", wrong_calls())
def test_wrong_arguments_raise_what_the_cpu_raises(call: Callable[[torch.Tensor], Any]) -> None:
    host = torch.zeros(3)
    with pytest.raises((RuntimeError, IndexError)) as expected:
        call(host)
    with pytest.raises(expected.type) as actual:
        call(moved(host))
    assert str(actual.value) == str(expected.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.to_sparse(),
        lambda x: x.to_sparse_csr(),
        lambda x: torch.sparse_coo_tensor(x[:1].long(), x[0], device=x.device),
        lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
        lambda x: x.to(torch.complex32),
    ],
)
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_what_the_device_lacks_is_said(call: Callable[[torch.Tensor], Any]) -> None:
    with pytest.raises(tpu_compile.DeviceError, match=r"[tT]he device tpu has no"):
        call(torch.zeros(2, 2, device="tpu"))


def test_batch_norm_moves_its_statistics() -> None:
    host = torch.nn.BatchNorm1d(3)
    device = moved(host)
    data = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    assert_same(device(moved(data)), host(data))
    assert_same(dict(device.named_buffers()), dict(host.named_buffers()))
    for module in (device, host):
        module.eval()
    assert_same(device(moved(data)), host(data))
    assert_same(dict(device.named_buffers()), dict(host.named_buffers()))


def test_random_integers_between_bounds() -> None:
    drawn = torch.randint(-3, 4, (500,), device="tpu")
    assert set(drawn.tolist()) == set(range(-3, 4))
    assert torch.zeros(9, device="tpu").random_(5, 6).tolist() == [5.0] * 9
    assert int(torch.zeros(500, dtype=torch.uint8, device="tpu").random_(250, None).min()) >= 250


def test_lazy_modules_are_moved_and_converted() -> None:
    lazy = torch.nn.Sequential(torch.nn.LazyLinear(3), torch.nn.LazyBatchNorm1d())
    module = lazy.to("tpu", torch.float64)
    result = module(torch.ones(2, 4, dtype=torch.float64, device="tpu"))
    assert result.dtype is torch.float64
    assert module[0].weight.device == torch.device("tpu", 0)
    assert torch.nn.LazyConv1d(3, 2).to(torch.float64)(torch.ones(1, 2, 5).double()).shape == (
        1,
        3,
        4,
    )
