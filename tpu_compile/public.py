"""Public functions whose modules are imported only when they are called.

`import tpu_compile` must not pull in Dynamo, which takes a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from lowering.registry import REGISTRY, Check, Padding, make_rule
from tpu_compile.runtime.platforms import opened_client

if TYPE_CHECKING:
    from torch._ops import OpOverload

    from tpu_compile.explanation import Explanation


def explain(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Explanation:
    """Run `function` once through the backend and return what became of it.

    See `tpu_compile.explanation.Explanation`; printable, and `.to_json()`.
    """
    from tpu_compile.explanation import explain as run

    return run(function, *args, **kwargs)


def reset() -> None:
    """Drop every compiled program and all counters; functions compile anew when called."""
    from tpu_compile.backend import reset as run

    run()


def invalidate(target: torch.nn.Module | torch.Tensor) -> None:
    """Forget the device copies of a module's parameters and buffers, or of a tensor.

    Needed on devices that hold copies, after a write that torch's version counter does not see
    (through `.data`, NumPy or dlpack). On the CPU client nothing is ever stale.
    """
    if not isinstance(target, (torch.Tensor, torch.nn.Module)):
        raise TypeError(f"invalidate takes a module or a tensor, not {type(target).__name__}")
    client = opened_client()
    if client is None:
        return
    if isinstance(target, torch.Tensor):
        client.residency.drop([target])
    else:
        client.residency.drop([*target.parameters(), *target.buffers()])


def register_lowering(
    overload: OpOverload, *, padding: Padding = Padding.EXACT, check: Check | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as the lowering of a custom op's `overload`.

    The function takes a `lowering.LoweringContext`, then the op's arguments: tensors as MLIR
    values, numbers as they are; it gives back one value, or a tuple of them. Of an op that
    mutates arguments it gives the results and then the new value of each of those arguments, in
    the order of the schema; without a lowering such an op falls back like any other.

    Raises:
        ValueError: the overload already has a lowering.
        TypeError: `overload` is no single overload (`torch.ops.mylib.myop.default`).
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        REGISTRY.add(make_rule(overload, function, padding, check), by_user=True)
        return function

    return register
