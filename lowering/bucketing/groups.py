"""The padding rules of matrix products by groups of rows, and of those with scales."""

from __future__ import annotations

from lowering.bucketing.atoms import Dim, Layout, dim_of, is_padded, is_prefix, physical_size
from lowering.bucketing.atoms import logical_size as size_of
from lowering.bucketing.call import Call, Outcome
from lowering.bucketing.contractions import contracts
from lowering.bucketing.rules import matched


def _ragged(call: Call, name: str, dim: int) -> Dim:
    """Lay the dim that groups divide real positions first, zero its padding, and return it.

    Padding belongs to no group, as it comes after the end of the last.
    """
    layout = call.layout(name)
    if any(is_padded(other) for i, other in enumerate(layout.dims) if i != dim):
        raise call.decline(f"a dim of its `{name}` that no group divides is dynamic")
    dims = list(layout.dims)
    if not is_prefix(dims[dim]):
        dims[dim] = dim_of(size_of(dims[dim]), physical_size(dims[dim]))
    value = call.sizes.relayout(call.value(name), layout.dims, dims)
    call.replace(name, call.hidden(value, Layout(tuple(dims)), [dim], 0))
    return dims[dim]


def _static(call: Call, name: str) -> tuple[Dim, ...]:
    dims = call.layout(name).dims
    if any(is_padded(dim) for dim in dims):
        raise call.decline(f"a dim of its `{name}` is dynamic")
    return dims


def multiplies_groups(call: Call) -> Outcome:
    """`_grouped_mm`, whose 2-d operand may have a dynamic dim that the groups divide."""
    if call.value("offs") is None:
        return contracts("self", "mat2", (2, 1), [(0, 0)])(call)
    _static(call, "offs")
    ranks = [len(call.layout(name).dims) for name in ("self", "mat2")]
    result = list(call.plain().dims)
    if ranks == [2, 3]:
        _static(call, "mat2")
        result[0] = _ragged(call, "self", 0)
    elif ranks == [3, 2]:
        _static(call, "self")
        result[1] = _ragged(call, "mat2", 1)
    elif ranks == [2, 2]:
        if _ragged(call, "self", 1) != _ragged(call, "mat2", 0):
            raise call.decline("its operands are padded otherwise")
    else:
        _static(call, "self")
        _static(call, "mat2")
    return call.run(), [Layout(tuple(result))]


def multiplies_row_groups(call: Call) -> Outcome:
    """Rows by the matrices of their groups; as many dynamic rows as there are."""
    _static(call, "weight")
    _static(call, "offs")
    rows = _ragged(call, "input", 0)
    return call.run(), [Layout((rows, *call.plain().dims[1:]))]


def multiplies_row_groups_backward(call: Call) -> Outcome:
    """The gradients of rows and matrices."""
    weight = _static(call, "weight")
    _static(call, "offs")
    rows = _ragged(call, "input", 0)
    if _ragged(call, "grad_output", 0) != rows:
        raise call.decline("its operands are padded otherwise")
    return call.run(), [Layout((rows, *call.plain().dims[1:])), Layout(weight)]


def multiplies_scaled(call: Call) -> Outcome:
    """A product of scaled matrices, whose rows, columns or sums may be dynamic."""
    rows, columns = call.layout("self").dims[0], call.layout("mat2").dims[1]
    for name, beside in (("scale_a", (rows, ())), ("scale_b", ((), columns)), ("bias", (columns,))):
        if call.value(name) is None:
            continue
        layout = call.layout(name)
        if layout.is_padded:
            if len(layout.dims) != len(beside):
                raise call.decline(f"its `{name}` has another shape")
            call.replace(name, matched(call, call.value(name), layout, beside))
    return contracts("self", "mat2", (1, 0))(call)
