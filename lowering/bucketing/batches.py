"""The padding rules of ops that treat each entry of a batch by itself.

Their own dims, the last ones of each operand, must be static; the batch may be padded.
"""

from __future__ import annotations

from collections.abc import Sequence

from lowering.bucketing.atoms import Dim, Layout, is_padded, static_layout
from lowering.bucketing.call import Call, Outcome
from lowering.bucketing.rules import broadcast_dims, matched
from lowering.registry import PaddingRule

OwnDims = dict[str, Sequence[Dim]]
"""The own dims of tensor arguments, by name, as they are to lie."""


def batched(**own: int) -> PaddingRule:
    """An op whose tensor arguments have so many own dims, after batch dims that are broadcast."""

    def rule(call: Call) -> Outcome:
        dims: OwnDims = {}
        for name, count in own.items():
            if call.value(name) is None:
                continue
            all_dims = call.layout(name).dims
            dims[name] = all_dims[len(all_dims) - count :]
            if any(is_padded(dim) for dim in dims[name]):
                raise call.decline(f"a dim of its `{name}` that it mixes is dynamic")
        batch, _ = shared_batch(call, dims)
        return call.run(), batch_results(call, batch)

    return rule


def shared_batch(call: Call, own: OwnDims) -> tuple[list[Dim], dict[str, Layout]]:
    """Lay out the batch dims of tensors alike and zero all padding; return these dims.

    Zero, so that no iteration meets a matrix with which it would not end. Also returns how each
    tensor lies.
    """
    leads = [
        Layout(dims[: len(dims) - len(own[name])])
        for name, dims in ((name, call.layout(name).dims) for name in own)
    ]
    batch = broadcast_dims(leads, max(len(lead.dims) for lead in leads))
    laid = {}
    for (name, dims), lead in zip(own.items(), leads, strict=True):
        value = matched(call, call.value(name), call.layout(name), [*batch, *dims])
        offset = len(batch) - len(lead.dims)
        lying = [dim and batch[offset + i] for i, dim in enumerate(lead.dims)]
        laid[name] = Layout((*lying, *dims))
        call.replace(name, call.hidden(value, laid[name], range(len(laid[name].dims)), 0))
    return batch, laid


def batch_results(call: Call, batch: Sequence[Dim]) -> list[Layout | None]:
    """Return the layouts of results that have the `batch` dims and then own ones."""
    layouts: list[Layout | None] = []
    for index, spec in enumerate(call.ctx.specs(call.node)):
        if spec is None:
            layouts.append(None)
        elif 0 in spec.shape:
            layouts.append(static_layout(spec.shape))
        else:
            layouts.append(Layout((*batch, *call.plain(index).dims[len(batch) :])))
    return layouts


def transforms(call: Call) -> Outcome:
    """A Fourier transform over static dims of its `dim`."""
    layout = call.layout("self")
    rank = len(layout.dims)
    dims = [dim % rank for dim in call.value("dim")]
    if any(is_padded(layout.dims[dim]) for dim in dims):
        raise call.decline("it transforms a dynamic dim")
    plain = call.plain().dims
    mixed = [plain[i] if i in dims else dim for i, dim in enumerate(layout.dims)]
    return call.run(), [Layout(tuple(mixed))]


def resizes(call: Call) -> Outcome:
    """Interpolation over static dims of `[batch, channels, *spatial]`, or its gradient."""
    name = call.tensors()[0]
    dims = call.layout(name).dims
    call.names_shape("output_size", "input_size")
    plain = call.plain().dims
    if any(is_padded(dim) for dim in (*dims[2:], *plain[2:])):
        raise call.decline("it resizes a dynamic dim")
    return call.run(), [Layout((*dims[:2], *plain[2:]))]


def samples_grid(call: Call) -> Outcome:
    """Values at the points of a grid: batch, channels and points flow."""
    layout, grid, batch = _sampled(call)
    dims = (batch, layout.dims[1], *grid.dims[1:-1])
    return call.run(), [Layout(dims)]


def samples_grid_backward(call: Call) -> Outcome:
    """The gradients of `samples_grid`: only real points add to those of the values."""
    layout, grid, batch = _sampled(call)
    dims = (batch, layout.dims[1], *grid.dims[1:-1])
    own = call.layout("grad_output")
    call.replace("grad_output", matched(call, call.value("grad_output"), own, dims))
    # Channels are summed for the gradient of the grid.
    for name, lying in (("grad_output", dims), ("input", (batch, *layout.dims[1:]))):
        whole = Layout(tuple(lying))
        everything = range(len(lying))
        call.replace(name, call.hidden(call.value(name), whole, everything, 0))
    moved = Layout((batch, *grid.dims[1:]))
    call.replace("grid", call.hidden(call.value("grid"), moved, range(len(moved.dims)), 0))
    specs = call.ctx.specs(call.node)
    layouts = [Layout((batch, *layout.dims[1:])), moved]
    return call.run(), [
        None if spec is None else own for spec, own in zip(specs, layouts, strict=True)
    ]


def _sampled(call: Call) -> tuple[Layout, Layout, Dim]:
    """Lay the batches of values and grid alike; return both layouts and that dim."""
    layout, grid = call.layout("input"), call.layout("grid")
    if any(is_padded(dim) for dim in layout.dims[2:]):
        raise call.decline("it reads at positions of a dynamic dim")
    batch = layout.dims[0]
    call.replace("grid", matched(call, call.value("grid"), grid, (batch, *grid.dims[1:])))
    return layout, grid, batch
