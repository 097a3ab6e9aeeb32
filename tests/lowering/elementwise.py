"""Checks many functions of the same arguments in one program, each element at its own scale.

The sign of a zero counts, unless the caller says that eager itself is not consistent about it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from tests.lowering.running import TOLERANCES, run


def check_each(
    functions: Mapping[str, Callable[..., Any]],
    *args: torch.Tensor,
    tolerance: float | None = None,
    signed_zeros: bool = True,
) -> None:
    """Assert that each function gives what eager PyTorch gives, relative to each element.

    One program is compiled for all of them; the error names every function that differs.
    """
    expected = {name: function(*args) for name, function in functions.items()}
    actual = run(lambda *inputs: [function(*inputs) for function in functions.values()], *args)
    faults = []
    for ours, (name, eager) in zip(actual, expected.items(), strict=True):
        limit = TOLERANCES.get(eager.dtype, 0.0) if tolerance is None else tolerance
        try:
            torch.testing.assert_close(ours, eager, rtol=limit, atol=0, equal_nan=True)
            if signed_zeros and eager.dtype.is_floating_point:
                zero = eager == 0
                torch.testing.assert_close(ours[zero].signbit(), eager[zero].signbit())
        except AssertionError as error:
            faults.append(f"{name}: {error}\n ours {ours}\neager {eager}")
    assert not faults, "\n\n".join(faults)
