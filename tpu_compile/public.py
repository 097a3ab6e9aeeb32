"""Public functions whose modules are imported only when they are called.

`import tpu_compile` must not pull in Dynamo, which takes a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from lowering.registry import REGISTRY, Check, Padding, make_rule
from tpu_compile.runtime.platforms import opened_client

if TYPE_CHECKING:
    from torch._ops import OpOverload

    from tpu_compile.ahead.lowered import Lowered
    from tpu_compile.explanation import Explanation
    from tpu_compile.options import CompileOptions


def explain(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Explanation:
    """Run `function` once through the backend and return what became of it.

    See `tpu_compile.explanation.Explanation`; printable, and `.to_json()`.
    """
    from tpu_compile.explanation import explain as run

    return run(function, *args, **kwargs)


def lower(
    function: Callable[..., Any],
    /,
    *args: Any,
    compile_options: CompileOptions | Mapping[str, Any] | None = None,
    dynamic: bool | None = None,
    **kwargs: Any,
) -> Lowered:
    """Return the programs that `function(*args, **kwargs)` would run, lowered to StableHLO.

    Nothing is computed: the function is called with fake tensors, so a model larger than this
    machine can be asked about. It may be a module, a function, or a whole training step: forward,
    backward and optimizer are programs of their own. Python code around the graphs runs, and
    gradients, parameters, buffers and optimizer states stay as they are. A function that calls
    compiled ones runs as it is; any other is compiled itself. One that trains is called twice, and
    the second call is told: some optimizers make their state in the first.

    >>> import torch
    >>> lowered = lower(torch.nn.Linear(8, 2), torch.randn(4, 8))
    >>> "stablehlo.dot_general" in lowered.stablehlo
    True
    >>> lowered.compile("cpu").cost.flops > 0
    True

    Args:
        function: what to lower.
        args: its arguments; of tensors only shape and dtype count.
        compile_options: those of `torch.compile`; by default what the function's own
            `torch.compile` says, if it has one.
        dynamic: as in `torch.compile`; None captures the sizes of this call, and as dynamic only
            what `mark_dynamic` says.
        kwargs: further arguments of the function.

    Raises:
        TypeError: `function` cannot be called.
        ValueNeededError: the function needs the value of a tensor.
        UnsupportedOpError: under `fallback="error"`, an op has no lowering.
    """
    if not callable(function):
        raise TypeError(f"lower takes a module or a function, not {type(function).__name__}")
    from tpu_compile.ahead.lowered import lower_made
    from tpu_compile.options import from_torch_compile

    options = None if compile_options is None else from_torch_compile(None, compile_options)
    return lower_made(lambda: (function, args, kwargs), options=options, dynamic=dynamic)


def warmup(
    function: Callable[..., Any],
    examples: Iterable[Sequence[Any]],
    *,
    sizes: Mapping[str, Iterable[int]] | None = None,
    threads: int | None = None,
    progress: bool = True,
) -> int:
    """Compile, in parallel, the programs that calls like `examples` need; return how many.

    `function` is called with each example, but nothing is computed: its graphs are captured,
    their results are zeros, and tensors that they write to stay as they are. What `function` does
    besides (printing, counting) it does. Calls of the same sizes compile nothing afterwards.

    >>> import torch
    >>> double = torch.compile(lambda x: x * 2, backend="tpu", dynamic=True)
    >>> _ = warmup(double, [(torch.ones(5),)], sizes={"x.size(0)": range(2, 100)}, progress=False)
    >>> from tpu_compile import expect_compiles
    >>> with expect_compiles(0):
    ...     [double(torch.ones(n)).sum().item() for n in (3, 50, 99)]
    [6.0, 100.0, 198.0]

    Args:
        function: what `torch.compile(..., backend="tpu")` returned, or a function that calls such.
            One that calls `backward()` has its backward graphs compiled; those of dynamic graphs
            are in any case.
        examples: tuples of arguments.
        sizes: more sizes by the name of the dynamic dimension, as `explain` shows it (or
            `shapes_spec` declares it). The buckets of all combinations are compiled, for each
            graph that the examples reach.
        threads: how many programs to compile at a time; as many as there are cores by default.
        progress: show a progress bar on standard error.

    Raises:
        OptionError: `sizes` names a dimension that the graphs do not have.
        CompilationError: XLA refused a program.
    """
    from tpu_compile.warming import warmup as run

    return run(function, examples, sizes=sizes, threads=threads, progress=progress)


def wait_for_compiles() -> None:
    """Wait until every program that is compiled in the background is there.

    Such are those of `async_compile`, and on a TPU those for tighter buckets. What XLA refused is
    raised by the next call that wants it.
    """
    from tpu_compile.background import BACKGROUND

    BACKGROUND.wait()


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
