"""What an op does, as a functional graph: found once for each kind of arguments.

A plan knows nothing of storages. It takes the tensors that an op is called with as values, in
order, and gives the op's new tensors and the new values of the tensors that it writes to.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from lowering.decompositions import decomposition_table
from lowering.registry import unsupported_reason
from lowering.sizes import is_number
from lowering.subgraphs import draws_random_numbers
from tpu_compile.device.lifting import lifted_call
from tpu_compile.device.schemas import functional_form, out_names
from tpu_compile.device.values import memory_layout

DATA_DEPENDENT = (DataDependentOutputException, DynamicOutputShapeException)
UNTRACEABLE = (UnsupportedFakeTensorException, UnsupportedOperatorException)
# What fake tensors and decompositions raise for arguments that eager refuses too.
REFUSALS = (RuntimeError, TypeError, ValueError, LookupError, ArithmeticError, AssertionError)

# Torch lets these write to expanded tensors: which of the writes comes last does not matter, or is
# the caller's business.
_MAY_OVERLAP = frozenset(
    {
        "aten::fill_",
        "aten::zero_",
        "aten::index_put_",
        "aten::_index_put_impl_",
        "aten::index_fill_",
    }
)

FAKE = FakeTensorMode(allow_non_fake_inputs=True)


@dataclass(frozen=True)
class Tensor:
    """Stands in a call's arguments for tensor number `index`."""

    index: int


@dataclass(frozen=True)
class Number:
    """Stands in a call's arguments for run-time number `index`."""

    index: int


class Spec(NamedTuple):
    """A tensor that goes into an op."""

    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]


class Result(NamedTuple):
    """A tensor that an op makes; `order` lists its dims from the slowest in memory on."""

    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    order: tuple[int, ...]
    shape: tuple[int, ...]
    """The sizes in that order."""


class NotCompilableError(Exception):
    """An op cannot run as a program; the message says why."""

    def __init__(self, why: str, *, reads_data: bool = False) -> None:
        super().__init__(why)
        self.reads_data = reads_data
        """Whether any device would have to wait for data: the op gives a number, or sizes."""


@dataclass(frozen=True, eq=False)
class Plan:
    """An op on arguments of certain kinds; plans are compared by identity."""

    op: OpOverload
    graph: fx.Graph
    """Placeholders: the tensors, then the numbers (0-d). Outputs: the results, then the writes."""
    results: tuple[Result, ...]
    writes: tuple[int, ...]
    """The tensors that get new values."""
    resizes: dict[int, tuple[int, ...]]
    """The sizes that tensors given as `out=` must have first, where they have others."""
    returns: tuple[int | Tensor | None, ...]
    """What the op gives: result number, a tensor that it was given, or None."""
    gives_sequence: bool
    returns_new: bool
    """Whether it gives one tensor, which is new: most ops do."""
    random_ops: tuple[fx.Node, ...]
    """The nodes that draw random numbers, each from a key of its own."""
    numbers: tuple[torch.dtype, ...]
    """The dtypes in which the run-time numbers are computed with."""


def make_plan(
    op: OpOverload,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    specs: Sequence[Spec],
    numbers: Sequence[torch.dtype],
    platform: str,
) -> Plan:
    """Return the plan of `op` for arguments in which `Tensor` and `Number` stand for values.

    Raises:
        NotCompilableError: the op has no lowering for these, its sizes depend on data, or torch
            refuses it: the CPU says why.
        RuntimeError: it would write to an expanded tensor.
    """
    written, aliases = _effects(op, args, kwargs)
    _require_distinct_elements(op, [specs[index] for index in written])
    kwargs = {name: _on_host(value) for name, value in kwargs.items()}
    args = [_on_host(value) for value in args]
    returned: list[Any] = []
    shapes: dict[int, tuple[int, ...]] = {}

    def run(*values: torch.Tensor) -> list[torch.Tensor]:
        tensors = list(values[: len(specs)])
        for index in written:
            # A tensor of the call's own, so that the graph does not write to its placeholders.
            tensors[index] = tensors[index].clone()
        given = [*tensors, *values[len(specs) :]]

        def fill(item: Any) -> Any:
            if isinstance(item, Tensor):
                return given[item.index]
            return given[len(specs) + item.index] if isinstance(item, Number) else item

        filled, named = pytree.tree_map(fill, (list(args), dict(kwargs)), is_leaf=_is_place)
        result = _result_of(op, filled, named, lifted=bool(numbers))
        if isinstance(result, (tuple, list)):
            returned[:] = result
        else:
            returned[:] = [] if result is None else [result]
        shapes.update({index: tuple(tensors[index].shape) for index in written})
        if len(aliases) == 1 and len(returned) != 1:
            aliases[:] = aliases * len(returned)
        fresh = [
            item
            for item, alias in zip(returned, aliases, strict=True)
            if alias is None and isinstance(item, torch.Tensor)
        ]
        return [*fresh, *(tensors[index] for index in written)]

    def check(*values: torch.Tensor) -> None:
        """Let torch refuse tensors for results, which the functional form is not given."""

        def fill(item: Any) -> Any:
            return values[item.index] if isinstance(item, Tensor) else item

        filled, named = pytree.tree_map(fill, (list(args), dict(kwargs)), is_leaf=_is_place)
        op(*filled, **named)

    graph_module = _traced(run, check if out_names(op) else None, specs, numbers)
    _require_lowerings(graph_module, platform)
    (output,) = graph_module.graph.find_nodes(op="output")
    nodes = list(output.args[0])
    results = tuple([_result(node) for node in nodes[: len(nodes) - len(written)]])
    fresh = iter(range(len(results)))
    returns = tuple(
        [
            alias if alias is not None else next(fresh) if isinstance(item, torch.Tensor) else None
            for item, alias in zip(returned, aliases, strict=True)
        ]
    )
    return Plan(
        op,
        graph_module.graph,
        results,
        written,
        {i: size for i, size in shapes.items() if size != specs[i].size},
        returns,
        _gives_sequence(op),
        not _gives_sequence(op) and returns == (0,),
        tuple([node for node in graph_module.graph.nodes if draws_random_numbers(node)]),
        tuple(numbers),
    )


def _require_distinct_elements(op: OpOverload, written: Sequence[Spec]) -> None:
    if op._schema.name in _MAY_OVERLAP:
        return
    for spec in written:
        if any(n > 1 and not step for n, step in zip(spec.size, spec.stride, strict=True)):
            raise RuntimeError(
                "unsupported operation: more than one element of the written-to tensor refers to "
                "a single memory location. Please clone() the tensor before performing the "
                "operation."
            )


def _is_place(item: Any) -> bool:
    return isinstance(item, (Tensor, Number))


def _result_of(op: OpOverload, args: list[Any], kwargs: dict[str, Any], *, lifted: bool) -> Any:
    if lifted:
        return lifted_call(op, args, kwargs)
    if op in _OTHERWISE:
        return _OTHERWISE[op](*args, **kwargs)
    form = functional_form(op) if out_names(op) else None
    if form is None:
        return op(*args, **kwargs)
    outs = pytree.tree_leaves([kwargs.pop(name) for name in out_names(op)])
    result = form(*args, **kwargs)
    values = result if isinstance(result, (tuple, list)) else [result]
    for out, value in zip(outs, values, strict=True):
        _store(value, out)
    return tuple(outs) if op._schema.returns else None


def _randperm(n: int, generator: None = None, *, out: torch.Tensor) -> torch.Tensor:
    _store(torch.ops.aten.randperm.default(n, dtype=out.dtype, device="cpu"), out)
    return out


def _written_back(op: OpOverload, *args: Any, **kwargs: Any) -> None:
    """Write the lists that the functional form of `op` gives to those that `op` writes to."""
    form = functional_form(op)
    assert form is not None
    given = zip(args, op._schema.arguments, strict=False)
    written = [item for item, argument in given if argument.alias_info is not None]
    for olds, news in zip(written, form(*args, **kwargs), strict=True):
        for old, new in zip(olds, news, strict=True):
            old.copy_(new)


# Computed otherwise than by their functional forms.
_OTHERWISE: dict[OpOverload, Callable[..., Any]] = {
    torch.ops.aten.randperm.generator_out: _randperm,
    torch.ops.aten.randperm.out: _randperm,
}
# Torch's functionalization refuses empty lists, such as those that amsgrad is off for.
for _name_of_step in ("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_"):
    _step = getattr(torch.ops.aten, _name_of_step).tensor_lr
    _OTHERWISE[_step] = functools.partial(_written_back, _step)


def _store(value: torch.Tensor, out: torch.Tensor) -> None:
    """Write to `out` as torch does: it takes the size of `value`, and keeps its dtype."""
    if not torch.can_cast(value.dtype, out.dtype):
        raise RuntimeError(
            f"result type {_name(value)} can't be cast to the desired output type {_name(out)}"
        )
    if value.shape != out.shape:
        out.resize_(value.shape)
    out.copy_(value)


def _name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


# Torch's tracing depends on state of the thread, which a kernel is called in the middle of.
_tracer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tpu-tracing")


def _is_not_ours(record: logging.LogRecord) -> bool:
    return not (record.threadName or "").startswith("tpu-tracing")


# It logs, as errors, what it raises for wrong arguments: those are raised to the user.
logging.getLogger("torch._subclasses.fake_tensor").addFilter(_is_not_ours)


def _traced(
    run: Callable[..., Any],
    check: Callable[..., None] | None,
    specs: Sequence[Spec],
    numbers: Sequence[torch.dtype],
) -> fx.GraphModule:
    return _tracer.submit(_trace, run, check, specs, numbers).result()


def _trace(
    run: Callable[..., Any],
    check: Callable[..., None] | None,
    specs: Sequence[Spec],
    numbers: Sequence[torch.dtype],
) -> fx.GraphModule:
    with FAKE, torch.no_grad():
        function = functionalize(run, remove="mutations_and_views")
        try:
            if check is not None:
                with contextlib.suppress(*DATA_DEPENDENT, *UNTRACEABLE, NotImplementedError):
                    check(*_fakes(specs))
            fakes = _fakes(specs) + [torch.empty((), dtype=dtype) for dtype in numbers]
            return make_fx(function, decomposition_table=decomposition_table())(*fakes)
        except NotCompilableError:
            raise
        except DATA_DEPENDENT as error:
            raise NotCompilableError("its result depends on data", reads_data=True) from error
        except UNTRACEABLE as error:
            raise NotCompilableError(f"torch cannot trace it ({error})") from error
        except REFUSALS as error:
            # Wrong arguments, most likely. What runs it on the CPU raises what the CPU does.
            raise NotCompilableError(f"torch refuses to trace it ({error})") from None


def _fakes(specs: Sequence[Spec]) -> list[torch.Tensor]:
    return [torch.empty_strided(s.size, s.stride, dtype=s.dtype) for s in specs]


def _require_lowerings(graph_module: fx.GraphModule, platform: str) -> None:
    for node in graph_module.graph.nodes:
        if node.op == "call_function" and not is_number(node):
            why = unsupported_reason(node, platform)
            if why is not None and str(node.target) != "<built-in function getitem>":
                raise NotCompilableError(f"{node.target}: {why}")


def _result(node: fx.Node) -> Result:
    value = node.meta["val"]
    size = tuple(value.shape)
    stride, order, shape = memory_layout(size, tuple(value.stride()))
    return Result(value.dtype, size, stride, order, shape)


def _effects(
    op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[tuple[int, ...], list[Tensor | None]]:
    """Return the tensors that `op` writes to, and for each return the argument that it is."""
    written: list[int] = []
    by_alias: dict[str, Any] = {}
    for position, argument in enumerate(op._schema.arguments):
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        info = argument.alias_info
        if info is None or value is None:
            continue
        for name in info.before_set:
            by_alias[name] = value
        if info.is_write:
            items = value if isinstance(value, (list, tuple)) else [value]
            written.extend(item.index for item in items if isinstance(item, Tensor))
    aliases: list[Tensor | None] = []
    for returned in op._schema.returns:
        info = returned.alias_info
        value = (
            next((by_alias[n] for n in info.before_set if n in by_alias), None) if info else None
        )
        aliases.extend(value if isinstance(value, (list, tuple)) else [value])
    return tuple(dict.fromkeys(written)), aliases


def _gives_sequence(op: OpOverload) -> bool:
    returns = op._schema.returns
    return len(returns) > 1 or any(isinstance(r.type, torch.ListType) for r in returns)


def _on_host(value: Any) -> Any:
    return torch.device("cpu") if isinstance(value, torch.device) else value
