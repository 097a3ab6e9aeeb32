"""With the real TPU compiler, where libtpu is installed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tpu_compile
from tpu_compile.ahead.fitting import fit
from tpu_compile.ahead.lowered import lower_made
from tpu_compile.runtime.pjrt import OutOfMemoryError, plugin_path
from tpu_compile.runtime.targets import CHIPS, UnknownTargetError

pytestmark = [
    pytest.mark.skipif(plugin_path("tpu") is None, reason="libtpu is not installed"),
    # Dynamo inspects scripted modules on its way through torch.optim.
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
]


def training_step() -> tuple[object, tuple[object, ...], dict[str, object]]:
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    compiled = torch.compile(model, backend="tpu")
    update = torch.compile(lambda: optimizer.step(), backend="tpu")

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = compiled(x).square().mean()
        loss.backward()
        update()
        return loss.detach()

    return step, (torch.randn(32, 64),), {}


@pytest.mark.parametrize("chip", CHIPS)
def test_a_training_step_compiles_for_every_chip(chip: str) -> None:
    compiled = lower_made(training_step).compile(chip)
    assert len(compiled.programs) == 3
    products = 2 * 32 * (64 * 256 + 256 * 8)
    # Forward, gradients of both weights, gradient of the inner activation.
    assert compiled.cost.flops >= 2 * products + 2 * 32 * 256 * 8
    assert compiled.cost.estimated_cycles > 0
    available = compiled.memory.available
    assert available is not None
    assert 0.9 * CHIPS[chip].device_hbm_bytes < available <= 1.02 * CHIPS[chip].device_hbm_bytes
    assert compiled.memory.fits
    # Parameters and momentum.
    assert compiled.memory.state >= 2 * 4 * (64 * 256 + 256 + 256 * 8 + 8)
    update = compiled.programs[-1]
    assert update.memory.aliased > 0, "the new parameters take the place of the old"
    places = {one.op_name for p in compiled.programs for one in p.hlo_module.instructions}
    assert any("aten." in place for place in places)
    assert len(compiled.serialize()) > 1000


def test_a_topology_is_a_target_and_a_wrong_one_is_refused() -> None:
    lowered = tpu_compile.lower(nn.ReLU(), torch.randn(8))
    assert str(lowered.compile("v6e:2x4").target) == "v6e:2x4"
    with pytest.raises(UnknownTargetError, match="3x3"):
        lowered.compile("v6e:3x3")


def too_large() -> tuple[object, tuple[object, ...], dict[str, object]]:
    return (lambda x, y: x + y.T), (torch.ones(60_000, 60_000), torch.ones(60_000, 60_000)), {}


def test_too_much_memory_is_an_error_of_compile_and_a_result_of_fit() -> None:
    lowered = lower_made(too_large)
    where = r"test_chips\.py:\d+.*exceeds available HBM"
    with pytest.raises(OutOfMemoryError, match=where) as told:
        lowered.compile("v5e")
    assert told.value.needed is not None
    assert told.value.needed > 2 * 4 * 60_000**2
    found = fit(lowered, "v5e")
    assert not found.fits
    assert found.compiled is None
    assert found.memory.excess >= told.value.needed - (told.value.available or 0)
    assert fit(lowered, "v5p").fits


def test_one_line_changes_no_program() -> None:
    """Locations are in the module that is compiled, and in no key."""
    lowered = tpu_compile.lower(lambda x: x + 1, torch.ones(8))
    moved = tpu_compile.lower(
        lambda x: x + 1,
        torch.ones(8),
    )
    assert lowered.stablehlo == moved.stablehlo
    assert lowered.programs[0].where != moved.programs[0].where
