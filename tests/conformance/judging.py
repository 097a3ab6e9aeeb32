"""Runs one sample in eager PyTorch and through a backend, and says whether they agree."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from tests.conformance.cases import Case, Sample

STRICT = {"fallback": "error"}

# Results that eager leaves undefined: shapes and dtypes are all there is to compare.
UNINITIALIZED = frozenset(
    {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}
)

_WIDER = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}

# Any of several equal elements may be the chosen one: eager does not say which.
TIES = frozenset({"argsort", "kthvalue", "median", "mode", "msort", "nanmedian", "sort", "topk"})

# How much farther from the float64 result than eager's own result ours may be.
ARBITRATION_FACTOR = 3.0


@dataclass(frozen=True)
class Outcome:
    """`status`: `passed`, `failed`, or `outside` (aot_eager cannot do it either)."""

    status: str
    detail: str = ""
    exact_reason: str | None = None
    """Why a graph with dynamic sizes ran at exact shapes; None if none did."""
    is_padded: bool = False
    """Whether a graph with dynamic sizes ran padded."""
    fallbacks: tuple[str, ...] = ()
    """The ops that the device ran on the CPU, for want of a program."""


class Observed(NamedTuple):
    """All that a call leaves behind."""

    outputs: list[Any]
    gradients: list[torch.Tensor | None]
    arguments: list[torch.Tensor]


def judge(case: Case, sample: Sample) -> Outcome:
    """Return how our backend does on `sample`, with aot_eager as the judge of what can be asked."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if case.kind == "error":
            return _judge_error(sample)
        try:
            expected = observe(sample, sample.function)
        except Exception as error:
            return Outcome("outside", f"eager itself: {first_line(error)}")
        fault = fault_of(case, sample, expected, "tpu")
        if fault is None:
            return Outcome("passed")
        ceiling = fault_of(case, sample, expected, "aot_eager")
        if ceiling is not None:
            return Outcome("outside", f"aot_eager: {ceiling} | ours: {fault}")
        return Outcome("failed", fault)


def _judge_error(sample: Sample) -> Outcome:
    """Ours must refuse what aot_eager refuses."""
    raised = {}
    for backend, options in (("tpu", STRICT), ("aot_eager", None)):
        try:
            call_of(sample.copy(), _compiled(sample.function, backend, options))
            raised[backend] = False
        except Exception:
            raised[backend] = True
    if raised["tpu"]:
        return Outcome("passed")
    status = "failed" if raised["aot_eager"] else "outside"
    return Outcome(status, "no error was raised")


def fault_of(case: Case, sample: Sample, expected: Observed, backend: str) -> str | None:
    """Return how `backend` differs from what eager gave; None if it does not."""
    options = STRICT if backend == "tpu" else None
    try:
        actual = observe(sample, _compiled(sample.function, backend, options))
    except Exception as error:
        return first_line(error)
    fault = difference(case, sample, actual, expected)
    if fault is None or not is_random(sample, expected):
        return fault
    return difference(case, sample, actual, expected, values=False)


def _compiled(function: Callable[..., Any], backend: str, options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, backend=backend, fullgraph=True, options=options)


def call_of(sample: Sample, function: Callable[..., Any]) -> Any:
    torch.manual_seed(0)
    return function(*sample.args, **sample.kwargs)


def observe(
    sample: Sample,
    function: Callable[..., Any],
    *,
    copy: Callable[[Sample], Sample] = Sample.copy,
    prepare: Callable[[Sample], None] | None = None,
) -> Observed:
    """Call `function` on a copy of the sample and return all that the call leaves behind.

    `copy` makes it, `prepare` gets it first.
    """
    own = copy(sample)
    if prepare is not None:
        prepare(own)
    # In-place forms write to their input, which must not be a leaf that requires a gradient.
    outputs = pytree.tree_leaves(call_of(own, function))
    inputs = [tensor for tensor in own.tensors() if tensor.requires_grad]
    gradients: list[torch.Tensor | None] = []
    if inputs:
        differentiable = [
            output
            for output in outputs
            if isinstance(output, torch.Tensor) and output.requires_grad
        ]
        if differentiable:
            generator = torch.Generator().manual_seed(1)
            cotangents = [
                torch.randn(output.shape, dtype=output.dtype, generator=generator).to(output.device)
                for output in differentiable
            ]
            gradients = list(
                torch.autograd.grad(differentiable, inputs, cotangents, allow_unused=True)
            )
    detached = [o.detach() if isinstance(o, torch.Tensor) else o for o in outputs]
    return Observed(detached, gradients, [tensor.detach() for tensor in own.tensors()])


def is_random(sample: Sample, expected: Observed) -> bool:
    """Whether eager, run again further along the random stream, gives other values."""
    own = sample.copy()
    torch.manual_seed(1234)
    with torch.no_grad():
        again = pytree.tree_leaves(own.function(*own.args, **own.kwargs))
    return any(
        isinstance(first, torch.Tensor)
        and not torch.equal(torch.nan_to_num(first), torch.nan_to_num(second.detach()))
        for first, second in zip(expected.outputs, again, strict=True)
    )


def difference(
    case: Case, sample: Sample, actual: Observed, expected: Observed, *, values: bool = True
) -> str | None:
    """Return where two calls of the sample differ, `values` aside if told so; None if nowhere."""
    values = values and case.name not in UNINITIALIZED
    groups = (
        ("output", actual.outputs, expected.outputs),
        ("gradient", actual.gradients, expected.gradients),
        ("input afterwards", actual.arguments, expected.arguments),
    )
    for what, ours, eager in groups:
        if len(ours) != len(eager):
            return f"{len(ours)} {what}s, eager gives {len(eager)}"
        for index, (mine, theirs) in enumerate(zip(ours, eager, strict=True)):
            fault = _value_difference(mine, theirs, values=values)
            if fault is None or _is_nearer(sample, what, index, mine, theirs):
                continue
            if what == "output" and _is_other_tie(case, sample, mine, theirs):
                # Gradients follow the choice.
                return None
            return f"{what} {index}: {fault}"
    return None


def _is_other_tie(case: Case, sample: Sample, actual: Any, expected: Any) -> bool:
    """Whether two index tensors choose equal elements of the first argument."""
    if case.name.partition(".")[0] not in TIES or actual.dtype is not torch.int64:
        return False
    data = sample.args[0].detach()
    for dim in range(data.ndim):
        chosen = [
            torch.nan_to_num(data.gather(dim, i if i.ndim == data.ndim else i.unsqueeze(dim)))
            for i in (actual, expected)
        ]
        if torch.equal(*chosen):
            return True
    return False


def _value_difference(actual: Any, expected: Any, *, values: bool) -> str | None:
    if not isinstance(expected, torch.Tensor) or not isinstance(actual, torch.Tensor):
        if isinstance(expected, torch.Tensor) != isinstance(actual, torch.Tensor):
            return f"{type(actual).__name__}, eager gives {type(expected).__name__}"
        same = actual == expected or (actual != actual and expected != expected)
        return None if same or not values else f"{actual}, eager gives {expected}"
    if actual.dtype is not expected.dtype:
        return f"dtype {actual.dtype}, eager gives {expected.dtype}"
    if actual.shape != expected.shape:
        return f"shape {tuple(actual.shape)}, eager gives {tuple(expected.shape)}"
    if not values:
        return None
    try:
        torch.testing.assert_close(
            actual, expected, equal_nan=True, check_stride=False, check_layout=False
        )
    except AssertionError as error:
        return " ".join(str(error).split())[:200]
    return None


def _is_nearer(sample: Sample, what: str, index: int, actual: Any, expected: Any) -> bool:
    """Whether float64 says that ours is about as good as eager's.

    Rounding differs between any two orders of summation; a wrong rule is farther away than that.
    """
    comparable = (
        isinstance(actual, torch.Tensor)
        and isinstance(expected, torch.Tensor)
        and expected.dtype in _WIDER
        and actual.dtype is expected.dtype
        and actual.shape == expected.shape
    )
    if not comparable:
        return False
    try:
        wide = observe(_widened(sample), sample.function)
    except Exception:
        # No float64 form of this call: the verdict by tolerance stands.
        return False
    group = {"output": wide.outputs, "gradient": wide.gradients}.get(what, wide.arguments)
    truth = group[index] if index < len(group) else None
    if not isinstance(truth, torch.Tensor) or truth.shape != expected.shape:
        return False
    kind = torch.complex128 if expected.is_complex() else torch.float64
    if truth.dtype is not kind:
        return False
    ours, eager = actual.to(kind), expected.to(kind)
    if not torch.equal(ours.isfinite(), eager.isfinite()):
        return False
    finite = ours.isfinite() & truth.isfinite()
    our_error = (ours - truth).abs()[finite]
    eager_error = (eager - truth).abs()[finite]
    if our_error.numel() == 0:
        return False
    rounding = torch.finfo(expected.dtype).eps * truth.abs()[finite].max()
    return bool(our_error.max() <= ARBITRATION_FACTOR * torch.maximum(eager_error.max(), rounding))


def _widened(sample: Sample) -> Sample:
    def widen(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(_WIDER.get(tensor.dtype, tensor.dtype))

    wide = sample.copy(widen)
    kwargs = {
        name: _WIDER.get(value, value) if isinstance(value, torch.dtype) else value
        for name, value in wide.kwargs.items()
    }
    args = tuple(_WIDER.get(a, a) if isinstance(a, torch.dtype) else a for a in wide.args)
    return Sample(wide.function, args, kwargs)


def first_line(error: BaseException) -> str:
    """Return the type of an error and the lines of it that matter, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # Dynamo's wrapper has the error itself in its second line.
    return f"{type(error).__name__}: {' '.join(lines[:2])}"[:300]
