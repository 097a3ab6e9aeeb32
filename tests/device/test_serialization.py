"""Pickle, `torch.save` and `torch.load`, and loaders of data."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import tpu_compile.device


def saved_and_loaded(item: Any, **options: Any) -> Any:
    file = io.BytesIO()
    torch.save(item, file)
    file.seek(0)
    return torch.load(file, **options)


@pytest.mark.parametrize(
    ("where", "map_location", "expected"),
    [
        ("tpu", None, "tpu"),
        ("tpu", "cpu", "cpu"),
        ("cpu", "tpu", "tpu"),
        ("cpu", torch.device("tpu", 0), "tpu"),
        ("tpu", {"tpu:0": "cpu"}, "cpu"),
        ("cpu", lambda storage, location: storage.tpu(), "tpu"),
    ],
)
def test_save_and_load(where: str, map_location: Any, expected: str) -> None:
    base = torch.arange(6.0).view(2, 3).to(where)
    loaded = saved_and_loaded([base, base[1], base.t()], map_location=map_location)
    assert [t.device.type for t in loaded] == [expected] * 3
    loaded[0][1, 0] = 9
    assert loaded[1].tolist() == [9, 4, 5]
    assert loaded[2].tolist() == [[0, 9], [1, 4], [2, 5]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8, torch.bool, torch.complex64])
def test_dtypes_survive(dtype: torch.dtype) -> None:
    x = torch.tensor([0, 1, 1]).to(dtype).to("tpu")
    loaded = saved_and_loaded(x)
    assert loaded.dtype is dtype
    assert loaded.cpu().equal(x.cpu())


def test_loaded_weights_are_used_as_they_are() -> None:
    """Bytes of a file become elements when they are loaded, not in each op that reads them."""
    weight = saved_and_loaded(torch.ones(2, 2), map_location="tpu")
    (weight + weight).cpu()
    ours = torch.ones(2, 2).to("tpu")
    with tpu_compile.expect_compiles(at_most=0):
        assert (weight + ours).tolist() == [[2, 2], [2, 2]]


def test_mapped_files(tmp_path: Path) -> None:
    torch.save({"x": torch.ones(3)}, tmp_path / "x.pt")
    loaded = torch.load(tmp_path / "x.pt", map_location="tpu", mmap=True)
    assert loaded["x"].tolist() == [1, 1, 1]


def test_state_dicts_between_devices() -> None:
    model = torch.nn.Linear(2, 2)
    other = torch.nn.Linear(2, 2).to("tpu")
    other.load_state_dict(saved_and_loaded(model.state_dict()))
    assert other.weight.cpu().equal(model.weight)
    model.load_state_dict(other.state_dict())
    assert model.weight.device.type == "cpu"
    third = torch.nn.Linear(2, 2, device="meta")
    third.load_state_dict(other.state_dict(), assign=True)
    assert third.weight.device.type == "tpu"
    with torch.device("meta"):
        fourth = torch.nn.Linear(2, 2)
    assert fourth.to_empty(device="tpu").weight.device.type == "tpu"


def test_pickle() -> None:
    x = torch.ones(2, device="tpu", requires_grad=True)
    one, other = pickle.loads(pickle.dumps([x, x.detach()[1:]]))
    assert one.requires_grad
    assert one.device.type == "tpu"
    assert other.tolist() == [1]
    module = pickle.loads(pickle.dumps(torch.nn.Linear(2, 2).to("tpu")))
    assert module.weight.device.type == "tpu"


def test_old_file_format(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save(torch.ones(2, device="tpu"), path, _use_new_zipfile_serialization=False)
    assert torch.load(path).tolist() == [1, 1]
    assert torch.load(path, map_location="cpu").device.type == "cpu"


def test_another_devices_file_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"device_count\(\) is 1"):
        saved_and_loaded(torch.ones(1), map_location="tpu:1")


@pytest.mark.parametrize("workers", [0, 1])
def test_data_loader(workers: int) -> None:
    data = TensorDataset(torch.arange(6.0).view(6, 1), torch.arange(6))
    loader = DataLoader(data, batch_size=3, pin_memory=True, num_workers=workers)
    seen = []
    for values, labels in loader:
        moved = values.to("tpu", non_blocking=True)
        assert moved.flatten().tolist() == labels.tolist()
        seen += labels.tolist()
    assert seen == list(range(6))
