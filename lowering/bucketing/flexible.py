"""The padding rules of flex attention: rows flow, and no row sees a padded key.

Positions that the user's functions get are physical ones, so every dim has its real positions
first, where both are the same.
"""

from __future__ import annotations

from lowering.bucketing.atoms import (
    Layout,
    dim_of,
    is_padded,
    is_prefix,
    logical_size,
    physical_size,
)
from lowering.bucketing.call import Call, Outcome

QUERY, KEY, VALUE = "argument_0", "argument_1", "argument_2"
BATCH, HEADS, ROWS, FEATURES = range(4)


def _laid(call: Call, name: str, query: Layout | None) -> Layout:
    """Lay a tensor `[batch, heads, rows, ...]` out, like `query` in its batch, and zero padding."""
    layout = call.layout(name)
    dims = [
        dim if is_prefix(dim) else dim_of(logical_size(dim), physical_size(dim))
        for dim in layout.dims
    ]
    if query is not None and dims[BATCH]:
        dims[BATCH] = query.dims[BATCH]
    if is_padded(dims[HEADS]) or any(is_padded(dim) for dim in dims[FEATURES:]):
        raise call.decline("its heads or features are a dynamic dim")
    value = call.sizes.relayout(call.value(name), layout.dims, dims)
    laid = Layout(tuple(dims))
    call.replace(name, call.hidden(value, laid, range(len(dims)), 0))
    return laid


def _tell_keys(call: Call, key: Layout, *buffers: str) -> None:
    """Check what the user's functions read, and tell the op's rule how many keys are real."""
    for name in buffers:
        if name not in call.names:
            continue
        for layout in call.layouts(name):
            if layout is not None and not all(is_prefix(dim) for dim in layout.dims):
                raise call.decline("a buffer that its functions read has no plain layout")
    if is_padded(key.dims[ROWS]):
        call.replace("real_keys", call.sizes.number(logical_size(key.dims[ROWS])))


def attends(call: Call) -> Outcome:
    """Output, logsumexp and largest score of each row."""
    query = _laid(call, QUERY, None)
    key = _laid(call, KEY, query)
    value = _laid(call, VALUE, query)
    call.names_shape("argument_4")
    _tell_keys(call, key, "argument_7", "argument_8")
    rows = query.dims[:FEATURES]
    return call.run(), [Layout((*rows, value.dims[FEATURES])), Layout(rows), Layout(rows)]


def attends_backward(call: Call) -> Outcome:
    """The gradients of query, key and value: padded rows add nothing to them."""
    query = _laid(call, QUERY, None)
    key = _laid(call, KEY, query)
    value = _laid(call, VALUE, query)
    for name in ("argument_3", "argument_4", "argument_5", "argument_6"):
        if call.value(name) is not None:
            _laid(call, name, query)
    call.names_shape("argument_9")
    _tell_keys(call, key, "argument_12", "argument_13")
    if any(layout is not None and layout.is_padded for layout in call.layouts("argument_12")):
        raise call.decline("it may add up gradients of a padded buffer")
    return call.run(), [query, key, value, None]
