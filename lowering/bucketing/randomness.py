"""The padding rules of random numbers: an element is drawn by its logical index.

So neither the bucket nor the padding changes a number: a padded program draws what the program of
the exact shape draws from the same key.
"""

from __future__ import annotations

import torch

from lowering.bucketing.atoms import Dim, Layout, is_padded, is_prefix
from lowering.bucketing.call import Call, Outcome
from lowering.bucketing.rules import aligned, results
from lowering.mlir import ir, stablehlo
from lowering.registry import PaddingRule


def _drawn(call: Call, dims: tuple[Dim, ...]) -> ir.Value:
    """Return what the op's rule draws for elements that lie in `dims`."""
    index = call.sizes.linear_index(dims, torch.uint32)
    with call.ctx.with_element_index(index):
        return call.run()


def draws(call: Call) -> Outcome:
    """Numbers of a given shape, or one for each element of the operands, broadcast."""
    call.names_shape("size")
    names = call.tensors()
    layout = Layout(aligned(call, names).dims) if names else call.plain()
    return results(call, _drawn(call, layout.dims), layout)


def draws_integers(call: Call) -> Outcome:
    """Integers between bounds, which may be dynamic sizes."""
    for name in ("low", "high", "to"):
        bound = call.size(name)
        if bound is not None and not isinstance(bound, int):
            call.replace(name, call.sizes.number(bound, torch.int64))
    return draws(call)


def _by_rejection(fill_last: int) -> PaddingRule:
    """Numbers drawn until one is accepted: padding gets parameters that end soon."""

    def rule(call: Call) -> Outcome:
        names = call.tensors()
        layout = Layout(aligned(call, names).dims)
        rank = len(layout.dims)
        for name in names:
            # Where it has size 1 it is broadcast and has no padding.
            own = call.layout(name).dims
            lying = tuple([d and layout.dims[rank - len(own) + i] for i, d in enumerate(own)])
            dims = range(len(own))
            value = call.hidden(call.value(name), Layout(lying), dims[:-1], 1)
            call.replace(name, call.hidden(value, Layout(lying), dims[-1:], fill_last))
        return results(call, _drawn(call, layout.dims), layout)

    return rule


draws_by_rejection = _by_rejection(1)

# A share of parameter 0 is 0.
draws_dirichlet = _by_rejection(0)


def draws_categories(call: Call) -> Outcome:
    """Categories by weight along the last dim, where padding weighs nothing."""
    layout = call.layout("self")
    categories = layout.dims[-1]
    if not is_prefix(categories):
        raise call.decline("its categories are a view of several dynamic dims")
    call.names_shape("num_samples")
    samples = call.plain().dims[-1]
    if is_padded(samples):
        raise call.decline("it draws a dynamic number of categories")
    call.hide("self", [len(layout.dims) - 1], 0)
    drawn = Layout((*layout.dims[:-1], samples))
    by_sample = bool(call.value("replacement", False)) and call.value("num_samples") > 1
    return _drawn(call, drawn.dims if by_sample else layout.dims), [drawn]


def permutes(call: Call) -> Outcome:
    """The integers below a dynamic size in random order, padding last."""
    call.names_shape("n")
    layout = call.plain()
    call.replace("padding", stablehlo.not_(call.sizes.valid(layout.dims[0])))
    return _drawn(call, layout.dims), [layout]
