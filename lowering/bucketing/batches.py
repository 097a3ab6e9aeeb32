"""The padding rules of ops that treat each entry of a batch by itself.

Their own dims, the last ones of each operand, must be static; the batch may be padded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lowering.bucketing.atoms import Dim, Layout, is_padded, static_layout
from lowering.bucketing.call import Call, Outcome
from lowering.bucketing.rules import broadcast_dims, matched
from lowering.dtypes import TensorSpec
from lowering.registry import PaddingRule


def batched(**own: int | Callable[[Call], int]) -> PaddingRule:
    """An op whose tensor arguments have so many own dims, after batch dims that are broadcast.

    Padding is zero, so that no iteration meets a matrix with which it would not end.
    """

    def rule(call: Call) -> Outcome:
        counts = {
            name: count if isinstance(count, int) else count(call)
            for name, count in own.items()
            if call.value(name) is not None
        }
        batch = shared_batch(call, counts)
        specs = call.ctx.specs(call.node)
        return call.run(), [None if spec is None else _result(spec, batch) for spec in specs]

    return rule


def shared_batch(call: Call, own: dict[str, int]) -> list[Dim]:
    """Lay out the batch dims of tensors alike, zero their padding and return these dims.

    Raises:
        NoPaddingRuleError: an own dim of one is padded.
    """
    layouts = []
    for name, count in own.items():
        dims = call.layout(name).dims
        kept = len(dims) - count
        if any(is_padded(dim) for dim in dims[kept:]):
            raise call.decline(f"a dim of its `{name}` that it mixes is dynamic")
        layouts.append(Layout(dims[:kept]))
    batch = broadcast_dims(layouts, max(len(layout.dims) for layout in layouts))
    for name, layout in zip(own, layouts, strict=True):
        whole = call.layout(name)
        rest = whole.dims[len(layout.dims) :]
        call.replace(name, matched(call, call.value(name), whole, [*batch, *rest]))
        offset = len(batch) - len(layout.dims)
        lying = Layout((*(d and batch[offset + i] for i, d in enumerate(layout.dims)), *rest))
        call.replace(name, call.hidden(call.value(name), lying, range(len(layout.dims)), 0))
    return batch


def _result(spec: TensorSpec, batch: Sequence[Dim]) -> Layout:
    if 0 in spec.shape:
        return static_layout(spec.shape)
    return Layout((*batch, *static_layout(spec.shape[len(batch) :]).dims))


def right_side(call: Call) -> int:
    """Return how many own dims the right side `B` of a system `A` has: 1 for a vector."""
    matrix, other = call.fake("A").shape, call.fake("B").shape
    return 1 if len(other) == 1 or other == matrix[:-1] else 2


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
