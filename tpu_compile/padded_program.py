"""A program for all sizes up to some: pads what goes in, cuts what comes out."""

from __future__ import annotations

import collections
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import fx

from lowering import LoweredGraph
from lowering.bucketing.call import NoPaddingRuleError
from lowering.signature import FromResult, Output, Signature, read_signature
from lowering.sizes import Sizes
from tpu_compile.framing import Fit, evaluator
from tpu_compile.history import GraphName
from tpu_compile.interface import Interface
from tpu_compile.program import Program, output_of, write
from tpu_compile.runtime import pjrt
from tpu_compile.statistics import RECORDER

# Frames are small, and cost about as much to make as a call of a small program.
_MOST_FRAMES = 512


@dataclass(frozen=True)
class Frame:
    """What the sizes of a call say about the tensors of a padded program."""

    sizes: Any
    """The device array of the sizes."""
    arguments: tuple[tuple[int, Fit], ...]
    """By placeholder, those that have padding."""
    results: tuple[Fit | None, ...]
    """None where nobody wants the result at the call's sizes."""
    orders: tuple[tuple[int, ...], ...]
    """The memory order that each result has at the call's sizes."""
    outputs: tuple[Output, ...]
    signature: Signature
    padded: int
    useful: int


class PaddedProgram(Program):
    """A program whose tensors are padded, called with the sizes of the call."""

    def __init__(
        self,
        lowered: LoweredGraph,
        interface: Interface,
        client: pjrt.Client,
        executable: Any,
        name: GraphName,
        versions_ahead: Collection[int],
        *,
        graph_module: fx.GraphModule,
        symbols: Sequence[sympy.Expr],
        kept: Collection[int],
        poisons: bool,
    ) -> None:
        """Make the program callable.

        Args:
            lowered: the module with its padding.
            interface: how it is called.
            client: where it runs.
            executable: the loaded program.
            name: what errors call it.
            versions_ahead: see `GraphExecutable`.
            graph_module: the graph, whose signature at a call's sizes tells the outputs.
            symbols: what the sizes of a call are values of, in their order.
            kept: outputs that are given back with their padding.
            poisons: fill padding with what no real element is made of.
        """
        super().__init__(interface, client, executable, name, versions_ahead)
        assert lowered.padding is not None
        self._padding = lowered.padding
        self._physical = lowered.signature
        # A padded buffer is no user's tensor, so no copy of it may stay on the device as one.
        self._resident_updates = []
        self._graph_module = graph_module
        self._symbols = tuple(symbols)
        self.kept = tuple(kept)
        """Outputs that are given back with their padding, unless `run` is told otherwise."""
        self._poisons = poisons
        self._sizes_plan = client.put_plan((len(self._symbols),), torch.int64)
        self._frames: collections.OrderedDict[tuple[int, ...], Frame] = collections.OrderedDict()
        self._buffers: dict[int, list[torch.Tensor]] = collections.defaultdict(list)
        self._lock = threading.Lock()

    def run(self, args: Sequence[Any], sizes: tuple[int, ...], *, keep: bool) -> list[Any]:
        """Return the graph's outputs; mutated inputs are updated.

        Args:
            args: the placeholders' values.
            sizes: the values of the symbols.
            keep: whether outputs that may stay padded do.

        Raises:
            NoPaddingRuleError: at these sizes the graph's outputs alias in another way.
        """
        frame = self.frame(sizes)
        given, borrowed = self._padded(frame, args)
        raw, _ = self._run(given, (frame.sizes,))
        for index, buffer in borrowed:
            self._buffers[index].append(buffer)
        RECORDER.count_padding(frame.padded, frame.useful)
        kept = frozenset(self.kept) if keep else frozenset()
        results = self._cut(frame, raw, kept)
        outputs = [
            output_of(self._physical.outputs[position], raw, args)
            if position in kept
            else output_of(output, results, args)
            for position, output in enumerate(frame.outputs)
        ]
        with torch.no_grad():
            mutations = frame.signature.mutations
            values = [output_of(mutation.value, results, args) for mutation in mutations]
            for mutation, value in zip(mutations, values, strict=True):
                write(args[mutation.placeholder], value)
        return outputs

    def _padded(
        self, frame: Frame, args: Sequence[Any]
    ) -> tuple[list[Any], list[tuple[int, torch.Tensor]]]:
        """Return the arguments at physical shapes, and the buffers lent to them."""
        given = list(args)
        borrowed = []
        for index, fit in frame.arguments:
            tensor = args[index]
            if tuple(tensor.shape) == fit.shape:
                continue
            pool = self._buffers[index]
            try:
                buffer = pool.pop()
            except IndexError:
                buffer = fit.new_buffer(tensor.dtype)
            with torch.no_grad():
                fit.pad(tensor.detach(), buffer)
            given[index] = buffer
            borrowed.append((index, buffer))
        return given, borrowed

    def _cut(
        self, frame: Frame, raw: Sequence[torch.Tensor], kept: frozenset[int]
    ) -> list[torch.Tensor]:
        """Return the results at the call's sizes, dense in memory order."""
        wanted = {
            output.index
            for position, output in enumerate(frame.outputs)
            if isinstance(output, FromResult) and position not in kept
        } | {m.result for m in frame.signature.mutations}
        results = []
        for index, (value, fit) in enumerate(zip(raw, frame.results, strict=True)):
            if index in wanted and fit is not None:
                value = self._cut_one(fit, value, frame.orders[index])
            results.append(value)
        return results

    def _cut_one(self, fit: Fit, value: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
        if value.device.type != "tpu":
            return fit.cut(value).permute(order).contiguous()
        # On the host: a cut on the device would be a program for each size.
        from tpu_compile.device.residence import from_host, on_host

        return from_host(fit.cut(on_host(value)).permute(order).contiguous())

    def frame(self, sizes: tuple[int, ...]) -> Frame:
        """Return what these sizes say, from memory where they were seen lately."""
        with self._lock:
            found = self._frames.get(sizes)
            if found is not None:
                self._frames.move_to_end(sizes)
                return found
        made = self._make_frame(sizes)
        with self._lock:
            self._frames[sizes] = made
            if len(self._frames) > _MOST_FRAMES:
                self._frames.popitem(last=False)
        return made

    def _make_frame(self, sizes: tuple[int, ...]) -> Frame:
        bindings = dict(zip(self._symbols, sizes, strict=True))
        signature = read_signature(self._graph_module, Sizes(bindings))
        self._check(signature)
        value_of = evaluator(bindings)
        arguments = []
        for argument in self._physical.arguments:
            layout = self._padding.arguments[argument.placeholder]
            if argument.placeholder is None or not layout.is_padded:
                continue
            fit = Fit(layout, argument.order, value_of, poisons=self._poisons)
            arguments.append((argument.placeholder, fit))
        results = tuple(
            Fit(layout, result.order, value_of, poisons=False) if layout.is_padded else None
            for layout, result in zip(self._padding.results, self._physical.results, strict=True)
        )
        vector = self._client.put(torch.tensor(sizes, dtype=torch.int64), self._sizes_plan)
        return Frame(
            vector,
            tuple(arguments),
            results,
            tuple(result.order for result in signature.results),
            signature.outputs,
            signature,
            sum(fit.padding for _, fit in arguments),
            sum(fit.useful for _, fit in arguments),
        )

    def _check(self, signature: Signature) -> None:
        """Compare the signature at a call's sizes with the program's: results must correspond."""
        physical = self._physical
        same = (
            [result.node for result in signature.results]
            == [result.node for result in physical.results]
            and [argument.node for argument in signature.arguments]
            == [argument.node for argument in physical.arguments]
            and list(map(_origin, signature.outputs)) == list(map(_origin, physical.outputs))
        )
        if not same:
            node = next(iter(signature.needed))
            raise NoPaddingRuleError(node, "outputs alias otherwise than at the bucket's sizes")


def _origin(output: Output) -> Any:
    return output.index if isinstance(output, FromResult) else type(output)
