"""Numbers that change from call to call become inputs of a program instead of part of it.

A learning rate, a bias correction: each new value would compile again. Here is which floats of
which ops are lifted, and how the op is computed with 0-d tensors in their places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

aten = torch.ops.aten

Call = Callable[..., Any]


def _plus(factor: int) -> Call:
    def call(self: Any, other: Any, alpha: Any = 1) -> Any:
        if isinstance(alpha, torch.Tensor):
            other = (
                other * alpha.to(other.dtype) if isinstance(other, torch.Tensor) else other * alpha
            )
            alpha = 1
        return torch.add(self, other, alpha=factor * alpha)

    return call


def _addcmul(self: Any, first: Any, second: Any, value: Any = 1) -> Any:
    return self + _scaled(first, value) * second


def _addcdiv(self: Any, first: Any, second: Any, value: Any = 1) -> Any:
    return self + _scaled(first, value) / second


def _scaled(tensor: torch.Tensor, value: Any) -> torch.Tensor:
    return tensor * (value.to(tensor.dtype) if isinstance(value, torch.Tensor) else value)


def _filled(self: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return value.to(self.dtype).expand(self.shape).clone()


def _lerp(self: torch.Tensor, end: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.lerp(self, end, weight.to(self.dtype))


# By name of the functional op: how one tensor is computed, with 0-d tensors for numbers.
_FORMS: dict[str, Call] = {
    "add": _plus(1),
    "sub": _plus(-1),
    "mul": torch.mul,
    "div": torch.div,
    "addcmul": _addcmul,
    "addcdiv": _addcdiv,
    "fill": _filled,
    "lerp": _lerp,
}
_OVERLOADS = frozenset({"Tensor", "Scalar", "default", "List", "ScalarList"})


def _form(op: OpOverload) -> tuple[Call, bool, bool] | None:
    """Return (form, whether the op takes lists, whether it writes to its first argument)."""
    namespace, _, name = op._schema.name.partition("::")
    if namespace != "aten" or op._overloadname not in _OVERLOADS:
        return None
    lists = name.startswith("_foreach_")
    name = name.removeprefix("_foreach_")
    writes = name.endswith("_")
    form = _FORMS.get(name.removesuffix("_"))
    return None if form is None else (form, lists, writes)


_forms: dict[OpOverload, tuple[Call, bool, bool] | None] = {}


def lifts(op: OpOverload) -> bool:
    """Whether the floats among the arguments of `op` become inputs."""
    if op not in _forms:
        _forms[op] = _form(op)
    return _forms[op] is not None


def lifted_call(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return what `op` gives when some of its numbers are 0-d tensors; it writes if `op` does."""
    found = _forms[op]
    assert found is not None
    form, lists, writes = found
    if not lists:
        return _one(form, writes, args, kwargs)
    results = []
    for index in range(len(args[0])):
        results.append(
            _one(
                form,
                writes,
                [_item(argument, index) for argument in args],
                {name: _item(argument, index) for name, argument in kwargs.items()},
            )
        )
    return [] if writes else results


def _item(argument: Any, index: int) -> Any:
    return argument[index] if isinstance(argument, (list, tuple)) else argument


def _one(form: Call, writes: bool, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    result = form(*args, **kwargs)
    return args[0].copy_(result) if writes else result
