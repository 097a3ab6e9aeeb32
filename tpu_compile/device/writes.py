"""Calls that write what no program can: tensors of other sizes, several parts of one memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tpu_compile.device import fallback
from tpu_compile.device.plans import Plan
from tpu_compile.device.values import Store, is_on_device
from tpu_compile.errors import DeviceError

aten = torch.ops.aten


def needs_care(plan: Plan, stores: Sequence[Store | None]) -> bool:
    """Whether what a call writes to has another size, lies elsewhere, or shares its memory."""
    if plan.resizes:
        return True
    written = [stores[index] for index in plan.writes]
    return None in written or (len(written) > 1 and len(set(written)) < len(written))


def run_with_care(
    run: Callable[..., Any],
    plan: Plan,
    tensors: Sequence[torch.Tensor],
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> Any:
    """Return what such a call gives.

    Args:
        run: the kernel of other calls.
        plan: that of this call.
        tensors: those among the arguments, as the plan numbers them.
        args: the arguments.
        kwargs: those with names.

    Raises:
        DeviceError: it would write to a CPU tensor.
        RuntimeError: a tensor would change its size that is read too.
    """
    if not all(is_on_device(tensors[index]) for index in plan.writes):
        raise DeviceError(
            f"{plan.op} cannot write results of the device tpu to a tensor of the CPU",
            ways_out=('move it with .to("tpu")',),
        )
    if plan.resizes:
        # Sizes first, then data: the memory may be larger than the tensor, and others may see it.
        for index, size in plan.resizes.items():
            _resize(tensors[index], size, tensors)
        return run(plan.op, *args, **kwargs)
    return _run_apart(run, plan, [tensors[index] for index in plan.writes], args, kwargs)


def _resize(out: torch.Tensor, size: Sequence[int], tensors: Sequence[torch.Tensor]) -> None:
    if sum(other is out for other in tensors) > 1:
        raise RuntimeError(
            f"output with shape {list(out.shape)} doesn't match the broadcast shape {list(size)}"
        )
    fallback.resize(out, tuple(size))


def _run_apart(
    run: Callable[..., Any],
    plan: Plan,
    written: Sequence[torch.Tensor],
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> Any:
    """Run a call on copies of what it writes to, and bring the data there one after the other.

    Each write makes a new value of the whole memory: those of one program, to parts of the same
    memory, would undo each other.
    """
    originals = {id(item): item for item in written}
    copies = {key: run(aten.clone.default, item) for key, item in originals.items()}

    def replaced(item: Any) -> Any:
        if type(item) is list or type(item) is tuple:
            return [replaced(element) for element in item]
        return copies.get(id(item), item)

    results = run(
        plan.op,
        *[replaced(item) for item in args],
        **{name: replaced(item) for name, item in kwargs.items()},
    )
    for key, item in originals.items():
        run(aten.copy_.default, item, copies[key])
    by_copy = {id(copies[key]): item for key, item in originals.items()}
    if isinstance(results, list):
        return [by_copy.get(id(result), result) for result in results]
    return by_copy.get(id(results), results)
