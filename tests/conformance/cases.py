"""What there is to run: one case is an entry of torch's databases, a dtype and a kind of check.

Names are OpInfo's (`nn.functional.gelu`, `std_mean.unbiased`) or a module's (`nn.LSTM`).
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.testing._internal import common_methods_invocations as invocations
from torch.testing._internal.common_modules import module_db
from torch.utils import _pytree as pytree

FORWARD_DTYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.float64,
)

KINDS: dict[str, tuple[torch.dtype, ...]] = {
    "forward": FORWARD_DTYPES,
    "backward": (torch.float32,),
    "reference": (torch.float32, torch.int64, torch.bool),
    "inplace": (torch.float32,),
    "out": (torch.float32,),
    "error": (torch.float32,),
    "module": (torch.float32,),
    "dynamic": (torch.float32, torch.int64),
    "dynamic-backward": (torch.float32,),
    "device": FORWARD_DTYPES,
    "device-backward": (torch.float32,),
    "device-inplace": (torch.float32,),
    "device-out": (torch.float32,),
    "device-error": (torch.float32,),
    "device-module": (torch.float32,),
}
"""The checks, with the dtypes that the full run takes for each.

`forward`, `backward`: OpInfo's samples, and their gradients. `reference`: its reference inputs.
`inplace`, `out`: the samples through the op's in-place and `out=` forms. `error`: inputs that eager
refuses. `module`: module_info, outputs and gradients. `dynamic`, `dynamic-backward`: OpInfo's
samples and their gradients once more, with dynamic sizes. `device` and those that begin with it:
the same calls without `torch.compile`, on tensors of the device "tpu", beside the CPU.
"""

WITH_GRADIENTS = frozenset({"backward", "dynamic-backward", "device-backward"})
PADDED = frozenset({"dynamic", "dynamic-backward"})
ON_DEVICE = frozenset(kind for kind in KINDS if kind.startswith("device"))

SMALLEST_DYNAMIC = 3


# Vectors whose signs or phases are anyone's choice; OpInfo has the functions that take it out.
GAUGE_FREE = frozenset({"linalg.eig", "linalg.eigh", "linalg.svd", "svd"})


class Case(NamedTuple):
    """One line of the report."""

    kind: str
    name: str
    dtype: str
    """Name in torch, such as `float32`."""


@dataclass(frozen=True)
class Sample:
    """One call: `function(*args, **kwargs)`, all of whose state is in the arguments."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def copy(self, convert: Callable[[torch.Tensor], torch.Tensor] | None = None) -> Sample:
        """Return the sample with tensors of its own: strides, `requires_grad` and aliases kept."""
        copies: dict[int, torch.Tensor] = {}

        def copy_leaf(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            if id(leaf) not in copies:
                copies[id(leaf)] = _copy(leaf, convert)
            return copies[id(leaf)]

        args, kwargs = pytree.tree_map(copy_leaf, (self.args, self.kwargs))
        return Sample(self.function, args, kwargs)

    def tensors(self) -> list[torch.Tensor]:
        """Return the tensors among the arguments."""
        leaves = pytree.tree_leaves((self.args, self.kwargs))
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _copy(
    tensor: torch.Tensor, convert: Callable[[torch.Tensor], torch.Tensor] | None
) -> torch.Tensor:
    if tensor.layout is not torch.strided:
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)
    value = tensor.detach()
    if convert is not None:
        value = convert(value)
    if value.untyped_storage().nbytes() and not value.is_conj() and not value.is_neg():
        storage = value.untyped_storage().clone()
        value = torch.empty(0, dtype=value.dtype).set_(
            storage, value.storage_offset(), value.shape, value.stride()
        )
    else:
        value = value.clone()
    return value.requires_grad_(tensor.requires_grad)


def form_of(kind: str) -> str:
    """Return the kind of the calls themselves: those on the device are the same ones."""
    return "forward" if kind == "device" else kind.removeprefix("device-")


def _patch_seeding() -> None:
    """Let random ops be traced: OpInfo wraps them in a function that sets torch's seed."""

    def without_seed(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return op(*args, **kwargs)

    invocations.wrapper_set_seed = without_seed


@functools.cache
def operators() -> dict[str, Any]:
    """Return the OpInfo entries by full name."""
    _patch_seeding()
    return {info.full_name: info for info in invocations.op_db}


@functools.cache
def modules() -> dict[str, Any]:
    """Return the module_info entries by name, such as `nn.Linear`."""
    return {info.name: info for info in module_db}


def all_cases() -> Iterator[Case]:
    """Yield every case of the full run."""
    for kind, dtypes in KINDS.items():
        if form_of(kind) == "module":
            yield from (Case(kind, name, "float32") for name in modules())
            continue
        for (name, info), dtype in itertools.product(operators().items(), dtypes):
            if _has(info, kind, dtype):
                yield Case(kind, name, str(dtype).removeprefix("torch."))


def _has(info: Any, kind: str, dtype: torch.dtype) -> bool:
    if kind in WITH_GRADIENTS:
        return bool(info.supports_autograd) and dtype in info.supported_backward_dtypes("cpu")
    form = form_of(kind)
    if form == "inplace":
        return info.get_inplace() is not None and dtype in info.supported_dtypes("cpu")
    if form == "out":
        return bool(info.supports_out) and dtype in info.supported_dtypes("cpu")
    if form == "error":
        return info.error_inputs_func is not None
    return dtype in info.supported_dtypes("cpu")


def samples_of(case: Case, most: int | None = None) -> list[tuple[int, Sample]]:
    """Return up to `most` samples of a case, evenly spread, each with its index among all."""
    form = form_of(case.kind)
    torch.manual_seed(int(hashlib.sha256("/".join(case).encode()).hexdigest()[:8], 16))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = list(_module_samples(case) if form == "module" else _op_samples(case, form))
    indices: Sequence[int] = range(len(samples))
    if case.kind in PADDED:
        # Those with most to get wrong first.
        indices = sorted(
            [index for index in indices if _dynamic_rank(samples[index])[0]],
            key=lambda index: _dynamic_rank(samples[index]),
            reverse=True,
        )
    count = len(indices)
    chosen: Iterable[int] = range(count)
    if most is not None and count > most:
        chosen = sorted({round(i * (count - 1) / max(most - 1, 1)) for i in range(most)})
    return [(indices[place], samples[indices[place]]) for place in chosen]


def dynamic_dims(tensor: torch.Tensor) -> list[int]:
    """Return the dims that `dynamic` makes dynamic."""
    if tensor.layout is not torch.strided:
        return []
    return [dim for dim, size in enumerate(tensor.shape) if size >= SMALLEST_DYNAMIC]


def _dynamic_rank(sample: Sample) -> tuple[int, int, int]:
    """Return how many different dynamic sizes a sample has, how many dims, how many elements."""
    tensors = sample.tensors()
    sizes = [tensor.shape[dim] for tensor in tensors for dim in dynamic_dims(tensor)]
    return len(set(sizes)), len(sizes), sum(tensor.numel() for tensor in tensors)


def _op_samples(case: Case, form: str) -> Iterator[Sample]:
    info = operators()[case.name]
    dtype = getattr(torch, case.dtype)
    if form == "error":
        for error_input in info.error_inputs("cpu"):
            sample = error_input.sample_input
            yield Sample(info.get_op(), (sample.input, *sample.args), sample.kwargs)
        return
    function = info.get_inplace() if form == "inplace" else info.get_op()
    if form == "reference":
        generated = info.reference_inputs("cpu", dtype)
    else:
        generated = info.sample_inputs("cpu", dtype, requires_grad=case.kind in WITH_GRADIENTS)
    for sample in generated:
        if form == "inplace" and sample.broadcasts_input:
            continue
        called = function
        if case.kind in WITH_GRADIENTS or case.name in GAUGE_FREE:
            called = _processed(function, sample.output_process_fn_grad)
        made = Sample(called, (sample.input, *sample.args), sample.kwargs)
        with_output = _with_output(made) if form == "out" else made
        if with_output is not None:
            yield with_output


def _processed(function: Callable[..., Any], process: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return the function whose gradients are well defined: OpInfo removes gauge freedom so."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return process(function(*args, **kwargs))

    return call


def _with_output(sample: Sample) -> Sample | None:
    """Return the call with `out=` buffers of the right shapes and dtypes; None if it has none."""
    own = sample.copy()
    result = own.function(*own.args, **own.kwargs)
    buffers: Any = None
    if isinstance(result, torch.Tensor):
        buffers = torch.zeros_like(result)
    elif isinstance(result, tuple) and all(isinstance(item, torch.Tensor) for item in result):
        buffers = tuple(torch.zeros_like(item) for item in result)
    if buffers is None:
        return None
    return Sample(sample.function, sample.args, {**sample.kwargs, "out": buffers})


def _module_samples(case: Case) -> Iterator[Sample]:
    info = modules()[case.name]
    dtype = getattr(torch, case.dtype)
    for training in (True, False):
        generated = info.module_inputs_func(
            info, device="cpu", dtype=dtype, requires_grad=True, training=training
        )
        for inputs in generated:
            if inputs.forward_input is None:
                continue
            constructor, forward = inputs.constructor_input, inputs.forward_input
            module = info.module_cls(*constructor.args, **constructor.kwargs)
            module.to(dtype).train(training)
            state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
            yield Sample(_module_call(module), (state, *forward.args), forward.kwargs)


def _module_call(module: torch.nn.Module) -> Callable[..., Any]:
    def call(state: dict[str, torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        return torch.func.functional_call(module, state, args, kwargs)

    return call
