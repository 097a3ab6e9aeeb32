"""One LSTM layer in one direction and its gradient, as loops over time.

These are the ops that `torch.nn.LSTM` on CPU becomes; PyTorch itself calls one a layer and
direction and unrolls GRU and plain RNN. Input is `[time, batch, features]`, states are
`[batch, hidden]` (or `[1, batch, hidden]`), weights `[4 * hidden, features]` and
`[4 * hidden, hidden]` with the gates in the order input, forget, cell, output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import fx

from lowering import hlo
from lowering.bucketing.recurrences import recurs
from lowering.bucketing.run_time import take_along
from lowering.context import LoweringContext
from lowering.dtypes import spec_of
from lowering.mlir import ir, stablehlo
from lowering.ops.matmul import accumulation_dtype, contract
from lowering.ops.normalization import as_result, empty_result
from lowering.registry import lowering

aten = torch.ops.aten

_FORWARD = aten.mkldnn_rnn_layer.default
_BACKWARD = aten.mkldnn_rnn_layer_backward.default
_LSTM = 2


def _reason(node: fx.Node) -> str | None:
    named = {
        argument.name: value
        for argument, value in zip(node.target._schema.arguments, node.args, strict=False)  # type: ignore[union-attr]
    }
    if named["mode"] != _LSTM:
        return "only the LSTM mode of this op is known"
    if named["num_layers"] != 1 or named["bidirectional"] or named["batch_sizes"]:
        return "it is more than one layer in one direction over sequences of equal length"
    # Eager writes out of bounds for it (torch 2.13); nn.LSTM permutes its input instead.
    return "its input is batch-first" if named["batch_first"] else None


class Gates(NamedTuple):
    """Activated gates, each `[batch, hidden]`, or `[time, batch, hidden]` for all steps."""

    input: ir.Value
    forget: ir.Value
    cell: ir.Value
    output: ir.Value

    @classmethod
    def of(cls, sums: ir.Value) -> Gates:
        """Return the gates whose inputs lie side by side in the last dim of `sums`."""
        *lead, width = spec_of(sums).shape
        hidden = width // 4
        parts = [
            hlo.slice_in_dim(sums, i * hidden, (i + 1) * hidden, dim=len(lead)) for i in range(4)
        ]
        first, second, cell, last = parts
        return cls(
            stablehlo.logistic(first),
            stablehlo.logistic(second),
            stablehlo.tanh(cell),
            stablehlo.logistic(last),
        )

    def step(self, cell: ir.Value) -> ir.Value:
        """Return the cell state after `cell`."""
        kept = stablehlo.multiply(self.forget, cell)
        return stablehlo.add(kept, stablehlo.multiply(self.input, self.cell))


def _input_sums(
    ctx: LoweringContext,
    operand: ir.Value,
    weight: ir.Value,
    biases: Sequence[ir.Value],
) -> ir.Value:
    """Return what the input adds to the gates of every step, `[time, batch, 4 * hidden]`."""
    sums = contract(ctx, operand, weight, ([2], [1]))
    for bias in biases:
        bias = hlo.convert(bias, spec_of(sums).dtype)
        sums = stablehlo.add(sums, hlo.broadcast_to(bias, spec_of(sums).shape))
    return sums


def _state(state: ir.Value, dtype: torch.dtype) -> ir.Value:
    """Return a state as `[batch, hidden]` of `dtype`."""
    return hlo.convert(hlo.reshape(state, spec_of(state).shape[-2:]), dtype)


def _in_time(operand: ir.Value, reverse: bool, real_steps: ir.Value | None) -> ir.Value:
    """Return `operand`, mirrored in time if the layer runs backwards; its own inverse.

    Where not all steps are real, only those are mirrored, and padding may hold any of them.
    """
    if not reverse:
        return operand
    if real_steps is None:
        return stablehlo.reverse(operand, [0])
    count = operand.type.shape[0]
    last = hlo.broadcast_to(stablehlo.subtract(real_steps, hlo.full_like(real_steps, 1)), [count])
    places = stablehlo.subtract(last, hlo.iota([count], 0))
    return take_along(operand, stablehlo.maximum(places, hlo.full_like(places, 0)), 0)


def _repeated(
    count: int | ir.Value, body: Callable[..., list[ir.Value]], carried: Sequence[ir.Value]
) -> list[ir.Value]:
    """Return what is carried after `count` passes of `body`, which takes the step as well."""
    start = hlo.scalar(0, torch.int32)
    if isinstance(count, int):
        return hlo.while_loop(
            lambda step, *_: hlo.compare(step, hlo.scalar(count, torch.int32), "LT"),
            lambda step, *values: [_next(step), *body(step, *values)],
            [start, *carried],
        )[1:]
    return hlo.while_loop(
        lambda step, end, *_: hlo.compare(step, end, "LT"),
        lambda step, end, *values: [_next(step), end, *body(step, *values)],
        [start, count, *carried],
    )[2:]


def _next(step: ir.Value) -> ir.Value:
    return stablehlo.add(step, hlo.scalar(1, torch.int32))


@lowering(_FORWARD, padding=recurs, check=_reason)
def lstm_layer(
    ctx: LoweringContext,
    operand: ir.Value,
    input_weight: ir.Value,
    hidden_weight: ir.Value,
    input_bias: ir.Value,
    hidden_bias: ir.Value,
    hidden: ir.Value,
    cell: ir.Value,
    reverse: bool,
    batch_sizes: Sequence[int],
    mode: int,
    hidden_size: int,
    num_layers: int,
    has_biases: bool,
    bidirectional: bool,
    batch_first: bool,
    train: bool,
    real_steps: ir.Value | None = None,
) -> tuple[ir.Value, ...]:
    """Hidden states of all steps, last hidden and cell state, an empty workspace.

    `real_steps` (0-d i32) is how many steps there are, where that is not all of them.
    """
    dtype = accumulation_dtype(spec_of(operand).dtype)
    biases = (input_bias, hidden_bias) if has_biases else ()
    sums = _in_time(_input_sums(ctx, operand, input_weight, biases), reverse, real_steps)
    steps, batch, _ = spec_of(sums).shape

    def body(
        step: ir.Value, sums: ir.Value, weight: ir.Value, hidden: ir.Value, *rest: ir.Value
    ) -> list[ir.Value]:
        cell, outputs = rest
        narrow = hlo.convert(hidden, spec_of(weight).dtype)
        added = contract(ctx, narrow, weight, ([1], [0]))
        gates = Gates.of(stablehlo.add(hlo.dynamic_index(sums, step), added))
        cell = gates.step(cell)
        hidden = stablehlo.multiply(gates.output, stablehlo.tanh(cell))
        outputs = hlo.dynamic_update(outputs, hidden, step)
        return [sums, weight, hidden, cell, outputs]

    outputs = hlo.full([steps, batch, hidden_size], dtype, 0)
    hidden, cell = _state(hidden, dtype), _state(cell, dtype)
    if steps:
        # Turned once, and not by the matrix product of each step.
        turned = stablehlo.transpose(hidden_weight, [1, 0])
        carried = [sums, turned, hidden, cell, outputs]
        count = steps if real_steps is None else real_steps
        *_, hidden, cell, outputs = _repeated(count, body, carried)
    return (
        as_result(ctx, 0, _in_time(outputs, reverse, real_steps)),
        as_result(ctx, 1, hidden),
        as_result(ctx, 2, cell),
        empty_result(ctx, 3),
    )


@lowering(_BACKWARD, padding=recurs, check=_reason)
def lstm_layer_backward(
    ctx: LoweringContext,
    operand: ir.Value,
    input_weight: ir.Value,
    hidden_weight: ir.Value,
    input_bias: ir.Value,
    hidden_bias: ir.Value,
    hidden: ir.Value,
    cell: ir.Value,
    output: ir.Value,
    last_hidden: ir.Value,
    last_cell: ir.Value,
    grad_output: ir.Value | None,
    grad_hidden: ir.Value | None,
    grad_cell: ir.Value | None,
    reverse: bool,
    mode: int,
    hidden_size: int,
    num_layers: int,
    has_biases: bool,
    train: bool,
    bidirectional: bool,
    batch_sizes: Sequence[int],
    batch_first: bool,
    workspace: ir.Value,
    real_steps: ir.Value | None = None,
) -> tuple[ir.Value, ...]:
    """Gradients of input, both weights, both biases (the same), first hidden and cell state.

    The gates are computed anew, all steps at once, since the outputs give the hidden state before
    each step. One loop then goes forwards for the cell states and one backwards for the
    gradients of the gates; the weights' gradients are contractions over all steps.
    """
    narrow = spec_of(operand).dtype
    dtype = accumulation_dtype(narrow)
    operand = _in_time(operand, reverse, real_steps)
    output = _in_time(output, reverse, real_steps)
    steps, batch, _ = spec_of(operand).shape
    shape = [steps, batch, hidden_size]
    first = hlo.convert(hlo.expand_dims(_state(hidden, dtype), [0]), narrow)
    before = hlo.slice_in_dim(hlo.concatenate([first, output], 0), 0, steps, dim=0)
    biases = (input_bias, hidden_bias) if has_biases else ()
    sums = _input_sums(ctx, operand, input_weight, biases)
    gates = Gates.of(stablehlo.add(sums, contract(ctx, before, hidden_weight, ([2], [1]))))
    cells = _cell_states(gates, _state(cell, dtype))

    def given(grad: ir.Value | None, shape: Sequence[int]) -> ir.Value:
        if grad is None:
            return hlo.full(shape, dtype, 0)
        return hlo.convert(hlo.reshape(grad, shape), dtype)

    grads = _gate_grads(
        ctx,
        steps if real_steps is None else real_steps,
        gates,
        cells,
        hidden_weight,
        _in_time(given(grad_output, shape), reverse, real_steps),
        given(grad_hidden, shape[1:]),
        given(grad_cell, shape[1:]),
    )
    grad_sums, grad_hidden, grad_cell = grads
    narrow_sums = hlo.convert(grad_sums, narrow)
    over_steps = ([0, 1], [0, 1])
    bias = hlo.reduce_sum(grad_sums, [0, 1])
    results = (
        _in_time(contract(ctx, narrow_sums, input_weight, ([2], [0])), reverse, real_steps),
        contract(ctx, narrow_sums, operand, over_steps),
        contract(ctx, narrow_sums, before, over_steps),
        bias,
        bias,
        grad_hidden,
        grad_cell,
    )
    return tuple(as_result(ctx, index, value) for index, value in enumerate(results))


def _cell_states(gates: Gates, cell: ir.Value) -> ir.Value:
    """Return the cell states before the first step and after each, `[time + 1, batch, hidden]`."""
    steps, *state = spec_of(gates.input).shape
    cells = hlo.full([steps + 1, *state], spec_of(cell).dtype, 0)
    cells = hlo.dynamic_update(cells, cell, hlo.scalar(0, torch.int32))
    if not steps:
        return cells

    def body(step: ir.Value, *carried: ir.Value) -> list[ir.Value]:
        *all_gates, cell, cells = carried
        now = Gates(*(hlo.dynamic_index(gate, step) for gate in all_gates))
        cell = now.step(cell)
        return [*all_gates, cell, hlo.dynamic_update(cells, cell, _next(step))]

    return _repeated(steps, body, [*gates, cell, cells])[-1]


def _gate_grads(
    ctx: LoweringContext,
    real_steps: int | ir.Value,
    gates: Gates,
    cells: ir.Value,
    weight: ir.Value,
    grad_output: ir.Value,
    grad_hidden: ir.Value,
    grad_cell: ir.Value,
) -> list[ir.Value]:
    """Return gradients of the gates' inputs, `[time, batch, 4 * hidden]`, and of both states."""
    steps, batch, width = spec_of(grad_output).shape
    sums = hlo.full([steps, batch, 4 * width], spec_of(grad_output).dtype, 0)
    if not steps:
        return [sums, grad_hidden, grad_cell]

    def body(step: ir.Value, *carried: ir.Value) -> list[ir.Value]:
        *fixed, grad_hidden, grad_cell, sums = carried
        last, *all_gates, cells, weight, grad_output = fixed
        time = stablehlo.subtract(last, step)
        now = Gates(*(hlo.dynamic_index(gate, time) for gate in all_gates))
        before, after = hlo.dynamic_index(cells, time), hlo.dynamic_index(cells, _next(time))
        grad_hidden = stablehlo.add(grad_hidden, hlo.dynamic_index(grad_output, time))
        squashed = stablehlo.tanh(after)
        to_cell = stablehlo.multiply(grad_hidden, now.output)
        to_cell = stablehlo.multiply(to_cell, _tanh_slope(squashed))
        grad_cell = stablehlo.add(grad_cell, to_cell)
        parts = (
            (stablehlo.multiply(grad_cell, now.cell), _logistic_slope(now.input)),
            (stablehlo.multiply(grad_cell, before), _logistic_slope(now.forget)),
            (stablehlo.multiply(grad_cell, now.input), _tanh_slope(now.cell)),
            (stablehlo.multiply(grad_hidden, squashed), _logistic_slope(now.output)),
        )
        grads = hlo.concatenate([stablehlo.multiply(*pair) for pair in parts], 1)
        narrow = hlo.convert(grads, spec_of(weight).dtype)
        grad_hidden = contract(ctx, narrow, weight, ([1], [0]))
        grad_cell = stablehlo.multiply(grad_cell, now.forget)
        sums = hlo.dynamic_update(sums, grads, time)
        return [*fixed, grad_hidden, grad_cell, sums]

    count = hlo.scalar(real_steps, torch.int32) if isinstance(real_steps, int) else real_steps
    last = stablehlo.subtract(count, hlo.full_like(count, 1))
    carried = [last, *gates, cells, weight, grad_output, grad_hidden, grad_cell, sums]
    *_, grad_hidden, grad_cell, sums = _repeated(real_steps, body, carried)
    return [sums, grad_hidden, grad_cell]


def _logistic_slope(activated: ir.Value) -> ir.Value:
    """Return the derivative of the logistic function from its value."""
    one = hlo.full_like(activated, 1)
    return stablehlo.multiply(activated, stablehlo.subtract(one, activated))


def _tanh_slope(activated: ir.Value) -> ir.Value:
    """Return the derivative of tanh from its value."""
    one = hlo.full_like(activated, 1)
    return stablehlo.subtract(one, stablehlo.multiply(activated, activated))
