"""Models of transformers, forward and gradients, compile for the chips: `make tpu-aot`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.models.test_models import CORE, FULL
from tests.models.tiny import make_tiny
from tpu_compile.ahead.lowered import lower_made
from tpu_compile.runtime.pjrt import plugin_path

pytestmark = [
    pytest.mark.skipif(plugin_path("tpu") is None, reason="libtpu is not installed"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.timeout(1800),
]

CHIPS = ("v5e", "v6e", "tpu7x")
SAMPLE = (("llama", "v6e"),)
REST = [(name, chip) for name in (*CORE, *FULL) for chip in CHIPS if (name, chip) not in SAMPLE]


def _check(name: str, chip: str) -> None:
    tiny = make_tiny(name)
    compiled = torch.compile(tiny.model, backend="tpu", options={"fallback": "error"})

    def step(**inputs: Any) -> None:
        outputs = [tensor for tensor in tiny.outputs(compiled(**inputs)) if tensor.requires_grad]
        if outputs:
            torch.stack([tensor.float().square().mean() for tensor in outputs]).sum().backward()

    programs = lower_made(lambda: (step, (), dict(tiny.inputs))).compile(chip)
    assert isinstance(tiny.model, nn.Module)
    assert programs.cost.flops > 0
    assert programs.memory.fits
    kinds = {program.lowered.name.kind for program in programs.programs}
    assert {"forward", "backward"} <= kinds or kinds == {"inference"}


@pytest.mark.parametrize(("name", "chip"), SAMPLE)
def test_a_model_compiles(name: str, chip: str) -> None:
    _check(name, chip)


@pytest.mark.full
@pytest.mark.parametrize(("name", "chip"), REST)
def test_more_models_compile(name: str, chip: str) -> None:
    _check(name, chip)
