"""The padding rules of matrix products: padding of contracted dims is zero in both operands.

In both, since a product with garbage may be NaN even where the other factor is zero.
"""

from __future__ import annotations

from collections.abc import Sequence

from lowering.bucketing.atoms import Dim, Layout
from lowering.bucketing.call import Call, Outcome
from lowering.bucketing.rules import matched
from lowering.registry import PaddingRule


def contracts(
    left: str,
    right: str,
    contracted: tuple[int, int],
    batch: Sequence[tuple[int, int]] = (),
    *,
    added: str | None = None,
) -> PaddingRule:
    """A product of `left` and `right` over the dims `contracted`, plus `added` if there is one.

    `batch` pairs the dims that both share; the others come after them, those of `left` first.
    """

    def rule(call: Call) -> Outcome:
        first, second = call.layout(left), call.layout(right)
        pairs = [contracted, *batch]
        dims = list(second.dims)
        for one, other in pairs:
            dims[other] = first.dims[one]
        call.replace(right, call.sizes.relayout(call.value(right), second.dims, dims))
        second = Layout(tuple(dims), second.zeros if tuple(dims) == second.dims else frozenset())
        call.replace(left, call.hidden(call.value(left), first, [contracted[0]], 0))
        call.replace(right, call.hidden(call.value(right), second, [contracted[1]], 0))
        result = [first.dims[one] for one, _ in batch]
        result += _free(first.dims, [one for one, _ in pairs])
        result += _free(second.dims, [other for _, other in pairs])
        if added is not None:
            layout = call.layout(added)
            call.replace(added, matched(call, call.value(added), layout, result))
            take_factors(call)
        return call.run(), [Layout(tuple(result))]

    return rule


def take_factors(call: Call) -> None:
    """Give the op's rule 0-d values for its factors that are dynamic sizes."""
    for name in ("beta", "alpha"):
        factor = call.size(name, 1)
        if not isinstance(factor, bool | int | float | complex):
            call.replace(name, call.sizes.number(factor, call.result.dtype))


def _free(dims: Sequence[Dim], taken: Sequence[int]) -> list[Dim]:
    return [dim for position, dim in enumerate(dims) if position not in taken]
