"""Storages of the device, and what changes the storage, size or version of a tensor."""

from __future__ import annotations

import copy
import weakref

import numpy
import pytest
import torch

import tpu_compile
import tpu_compile.device


def device_tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32).to("tpu")


def test_storage_describes_itself() -> None:
    x = device_tensor(1, 2, 3, 4)
    storage = x.untyped_storage()
    assert storage.device == x.device == torch.device("tpu:0")
    assert storage.nbytes() == storage.size() == len(storage) == 16
    assert storage.is_tpu
    assert not storage.is_shared()
    assert not storage.is_pinned()
    assert x[1].data_ptr() == x.data_ptr() + 4
    assert x.data_ptr() == storage.data_ptr() != device_tensor(1).data_ptr()


def test_storage_bytes_can_be_read_and_written() -> None:
    x = torch.tensor([1, 2], dtype=torch.int16).to("tpu")
    storage = x.untyped_storage()
    assert storage.tolist() == list(storage) == [1, 0, 2, 0]
    assert storage[2] == 2
    storage[0] = 7
    assert x.tolist() == [7, 2]
    assert repr(storage).endswith("(device=tpu:0) of size 4]")
    assert storage.fill_(0) is storage
    assert x.tolist() == [0, 0]
    assert storage.cpu().tolist() == [0] * 4
    assert storage.cpu().device.type == "cpu"


def test_storage_copies() -> None:
    x, y = device_tensor(1, 2), device_tensor(3, 4)
    clone = x.untyped_storage().clone()
    x.fill_(9)
    y.untyped_storage().copy_(clone)
    assert y.tolist() == [1, 2]
    y.untyped_storage().copy_(torch.tensor([5.0, 6.0]).untyped_storage())
    assert y.tolist() == [5, 6]
    host = torch.zeros(2)
    host.untyped_storage().copy_(y.untyped_storage())
    assert host.tolist() == [5, 6]
    with pytest.raises(RuntimeError, match="size does not match"):
        y.untyped_storage().copy_(torch.zeros(3).untyped_storage())


def test_new_storage_is_zero() -> None:
    storage = torch.UntypedStorage(8, device="tpu")
    assert storage.tolist() == [0] * 8
    assert torch.ones(2).untyped_storage().tpu().tolist()[:4] == [0, 0, 128, 63]
    assert torch.UntypedStorage(3).device.type == "cpu"
    with pytest.raises(tpu_compile.DeviceError, match="no device 'tpu:1'"):
        torch.UntypedStorage(8, device="tpu:1")


def test_resized_storage_keeps_what_fits_and_all_views_see_it() -> None:
    x = device_tensor(1, 2, 3)
    view = x[:2]
    storage = x.untyped_storage()
    assert storage.resize_(20) is storage
    assert x.untyped_storage().nbytes() == 20
    x.resize_(5)
    assert x.tolist() == [1, 2, 3, 0, 0]
    assert view.data_ptr() == x.data_ptr()
    view.fill_(8)
    assert x.tolist() == [8, 8, 3, 0, 0]


def test_storage_can_be_freed_and_filled_again() -> None:
    """What sharded training does with the parameters that are not in use."""
    x = device_tensor(1, 2)
    x.untyped_storage().resize_(0)
    assert x.untyped_storage().nbytes() == 0
    x.untyped_storage().resize_(8)
    x.copy_(torch.tensor([3.0, 4.0]))
    assert x.tolist() == [3, 4]


def test_resize_of_a_tensor() -> None:
    x = device_tensor(1, 2)
    alias = x.view(2)
    x.resize_(2, 2)
    assert x.tolist() == [[1, 2], [0, 0]]
    alias[0] = 5
    assert x[0, 0].item() == 5
    x.resize_(1)
    assert x.tolist() == [5]
    with pytest.warns(UserWarning, match="was resized"):
        out = torch.add(alias, alias, out=torch.empty(1, device="tpu"))
    assert out.shape == (2,)


def test_set_() -> None:
    x, y = device_tensor(1, 2, 3, 4), torch.empty(0, device="tpu")
    y.set_(x)
    assert y.data_ptr() == x.data_ptr()
    y.set_(x.untyped_storage(), 1, (2,), (2,))
    assert y.tolist() == [2, 4]
    y[0] = 7
    assert x.tolist() == [1, 7, 3, 4]
    y.set_(x.untyped_storage())
    assert y.shape == (4,)
    y.set_()
    assert y.numel() == 0
    with pytest.raises(tpu_compile.DeviceError, match="storage on cpu"):
        y.set_(torch.zeros(2).untyped_storage(), 0, (2,))
    with pytest.raises(RuntimeError, match=r"not resizable|out of bounds"):
        y.set_(x.untyped_storage(), 0, (9,))


def test_parameter_data_can_be_replaced() -> None:
    parameter = torch.nn.Parameter(device_tensor(1, 2))
    new = device_tensor(3, 4, 5)
    parameter.data = new
    assert parameter.data_ptr() == new.data_ptr()
    assert parameter.requires_grad
    parameter.data.mul_(2)
    assert new.tolist() == [6, 8, 10]


def test_views_of_other_dtypes_write_through() -> None:
    x = device_tensor(1, 2)
    x.view(torch.int32)[0] = 0
    assert x.tolist() == [0, 2]
    x.view(torch.uint8)[4:].zero_()
    assert x.tolist() == [0, 0]
    x.view(torch.int16).fill_(0x3F80)
    assert x.view(torch.int16).tolist() == [0x3F80] * 4


def test_in_place_views_keep_the_storage() -> None:
    x = device_tensor(1, 2, 3, 4).view(2, 1, 2)
    view = x[1]
    for change in (
        lambda: view.squeeze_(0),
        lambda: view.unsqueeze_(1),
        lambda: view.transpose_(0, 1),
        lambda: view.t_(),
        lambda: view.as_strided_((2,), (1,)),
    ):
        change()
        assert view.data_ptr() == x.data_ptr() + 8
    view.fill_(9)
    assert x.tolist() == [[[1, 2]], [[9, 9]]]


def test_in_place_ops_raise_the_version() -> None:
    x = device_tensor(1, 2)
    versions = [x._version]
    for write in (
        lambda: x.add_(1),
        lambda: x[0].fill_(2),
        lambda: x.copy_(torch.zeros(2)),
        lambda: torch.add(x, x, out=x),
        lambda: torch._foreach_add_([x], 1.0),
        lambda: x.detach().zero_(),
        lambda: x.resize_(3),
    ):
        write()
        versions.append(x._version)
    assert versions == [0, 1, 2, 3, 4, 5, 6, 7]


def test_writes_to_saved_tensors_are_found() -> None:
    x = device_tensor(1, 2).requires_grad_()
    y = x * 2
    loss = (y * y).sum()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_deepcopy_keeps_sharing_and_copies_data() -> None:
    base = device_tensor(1, 2, 3)
    one, other = copy.deepcopy([base, base[1:]])
    one[1] = 9
    assert other.tolist() == [9, 3]
    assert base.tolist() == [1, 2, 3]
    parameter = copy.deepcopy(torch.nn.Parameter(base))
    assert isinstance(parameter, torch.nn.Parameter)
    assert parameter.requires_grad
    assert copy.copy(base).data_ptr() == base.data_ptr()


def test_deepcopy_of_a_module_with_tied_weights() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)).to("tpu")
    model[1].weight = model[0].weight
    copied = copy.deepcopy(model)
    assert copied[0].weight is copied[1].weight
    with torch.no_grad():
        copied[0].weight.fill_(0)
    assert model[0].weight.abs().sum().item() > 0


def test_moving_a_module_keeps_tied_weights() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    model[1].weight = model[0].weight
    model.to("tpu")
    assert model[0].weight is model[1].weight
    assert model.cpu()[0].weight is model[1].weight


def test_memory_is_not_shared_between_processes() -> None:
    x = device_tensor(1)
    for share in (x.share_memory_, x.untyped_storage().share_memory_):
        with pytest.raises(tpu_compile.DeviceError, match=r"cpu\(\)\.share_memory_"):
            share()
    assert not x.is_shared()


def test_pinning() -> None:
    """PJRT pins what it transfers: a pinned CPU tensor is an ordinary copy."""
    host = torch.ones(2)
    pinned = host.pin_memory()
    assert pinned.equal(host)
    assert pinned.data_ptr() != host.data_ptr()
    assert not device_tensor(1).is_pinned()
    with pytest.raises(RuntimeError, match="cannot pin"):
        device_tensor(1).pin_memory()


def test_copies_to_the_host_and_in_other_dtypes() -> None:
    x = device_tensor(1, 2, 3, 4).view(2, 2).t()
    for non_blocking in (False, True):
        host = x.to("cpu", non_blocking=non_blocking)
        assert host.tolist() == [[1, 3], [2, 4]]
        assert host.stride() == (1, 2)
    assert x.to("cpu", torch.int32).dtype is torch.int32
    half = x.to(torch.float16)
    assert (half.dtype, half.stride(), half.tolist()) == (torch.float16, (1, 2), host.tolist())
    assert x.to(torch.float16, memory_format=torch.contiguous_format).is_contiguous()
    copied = x.to("tpu", copy=True)
    x.fill_(0)
    assert copied.tolist() == host.tolist()


def test_numpy_says_what_to_do() -> None:
    x = device_tensor(1, 2)
    for convert in (x.numpy, lambda: numpy.asarray(x)):
        with pytest.raises(TypeError, match=r"can't convert tpu:0 device type tensor .*cpu\(\)"):
            convert()
    assert numpy.asarray(x.cpu()).tolist() == [1, 2]


def test_dlpack_exports_a_host_copy_where_it_is_asked_for() -> None:
    x = device_tensor(1, 2)
    assert x.__dlpack_device__() == (12, 0)
    host = numpy.from_dlpack(x, device="cpu")
    assert host.tolist() == [1, 2]
    with pytest.raises(BufferError, match=r"Tensor\.cpu\(\)"):
        torch.from_dlpack(x)
    with pytest.raises(BufferError, match="must be copied"):
        numpy.from_dlpack(x, device="cpu", copy=False)


def test_a_foreign_storage_is_an_error_and_no_crash() -> None:
    storage = torch._C._construct_storage_from_data_pointer(64, torch.device("tpu", 0), 8)
    x = torch.empty(0, device="tpu")
    with pytest.raises(tpu_compile.DeviceError, match="not made by tpu_compile"):
        x.set_(storage, 0, (2,)).add_(1)


def test_printing_compiles_nothing() -> None:
    x = device_tensor(1.5, -2)
    with tpu_compile.expect_compiles(at_most=0):
        assert repr(x) == "tensor([ 1.5000, -2.0000], device='tpu:0')"
        assert repr(x.requires_grad_()).endswith("device='tpu:0', requires_grad=True)")
        assert f"{x[0]:.1f}" == "1.5"
        assert str(torch.empty(0, device="tpu")) == "tensor([], device='tpu:0')"


def test_state_of_a_compiled_module_on_the_cpu_can_be_loaded() -> None:
    """Parameters that something refers to weakly cannot be swapped: only moves may do that."""
    model = torch.nn.Linear(3, 2)
    references = [weakref.ref(parameter) for parameter in model.parameters()]
    state = {name: torch.randn_like(value) for name, value in model.state_dict().items()}
    model.load_state_dict(state)
    model.double()
    assert all(reference() is not None for reference in references)
    assert torch.equal(model.weight, state["weight"].double())
    assert not torch.__future__.get_swap_module_params_on_conversion()


def test_tied_weights_stay_tied_on_the_way_there_and_back() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    model[1].weight = model[0].weight
    model.to("tpu")
    assert model[1].weight is model[0].weight
    assert model[0].weight.device.type == "tpu"
    model.cpu()
    assert model[1].weight is model[0].weight
    assert model[0].weight.device.type == "cpu"
