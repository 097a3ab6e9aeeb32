"""Asks the StableHLO reference interpreter about one sample: is our lowering wrong, or XLA?

python -m tests.conformance.interpret forward cumsum int64 3

The interpreter knows plain StableHLO only. It ends the process at anything else (CHLO, custom
calls), and it is slow: this is for one small sample that differs from eager.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import numpy
import torch
from torch import fx

from lowering import lower_graph
from lowering.hlo import dense_attribute
from lowering.mlir import ir, stablehlo
from tests.conformance.cases import KINDS, Case, Sample, samples_of
from tests.conformance.judging import difference, fault_of, observe
from tests.lowering.running import output_of
from tpu_compile import capture


def interpreted(graph_module: fx.GraphModule) -> capture.Compiled:
    """Return `graph_module` as a callable that the interpreter runs; mutations are not applied."""
    lowered = lower_graph(graph_module)
    if lowered.signature.uses_rng or lowered.signature.mutations:
        raise NotImplementedError("a graph that draws random numbers or writes to its inputs")

    def call(args: Sequence[Any]) -> list[Any]:
        signature = lowered.signature
        with lowered.module.context, ir.Location.unknown():
            operands = [
                dense_attribute(args[argument.placeholder].permute(argument.order))
                for argument in signature.arguments
                if argument.placeholder is not None
            ]
            arrays = [numpy.array(item) for item in stablehlo.eval_module(lowered.module, operands)]
        results = [
            torch.from_numpy(array).to(layout.spec.dtype).reshape(layout.physical.shape)
            for array, layout in zip(arrays, signature.results, strict=True)
        ]
        return [output_of(output, results, list(args)) for output in signature.outputs]

    return call


def verdict(case: Case, sample: Sample) -> str:
    """Return what XLA's result and the interpreter's have to say about each other and eager."""
    original = capture.compile_captured

    def compile_captured(
        graph: fx.GraphModule,
        inputs: Sequence[Any],
        compile_graph: capture.CompileGraph,
        stored: object = None,
    ) -> Callable[..., Any]:
        return original(graph, inputs, lambda lowered, kind: interpreted(lowered))

    expected = observe(sample, sample.function)
    by_xla = fault_of(case, sample, expected, "tpu")
    with mock.patch.object(capture, "compile_captured", compile_captured):
        torch._dynamo.reset()
        compiled = torch.compile(sample.function, backend="tpu", fullgraph=True)
        by_interpreter = difference(case, sample, observe(sample, compiled), expected)
    if by_xla is None:
        return "XLA's result is eager's"
    if by_interpreter is None:
        return f"the interpreter's result is eager's, so XLA is wrong: {by_xla}"
    return f"the lowering is wrong; by the interpreter: {by_interpreter}; by XLA: {by_xla}"


def main() -> None:
    """Print the verdict on the sample that the command line names."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.conformance.interpret",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("name")
    parser.add_argument("dtype")
    parser.add_argument("sample", type=int)
    arguments = parser.parse_args()
    case = Case(arguments.kind, arguments.name, arguments.dtype)
    print(verdict(case, dict(samples_of(case))[arguments.sample]))


if __name__ == "__main__":
    main()
