"""The kernel of every op that has no kernel of its own: key, plan, record.

Arguments are described once per call; the description finds the plan. The rest is recording.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from tpu_compile.device import fallback, generators
from tpu_compile.device.client import device_client
from tpu_compile.device.lifting import lifts
from tpu_compile.device.modes import after_recording
from tpu_compile.device.plans import NotCompilableError, Number, Plan, Spec, Tensor, make_plan
from tpu_compile.device.trace import LOCK, current_trace
from tpu_compile.device.transfer import value_from_host
from tpu_compile.device.values import Value, View, is_on_device, new_tensor, store_of, view_of
from tpu_compile.errors import DeviceError

# Ops whose index arguments may be CPU tensors of any size.
_TAKES_HOST_INDICES = frozenset({"aten::index", "aten::index_put", "aten::index_put_"})

_plans: dict[Any, Plan | NotCompilableError] = {}


class _Call:
    """One call, taken apart: what it is called with, and the key of its plan."""

    __slots__ = ("generator", "key", "numbers", "op", "specs", "tensors")

    def __init__(self, op: OpOverload) -> None:
        self.op = op
        self.key: list[Any] = [op]
        self.tensors: list[torch.Tensor] = []
        self.specs: list[Spec] = []
        self.numbers: list[float] = []
        self.generator: torch.Generator | None = None

    def describe(self, item: Any, lift: bool) -> Any:
        """Add `item` to the key; return what stands for it in the plan."""
        kind = type(item)
        if kind is int or kind is bool or item is None or kind is str:
            self.key.append((kind, item))
            return item
        if isinstance(item, torch.Tensor):
            return self._describe_tensor(item)
        if kind is list or kind is tuple:
            self.key.append(len(item))
            return [self.describe(element, lift) for element in item]
        if kind is float:
            if lift:
                self.key.append(Number)
                self.numbers.append(item)
                return Number(len(self.numbers) - 1)
            self.key.append(repr(item))
            return item
        if isinstance(item, torch.Generator):
            self.generator = item
            return None
        self.key.append(repr(item) if kind is complex else item)
        return item

    def _describe_tensor(self, tensor: torch.Tensor) -> Tensor:
        spec = Spec(tensor.dtype, tuple(tensor.shape), tensor.stride())
        self.key.append(spec)
        self.tensors.append(tensor)
        self.specs.append(spec)
        return Tensor(len(self.tensors) - 1)


def run(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Record a call of `op` and return its results as device tensors; the kernel of most ops."""
    call = _Call(op)
    lift = lifts(op) and _may_lift(args)
    described = [call.describe(item, lift) for item in args]
    named = {}
    for name, item in kwargs.items():
        call.key.append(name)
        named[name] = call.describe(item, lift)
    with LOCK:
        key = tuple(call.key)
        plan = _plans.get(key)
        if plan is None:
            plan = _plans[key] = _plan(call, described, named)
        if isinstance(plan, NotCompilableError):
            return fallback.run(op, args, kwargs, str(plan), counted=not plan.reads_data)
        return _record(plan, call)


def _may_lift(args: Sequence[Any]) -> bool:
    """Whether the tensors of a call share one floating dtype: then its numbers have it too."""
    dtypes = set()
    for item in args:
        if isinstance(item, torch.Tensor):
            dtypes.add(item.dtype)
        elif type(item) is list or type(item) is tuple:
            dtypes.update([t.dtype for t in item if isinstance(t, torch.Tensor)])
    return len(dtypes) == 1 and next(iter(dtypes)).is_floating_point


def _plan(call: _Call, args: Sequence[Any], kwargs: dict[str, Any]) -> Plan | NotCompilableError:
    dtypes = [call.specs[0].dtype] * len(call.numbers)
    try:
        return make_plan(call.op, args, kwargs, call.specs, dtypes, device_client().platform)
    except NotCompilableError as error:
        return error


def _record(plan: Plan, call: _Call) -> Any:
    reads: list[tuple[Value, View | None]] = []
    stores: list[Any] = []
    for tensor in call.tensors:
        if is_on_device(tensor):
            store = store_of(tensor)
            value = store.value
            stores.append(store)
            reads.append((value, view_of(tensor, value)))
        else:
            stores.append(None)
            reads.append((_from_host(call.op, tensor), None))
    keys = [generators.next_key(call.generator) for _ in plan.random_ops]
    trace = current_trace()
    made = trace.record(plan, reads, call.numbers, keys)
    count = len(plan.results)
    for index, value in zip(plan.writes, made[count:], strict=True):
        size = plan.resizes.get(index)
        if size is not None:
            fallback.resize(call.tensors[index], size)
        stores[index].value = value
    fresh = [
        new_tensor(value, result.size, result.stride)
        for result, value in zip(plan.results, made, strict=False)
    ]
    after_recording(trace)
    returned = [
        call.tensors[item.index]
        if isinstance(item, Tensor)
        else None
        if item is None
        else fresh[item]
        for item in plan.returns
    ]
    if plan.gives_sequence:
        return returned
    return returned[0] if returned else None


def _from_host(op: OpOverload, tensor: torch.Tensor) -> Value:
    """Return a CPU tensor as a value, where torch lets an op mix devices.

    Raises:
        DeviceError: it does not.
    """
    if tensor.dim() and op._schema.name not in _TAKES_HOST_INDICES:
        raise DeviceError(
            f"{op} got tensors on several devices: tpu:0 and {tensor.device}",
            why="only 0-d CPU tensors, and CPU tensors that index, may be mixed with others",
            ways_out=('move it with .to("tpu")',),
        )
    return value_from_host(tensor)
