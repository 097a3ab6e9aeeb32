"""What the schemas of ATen say: what an op writes to, and which overload does the same without."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from lowering.decompositions import decomposition_table
from lowering.registry import REGISTRY

aten = torch.ops.aten

# Known to lowering, but what they do is memory or another device's.
_NOT_COMPUTED = frozenset(
    {
        aten._to_copy.default,
        aten._unsafe_view.default,
        aten.lift.default,
        aten.lift_fresh.default,
        aten.resize.default,
        aten.resize_as.default,
        aten.set.default,
        aten.set.source_Tensor,
        aten.set.source_Storage,
        aten.set.source_Storage_storage_offset,
    }
)


@functools.cache
def is_view(op: OpOverload) -> bool:
    """Whether a result of `op` is a view of an argument that it does not write to."""
    return any(a.alias_info and not a.alias_info.is_write for a in op._schema.arguments)


def out_names(op: OpOverload) -> tuple[str, ...]:
    """Return the names of the arguments that only receive results (`out=` variants)."""
    return tuple([a.name for a in op._schema.arguments if a.is_out])


@functools.cache
def functional_form(op: OpOverload) -> OpOverload | None:
    """Return the overload with the arguments of `op` that writes to none; None without one.

    That of an `out=` variant has all but those, and writes to what that writes to besides them.
    """
    outs = set(out_names(op))
    wanted = [(a.name, _kind(a)) for a in op._schema.arguments if a.name not in outs]
    kept = _written_names(op) - outs if outs else set()
    namespace, _, name = op._schema.name.partition("::")
    if not outs and name.endswith("_"):
        name = name.removesuffix("_")
    packet = getattr(getattr(torch.ops, namespace), name, None)
    for overload in packet.overloads() if packet is not None else ():
        candidate = getattr(packet, overload)
        given = [(a.name, _kind(a)) for a in candidate._schema.arguments]
        if given == wanted and _written_names(candidate) <= kept:
            return candidate
    return None


def _written_names(op: OpOverload) -> set[str]:
    return {a.name for a in op._schema.arguments if a.alias_info and a.alias_info.is_write}


def _kind(argument: Any) -> str:
    return str(argument.type)


def is_computed(op: OpOverload) -> bool:
    """Whether an op that torch would make of others is better one program of ours.

    Views are not, nor what changes the sizes of a tensor in place (`squeeze_`).
    """
    arguments: Sequence[Any] = op._schema.arguments
    takes_tensor = any("Tensor" in str(argument.type) for argument in arguments)
    places = any(argument.name == "device" for argument in arguments)
    if is_view(op) or places or not takes_tensor or op in _NOT_COMPUTED:
        return False
    form = functional_form(op) if op._schema.is_mutable else op
    return (
        form is not None
        and not is_view(form)
        and form not in _NOT_COMPUTED
        and (form in REGISTRY or form in decomposition_table())
    )
