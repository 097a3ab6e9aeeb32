"""Decompositions of the `_foreach_` ops: a list of one op a tensor, generated from the schemas.

Every functional overload is covered, those that a later torch adds as well. The op of one tensor
is the one of the same name, with the exceptions below (what each does in eager is in
`ForeachOpsKernels.cpp` of ATen).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._C import FunctionSchema
from torch._ops import OpOverload

from lowering.decompositions import decomposition

aten = torch.ops.aten


def _addcdiv(
    tensor: torch.Tensor, numerator: torch.Tensor, denominator: torch.Tensor, value: Any = 1
) -> torch.Tensor:
    if isinstance(value, torch.Tensor):  # the op of one tensor takes numbers only
        return tensor + value * numerator / denominator
    return aten.addcdiv.default(tensor, numerator, denominator, value=value)


def _addcmul(
    tensor: torch.Tensor, left: torch.Tensor, right: torch.Tensor, value: Any = 1
) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return tensor + value * left * right
    return aten.addcmul.default(tensor, left, right, value=value)


def _copy(tensor: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    return aten.copy.default(tensor, source)


def _powsum(tensor: torch.Tensor, ord: Any = 2, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Sum of |x|^ord: a norm before its root, accumulated in `dtype`."""
    wide = tensor if dtype is None else tensor.to(dtype)
    return wide.abs().pow(ord).sum()


def _norm(tensor: torch.Tensor, ord: Any = 2, dtype: torch.dtype | None = None) -> torch.Tensor:
    return aten.linalg_vector_norm.default(tensor, ord, None, False, dtype=dtype)


# Where the op of one tensor has another name, or takes what the list's op takes only in part.
BY_NAME: dict[str, Callable[..., torch.Tensor]] = {
    "addcdiv": _addcdiv,
    "addcmul": _addcmul,
    "copy": _copy,
    "norm": _norm,
    "powsum": _powsum,
    "zero": torch.zeros_like,
    # aten.maximum and minimum take no numbers.
    "maximum": aten.clamp_min,
    "minimum": aten.clamp_max,
}


def foreach_overloads() -> Iterator[OpOverload]:
    """Give each functional `_foreach_` overload of this torch."""
    for qualified in torch._C._dispatch_get_all_op_names():
        name, _, overload = qualified.partition(".")
        if not re.fullmatch(r"aten::_foreach_\w*[a-z0-9]", name) or overload.endswith("out"):
            continue
        yield getattr(getattr(aten, name.removeprefix("aten::")), overload or "default")


def _decomposition(op: OpOverload) -> Callable[..., list[torch.Tensor]]:
    schema = op._schema
    name = schema.name.removeprefix("aten::_foreach_")
    single = BY_NAME.get(name) or getattr(aten, name)
    listed = _listed_arguments(schema)

    def decomposed(*args: Any, **kwargs: Any) -> list[torch.Tensor]:
        named = _named(schema, args, kwargs)
        count = next(len(value) for key, value in named if key in listed)
        return [
            single(
                *(
                    value[i] if argument.name in listed else value
                    for argument, value in zip(schema.arguments, args, strict=False)
                ),
                **{key: value[i] if key in listed else value for key, value in kwargs.items()},
            )
            for i in range(count)
        ]

    return decomposed


def _listed_arguments(schema: FunctionSchema) -> frozenset[str]:
    """Return the arguments that hold one entry a tensor: lists, and a tensor of scalars."""
    listed = {
        argument.name
        for argument in schema.arguments
        if isinstance(argument.type, torch.ListType) or argument.name == "scalars"
    }
    return frozenset(listed)


def _named(
    schema: FunctionSchema, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[tuple[str, Any]]:
    names = [argument.name for argument in schema.arguments]
    return [*zip(names, args, strict=False), *kwargs.items()]


for _op in foreach_overloads():
    decomposition(_op)(_decomposition(_op))
