"""`torch.tpu`, `torch.accelerator`, and the other places where torch asks for a device."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch

import tpu_compile
import tpu_compile.device
from tests.device.comparing import moved


def test_the_device_is_registered() -> None:
    assert torch.tpu is torch.get_device_module("tpu")
    assert torch.device("tpu").type == "tpu"
    assert torch.utils.backend_registration._privateuse1_backend_name == "tpu"
    tpu_compile.device.enable()  # a second time does nothing


def test_tensors_and_modules_move() -> None:
    x = torch.ones(2)
    for device in ("tpu", "tpu:0", torch.device("tpu"), torch.device("tpu", 0)):
        assert x.to(device).device == torch.device("tpu", 0)
    moved = x.tpu()
    assert moved.is_tpu
    assert not x.is_tpu
    assert moved.type() == "torch.tpu.FloatTensor"
    assert moved.to("tpu") is moved
    assert moved.tpu(0) is moved
    assert moved.to(torch.float64).device.type == "tpu"
    assert moved.cpu().device.type == "cpu"
    assert torch.nn.Linear(2, 2).tpu().weight.is_tpu
    assert moved.get_device() == 0


def test_default_device() -> None:
    with torch.device("tpu"):
        assert torch.zeros(2).is_tpu
        assert torch.nn.Linear(2, 2).weight.is_tpu
        assert torch.zeros(2, device="cpu").device.type == "cpu"
    torch.set_default_device("tpu")
    try:
        assert torch.arange(3).is_tpu
        assert torch.tensor([1.0]).is_tpu
    finally:
        torch.set_default_device(None)
    assert torch.zeros(1).device.type == "cpu"


def test_devices() -> None:
    assert torch.tpu.is_available()
    assert torch.tpu.device_count() == 1
    torch.tpu.set_device(0)
    torch.tpu.set_device("tpu")
    assert torch.tpu.current_device() == 0
    with torch.tpu.device(0), torch.tpu.device("tpu:0"), torch.tpu.device(None):
        assert torch.tpu.current_device() == 0
    with torch.tpu.device_of(torch.ones(1)), torch.tpu.device_of(torch.ones(1, device="tpu")):
        pass
    torch.tpu.init()
    assert torch.tpu.is_initialized()
    for use in (torch.tpu.set_device, torch.tpu.device, torch.tpu.get_device_name):
        with pytest.raises(tpu_compile.DeviceError, match="no device 'tpu:3'"):
            use(3)
    with pytest.raises(tpu_compile.DeviceError, match=r"'cuda:0' is no device of torch\.tpu"):
        torch.tpu.set_device("cuda:0")


def test_properties() -> None:
    properties = torch.tpu.get_device_properties()
    assert torch.tpu.get_device_name("tpu:0") == properties.name
    assert properties.total_memory > 0
    assert torch.bfloat16 in torch.tpu.get_device_capability()["supported_dtypes"]
    assert torch.tpu.get_amp_supported_dtype() == [torch.bfloat16, torch.float16]
    assert torch.tpu.is_bf16_supported()


def test_memory_is_counted() -> None:
    torch.tpu.synchronize()
    before = torch.tpu.memory_allocated()
    x = torch.ones(1000).to("tpu")
    assert torch.tpu.memory_allocated() == before + 4000
    assert torch.accelerator.memory_allocated() == before + 4000
    del x
    assert torch.tpu.memory_allocated() == before
    assert torch.tpu.max_memory_allocated() >= before + 4000
    assert torch.tpu.memory_reserved() >= before
    assert torch.tpu.max_memory_reserved() >= before
    stats = torch.tpu.memory_stats()
    assert stats["allocated_bytes.all.current"] == before
    assert list(stats) == sorted(stats)
    torch.tpu.reset_peak_memory_stats()
    assert torch.tpu.max_memory_allocated() == before
    torch.tpu.empty_cache()


def test_memory_of_ops_that_wait_counts() -> None:
    before = torch.tpu.memory_allocated()
    with tpu_compile.device.mode("fused"):
        x = torch.ones(1000, device="tpu")
        assert 4000 <= torch.tpu.memory_allocated() - before < 4100  # and a number or two
    del x


def test_free_memory_is_unknown_on_the_cpu() -> None:
    with pytest.raises(tpu_compile.DeviceError, match="does not tell"):
        torch.tpu.mem_get_info()


def test_accelerator() -> None:
    accelerator = torch.accelerator
    assert accelerator.is_available()
    assert accelerator.current_accelerator() == torch.device("tpu")
    assert accelerator.device_count() == 1
    assert accelerator.current_device_index() == 0
    accelerator.set_device_index(0)
    accelerator.synchronize()
    accelerator.synchronize("tpu:0")
    accelerator.empty_cache()
    with accelerator.device_index(0):
        pass
    assert accelerator.max_memory_allocated() >= accelerator.memory_allocated()
    assert "allocated_bytes.all.current" in accelerator.memory_stats()
    assert torch.float32 in accelerator.get_device_capability()["supported_dtypes"]
    assert accelerator.current_stream().device == torch.device("tpu", 0)


def test_synchronize_runs_what_waits() -> None:
    with tpu_compile.device.mode("fused"):
        before = tpu_compile.stats().executions
        x = torch.ones(3).to("tpu") + 1
        assert tpu_compile.stats().executions == before
        torch.accelerator.synchronize()
        assert tpu_compile.stats().executions == before + 1
    assert x.tolist() == [2, 2, 2]


def test_streams_and_events() -> None:
    stream = torch.tpu.Stream()
    assert stream.device == torch.device("tpu", 0)
    assert stream == torch.tpu.current_stream() == torch.tpu.default_stream("tpu:0")
    start, end = (torch.tpu.Event(enable_timing=True) for _ in range(2))
    with pytest.raises(tpu_compile.DeviceError, match="must be recorded"):
        start.elapsed_time(end)
    with torch.tpu.stream(stream):
        start.record()
        x = torch.ones(3).to("tpu") + 1
        end.record(stream)
    stream.wait_stream(torch.tpu.current_stream())
    stream.wait_event(end)
    torch.tpu.current_stream().wait_event(stream.record_event())
    assert stream.query()
    assert end.query()
    stream.synchronize()
    end.synchronize()
    end.wait()
    assert start.elapsed_time(end) > 0
    assert x.tolist() == [2, 2, 2]
    with pytest.raises(tpu_compile.DeviceError, match="enable_timing"):
        start.elapsed_time(torch.tpu.Event())
    x.record_stream(stream)
    assert torch.Stream(device="tpu").device.type == "tpu"


def test_seeds() -> None:
    torch.manual_seed(3)
    assert torch.tpu.initial_seed() == 3
    one = torch.rand(4, device="tpu")
    torch.tpu.manual_seed(3)
    assert torch.rand(4, device="tpu").equal(one)
    torch.tpu.manual_seed_all(4)
    assert not torch.rand(4, device="tpu").equal(one)
    torch.tpu.seed()
    assert torch.tpu.initial_seed() not in (3, 4)
    torch.tpu.seed_all()


def test_rng_states() -> None:
    state = torch.tpu.get_rng_state()
    states = torch.tpu.get_rng_state_all()
    one = torch.rand(4, device="tpu")
    torch.tpu.set_rng_state(state)
    assert torch.rand(4, device="tpu").equal(one)
    torch.tpu.set_rng_state_all(states)
    assert torch.rand(4, device="tpu").equal(one)
    with pytest.raises(ValueError, match=r"uint8\[16\]"):
        torch.tpu.set_rng_state(torch.zeros(3, dtype=torch.uint8))
    for fork in (torch.random.fork_rng(), torch.random.fork_rng(device_type="tpu")):
        torch.tpu.set_rng_state(state)
        with fork:
            torch.rand(4, device="tpu")
        assert torch.rand(4, device="tpu").equal(one)


def test_generators() -> None:
    """A generator of the device cannot be made from Python; those of the CPU do."""
    with pytest.raises((RuntimeError, NotImplementedError), match="PrivateUse1"):
        torch.Generator(device="tpu")
    generator = torch.Generator().manual_seed(5)
    one = torch.rand(4, device="tpu", generator=generator)
    other = torch.rand(4, device="tpu", generator=generator)
    assert not one.equal(other)
    generator.manual_seed(5)
    assert torch.rand(4, device="tpu", generator=generator).equal(one)
    for draw in (
        lambda g: torch.randn(4, device="tpu", generator=g),
        lambda g: torch.randint(9, (4,), device="tpu", generator=g),
        lambda g: torch.empty(4, device="tpu").uniform_(generator=g),
        lambda g: torch.bernoulli(torch.full((4,), 0.5, device="tpu"), generator=g),
        lambda g: torch.randperm(4, device="tpu", generator=g),
        lambda g: torch.multinomial(torch.ones(4, device="tpu"), 2, generator=g),
        lambda g: torch.nn.init.trunc_normal_(torch.empty(4, device="tpu"), generator=g),
    ):
        drawn = [draw(torch.Generator().manual_seed(6)) for _ in range(2)]
        assert drawn[0].equal(drawn[1])


def test_meta_and_fake_tensors_know_the_device() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x = torch.ones(2, 3, device="tpu")
        assert (x @ x.t()).device == torch.device("tpu", 0)
    assert torch.ones(2, device="tpu").to("meta").device.type == "meta"


def test_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=1, n_head=1, n_embd=4, vocab_size=7, n_positions=8, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    ids = torch.tensor([[1, 2, 3]])
    with tpu_compile.device.mode("fused"), torch.no_grad():
        actual = moved(model)(ids.to("tpu")).logits
    torch.testing.assert_close(actual.cpu(), model(ids).logits, atol=1e-4, rtol=1e-4)
    pytest.importorskip("accelerate", reason="device_map needs it")
    model.save_pretrained(tmp_path)
    loaded = transformers.GPT2LMHeadModel.from_pretrained(tmp_path, device_map="tpu")
    assert {p.device for p in loaded.parameters()} == {torch.device("tpu", 0)}
    assert loaded.lm_head.weight is loaded.transformer.wte.weight


@pytest.mark.full
def test_autoload(tmp_path: Path) -> None:
    """An entry point of another package lets torch register the device at its import."""
    info = tmp_path / "autoload-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: autoload\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[torch.backends]\ntpu = tpu_compile.device:enable\n")
    code = "import torch; print(torch.ones(2, device='tpu').sum().item())"
    paths = [str(tmp_path), *sys.path]
    for value, succeeds in (("1", True), ("0", False)):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths),
                 "TORCH_DEVICE_BACKEND_AUTOLOAD": value},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.stdout == "2.0\n") is succeeds, done.stderr


def test_no_autoload_of_our_own() -> None:
    points = metadata.entry_points(group="torch.backends")
    assert not [point for point in points if point.module.startswith("tpu_compile")]


def test_a_module_moves_after_a_compiled_call_on_the_cpu() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4)).eval()
    function = torch.compile(model, backend="tpu")
    x = torch.randn(3, 5)
    with torch.no_grad():
        expected = function(x)
        model.to("tpu")
        assert model[0].weight.device.type == "tpu"
        torch.testing.assert_close(function(x.to("tpu")).cpu(), expected)
        model.to("cpu")
        torch.testing.assert_close(function(x), expected)
