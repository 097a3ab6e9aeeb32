"""Every test starts from fresh counters, Dynamo caches and warnings."""

from __future__ import annotations

import pytest
import torch

import tpu_compile


@pytest.fixture(autouse=True)
def fresh_state() -> None:
    """Reset Dynamo, the programs and the counters; seed torch."""
    tpu_compile.reset()
    torch.manual_seed(0)
