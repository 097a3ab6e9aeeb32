"""The kernel of every op that has no kernel of its own: describe the call, find its step, run it.

This is the hot path: a call is described by objects that are compared by identity, and nothing else
is looked up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from tpu_compile.device import fallback, generators
from tpu_compile.device.client import device_client
from tpu_compile.device.lifting import lifts
from tpu_compile.device.modes import execute
from tpu_compile.device.plans import NotCompilableError, Number, Spec, Tensor, make_plan
from tpu_compile.device.steps import Step
from tpu_compile.device.trace import LOCK
from tpu_compile.device.transfer import value_from_host
from tpu_compile.device.values import Kind, Store, Value, View, is_lazy, new_tensor, view_of
from tpu_compile.device.writes import needs_care, run_with_care
from tpu_compile.errors import DeviceError

# Ops whose index arguments may be CPU tensors of any size.
_TAKES_HOST_INDICES = frozenset({"aten::index", "aten::index_put", "aten::index_put_"})

# Stands for calls whose numbers are constants of their programs after all.
_NOT_LIFTED = NotCompilableError("its numbers are constants")

_steps: dict[Any, Step | NotCompilableError] = {}


class _Call:
    """One call, taken apart: the key of its step, and what changes from call to call."""

    __slots__ = ("generator", "key", "lifts", "numbers", "op", "stores", "tensors", "values")

    def __init__(self, op: OpOverload, lifts: bool) -> None:
        self.op = op
        self.lifts = lifts
        self.key: list[Any] = [op]
        self.tensors: list[torch.Tensor] = []
        self.stores: list[Store | None] = []
        self.values: list[Value] = []
        self.numbers: list[float] = []
        self.generator: torch.Generator | None = None

    def describe(self, items: Iterable[Any]) -> None:
        """Add arguments to the key."""
        key = self.key
        for item in items:
            kind = type(item)
            if kind is torch.Tensor or kind is torch.nn.Parameter:
                self._describe_tensor(item)
            elif kind is list or kind is tuple:
                key.append(len(item))
                self.describe(item)
            elif kind is float:
                if self.lifts:
                    key.append(Number)
                    self.numbers.append(item)
                else:
                    # As text: nan is not equal to itself, and 0.0 is equal to -0.0.
                    key.append(repr(item))
            elif kind is complex:
                key.append(repr(item))
            elif isinstance(item, torch.Tensor):
                self._describe_tensor(item)
            elif isinstance(item, torch.Generator):
                key.append(None)
                self.generator = item
            else:
                # With the type, as True is equal to 1.
                key.append(kind)
                key.append(item)

    def _describe_tensor(self, tensor: torch.Tensor) -> None:
        store = getattr(tensor.untyped_storage(), "store", None)
        value = self._from_host(tensor) if store is None else store.value
        kind = value.kind
        self.key.append(kind)
        if (
            tensor.shape != kind.shape
            or not tensor.is_contiguous()
            or tensor.dtype is not kind.dtype
            or tensor.storage_offset()
            or is_lazy(tensor)
        ):
            self.key.append(view_of(tensor, kind))
        self.tensors.append(tensor)
        self.stores.append(store)
        self.values.append(value)

    def _from_host(self, tensor: torch.Tensor) -> Value:
        """Return a CPU tensor as a value, where torch lets an op mix devices.

        Raises:
            DeviceError: it does not.
        """
        if tensor.dim() and self.op._schema.name not in _TAKES_HOST_INDICES:
            raise DeviceError(
                f"{self.op} got tensors on several devices: tpu:0 and {tensor.device}",
                why="only 0-d CPU tensors, and CPU tensors that index, may be mixed with others",
                ways_out=('move it with .to("tpu")',),
            )
        return value_from_host(tensor)


def run(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Run a call of `op` and return its results as device tensors; the kernel of most ops."""
    call = _described(op, args, kwargs, lifts(op))
    with LOCK:
        key = tuple(call.key)
        step = _steps.get(key)
        if step is None:
            step = _steps[key] = _step(call, args, kwargs)
        if step is _NOT_LIFTED:
            call = _described(op, args, kwargs, False)
            key = tuple(call.key)
            step = _steps.get(key)
            if step is None:
                step = _steps[key] = _step(call, args, kwargs)
        if type(step) is not Step:
            assert isinstance(step, NotCompilableError)
            return fallback.run(op, args, kwargs, str(step), counted=not step.reads_data)
        plan = step.plan
        if plan.writes and needs_care(plan, call.stores):
            return run_with_care(run, plan, call.tensors, args, kwargs)
        keys = [generators.next_key(call.generator) for _ in plan.random_ops]
        made = execute(step, call.values, call.numbers, keys)
        if plan.writes:
            for index, value in zip(plan.writes, made[len(plan.results) :], strict=True):
                call.stores[index].value = value  # type: ignore[union-attr]
    if plan.returns_new:
        result = plan.results[0]
        return new_tensor(made[0], result.size, result.stride)
    fresh = [new_tensor(v, r.size, r.stride) for r, v in zip(plan.results, made, strict=False)]
    returned = [_returned(item, call.tensors, fresh) for item in plan.returns]
    if plan.gives_sequence:
        return returned
    return returned[0] if returned else None


def _described(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], lifts: bool) -> _Call:
    call = _Call(op, lifts)
    call.describe(args)
    if kwargs:
        call.key.extend(kwargs)
        call.describe(kwargs.values())
    return call


def _returned(item: Any, given: Sequence[torch.Tensor], fresh: Sequence[torch.Tensor]) -> Any:
    if item is None:
        return None
    return given[item.index] if type(item) is Tensor else fresh[item]


# --- new calls -----------------------------------------------------------------------------------


def _step(call: _Call, args: Sequence[Any], kwargs: dict[str, Any]) -> Step | NotCompilableError:
    specs = [Spec(t.dtype, tuple(t.shape), tuple(t.stride())) for t in call.tensors]
    if call.numbers:
        # Tensors of one floating dtype: then the numbers have it too.
        dtypes_given = {spec.dtype for spec in specs}
        if len(dtypes_given) != 1 or not specs[0].dtype.is_floating_point:
            return _NOT_LIFTED
    template = _Template(call.lifts)
    described = [template.of(item) for item in args]
    named = {name: template.of(item) for name, item in kwargs.items()}
    dtypes = [specs[0].dtype for _ in call.numbers]
    try:
        plan = make_plan(call.op, described, named, specs, dtypes, device_client().platform)
    except NotCompilableError as error:
        return error
    kinds: list[Kind] = [value.kind for value in call.values]
    views: list[View | None] = [
        None if store is None else view_of(tensor, kind)
        for tensor, store, kind in zip(call.tensors, call.stores, kinds, strict=True)
    ]
    return Step(plan, kinds, views)


class _Template:
    """The arguments of a call with places for its tensors and run-time numbers."""

    def __init__(self, lift: bool) -> None:
        self._lift = lift
        self._tensors = 0
        self._numbers = 0

    def of(self, item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            self._tensors += 1
            return Tensor(self._tensors - 1)
        if type(item) is list or type(item) is tuple:
            return [self.of(element) for element in item]
        if type(item) is float and self._lift:
            self._numbers += 1
            return Number(self._numbers - 1)
        return None if isinstance(item, torch.Generator) else item
