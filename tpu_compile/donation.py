"""Which inputs that a graph writes to give their device arrays to the new values, and which not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import fx

from lowering.signature import Signature, why_not_in_place
from tpu_compile.interface import is_on_device


@dataclass(frozen=True)
class Donation:
    """What becomes of the array of one input that the graph writes to."""

    input: str
    """The input's name in the graph, with its shape and dtype."""
    refused: str | None
    """Why it is not donated; None if it is."""


def why_none(mutated: Sequence[fx.Node], *, wanted: bool, aliases_host_memory: bool) -> str | None:
    """Return why a program donates nothing at all; None if it may.

    Args:
        mutated: the placeholders that the graph writes to.
        wanted: the option `donate`.
        aliases_host_memory: whether arrays of CPU tensors are the tensors' own memory.
    """
    if not wanted:
        return "the option `donate` is False"
    if aliases_host_memory and not all(map(is_on_device, mutated)):
        return "the program reads CPU tensors where they lie, and new values are copied to them"
    return None


def donations(
    signature: Signature, placeholders: Sequence[fx.Node], none: str | None
) -> tuple[Donation, ...]:
    """Return what becomes of each mutated input, where `none` says why none may be donated."""
    arguments = {argument.placeholder: argument for argument in signature.arguments}
    found = []
    for mutation in signature.mutations:
        node, argument = placeholders[mutation.placeholder], arguments.get(mutation.placeholder)
        value = node.meta["val"]
        shape = ", ".join(map(str, value.shape))
        found.append(
            Donation(
                f"{node.name}: {str(value.dtype).removeprefix('torch.')}[{shape}]",
                none or why_not_in_place(mutation, argument, signature.results),
            )
        )
    return tuple(found)
