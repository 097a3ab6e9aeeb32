"""The padding rules of finding bins: padded boundaries are beyond every number."""

from __future__ import annotations

from lowering.bucketing.atoms import Layout, is_padded, logical_size, physical_size
from lowering.bucketing.call import Call, Fill, Outcome
from lowering.bucketing.placing import number_like, put_first
from lowering.mlir import stablehlo


def searched(call: Call) -> Outcome:
    """How many boundaries of a last dim lie below each number."""
    rank = len(call.layout("sorted_sequence").dims)
    bounds = put_first(call, "sorted_sequence", [rank - 1])
    sorter = call.value("sorter")
    if sorter is not None:
        value = call.sizes.relayout(sorter, call.layout("sorter").dims, bounds.dims)
        value = call.hidden(value, Layout(bounds.dims), [rank - 1], physical_size(bounds.dims[-1]))
        call.replace("sorter", value)
    result = Layout(())
    if "self" in call.tensors():
        result = Layout(call.layout("self").dims)
        if rank > 1:
            # Each row of numbers has its row of boundaries.
            wanted = (*bounds.dims[:-1], result.dims[-1])
            value = call.sizes.relayout(call.value("self"), result.dims, wanted)
            call.replace("self", value)
            result = Layout(wanted)
    return _found(call, "sorted_sequence", bounds, result)


def bucketized(call: Call) -> Outcome:
    """How many of the 1-d boundaries lie below each number."""
    bounds = put_first(call, "boundaries", [0])
    is_tensor = "self" in call.tensors()
    result = Layout(call.layout("self").dims if is_tensor else ())
    return _found(call, "boundaries", bounds, result)


def _found(call: Call, name: str, bounds: Layout, result: Layout) -> Outcome:
    last = len(bounds.dims) - 1
    call.numbers_at_run_time()
    if not is_padded(bounds.dims[last]):
        return call.run(), [result]
    call.replace(name, call.hidden(call.value(name), bounds, [last], Fill.HIGHEST))
    found = call.run()
    # Beyond the largest number, or NaN, are all boundaries: the real ones.
    most = number_like(call, logical_size(bounds.dims[last]), found)
    return stablehlo.minimum(found, most), [result]


def tallied(call: Call) -> Outcome:
    """How many elements fall in each of a static number of equal parts of a range.

    The op's rule is told which are real: `real`, bool of the operand's shape.
    """
    layout = call.layout("self")
    if not isinstance(call.size("bins", 100), int):
        raise call.decline("its number of bins is dynamic")
    mask = call.sizes.mask(layout.dims, range(len(layout.dims)))
    if mask is not None:
        call.replace("real", mask)
    return call.run(), [call.plain()]
