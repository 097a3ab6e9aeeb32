"""The padding rules of bags of embeddings and of renormalized rows."""

from __future__ import annotations

from lowering.bucketing.atoms import Layout, is_padded, physical_size
from lowering.bucketing.call import Call, Outcome
from lowering.bucketing.indexed import physical_positions
from lowering.bucketing.placing import put_first
from lowering.bucketing.scattered import dropped


def bagged(call: Call) -> Outcome:
    """Sum, mean or maximum of the rows of each bag: padded indices are in none, none is padded.

    The op's rule is told which indices are real: `real`, bool of the shape of `indices`.
    """
    weight = put_first(call, "weight", [0])
    positions = put_first(call, "indices", [0])
    starts = put_first(call, "offsets", [0])
    count = physical_size(positions.dims[0])
    # No position is so far: padded bags do not begin.
    offsets = call.hidden(call.value("offsets"), starts, [0], count)
    call.replace("offsets", offsets)
    weights = call.value("per_sample_weights")
    if weights is not None:
        given = call.layout("per_sample_weights").dims
        weights = call.sizes.relayout(weights, given, positions.dims)
        call.replace("per_sample_weights", weights)
    if is_padded(positions.dims[0]):
        call.replace("real", call.sizes.valid(positions.dims[0]))
    values = call.run()
    specs = call.ctx.specs(call.node)
    layouts = [None if spec is None else call.plain(at) for at, spec in enumerate(specs)]
    for at in (0, 3):
        layout = layouts[at]
        if layout is not None and len(layout.dims) == 2:
            layouts[at] = Layout((layout.dims[0], weight.dims[1]))
    return values, layouts


def bagged_backward(call: Call) -> Outcome:
    """The gradient of the rows: padded indices and bags name none."""
    call.names_shape("num_weights")
    rows = call.result.shape[0]
    call.replace("num_weights", rows)
    positions = put_first(call, "indices", [0])
    call.replace("indices", call.hidden(call.value("indices"), positions, [0], rows))
    for name in ("offset2bag", "per_sample_weights"):
        if call.value(name) is not None:
            value = call.sizes.relayout(call.value(name), call.layout(name).dims, positions.dims)
            call.replace(name, value)
    gradient = put_first(call, "grad", [0])
    bags = gradient.dims[0]
    size = call.layout("bag_size").dims
    if physical_size(size[0]):
        call.replace("bag_size", call.sizes.relayout(call.value("bag_size"), size, [bags]))
    largest = call.layout("maximum_indices")
    if len(largest.dims) == 2:
        wanted = (bags, gradient.dims[1])
        value = call.sizes.relayout(call.value("maximum_indices"), largest.dims, wanted)
        call.replace("maximum_indices", call.hidden(value, Layout(wanted), [0], rows))
    return call.run(), [Layout((call.plain().dims[0], gradient.dims[1]))]


def renormalized(call: Call) -> Outcome:
    """Rows that padded indices name are not scaled; padding of a row adds nothing to its norm."""
    weight, positions = call.layout("self"), call.layout("indices")
    call.hide("self", [1], 0)
    index = physical_positions(call, call.value("indices"), weight.dims[0])
    call.replace("indices", dropped(call, index, positions, physical_size(weight.dims[0])))
    return call.run(), [Layout(weight.dims)]
