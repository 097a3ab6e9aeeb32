"""Which ATen overloads a passing case proves, and what each of them comes down to.

`python -m tests.conformance.evidence RESULTS...` gathers the results of runs into
`docs/op_evidence.json`, from which `lowering.coverage` makes its page.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import fx
from torch._ops import OpOverload
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from lowering.coverage import EVIDENCE
from tests.conformance.cases import Sample
from tpu_compile import capture

Overloads = dict[str, set[str]]
"""By overload: the targets that it became."""


class Recorder:
    """Notes, while it is active, every op that reaches the backend, before decomposition."""

    def __init__(self) -> None:
        self.found: Overloads = defaultdict(set)
        self._patch: Any = None

    def __enter__(self) -> Recorder:
        original = capture.compile_captured

        def compile_captured(
            graph: fx.GraphModule,
            inputs: Sequence[Any],
            compile_graph: capture.CompileGraph,
            stored: object = None,
        ) -> Callable[..., Any]:
            def compile_noted(lowered: fx.GraphModule, kind: str) -> capture.Compiled:
                self._note(lowered)
                return compile_graph(lowered, kind)

            return original(graph, inputs, compile_noted)

        self._patch = mock.patch.object(capture, "compile_captured", compile_captured)
        self._patch.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._patch.stop()

    def _note(self, graph: fx.GraphModule) -> None:
        for node in graph.graph.nodes:
            if isinstance(node.target, OpOverload):
                before = node.meta.get("original_aten")
                before = before if isinstance(before, OpOverload) else node.target
                self.found[str(before)].add(str(node.target))

    def note_call(self, sample: Sample) -> None:
        """Add the ops that the call itself names: composites, in-place and `out=` forms.

        What reaches the backend has lost them. If the call is one such op, all that was noted
        before is what it came down to.
        """
        named = named_overloads(sample)
        into = {target for targets in self.found.values() for target in targets}
        for overload in named:
            if overload not in self.found:
                self.found[overload] |= into if len(named) == 1 else set()


def named_overloads(sample: Sample) -> set[str]:
    """Return the overloads that a call makes above autograd; none if it cannot be traced there."""
    own = sample.copy()
    leaves, spec = pytree.tree_flatten((own.args, own.kwargs))
    tensors = {i: leaf for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)}

    def call(*given: torch.Tensor) -> Any:
        filled = list(leaves)
        for index, tensor in zip(tensors, given, strict=True):
            filled[index] = tensor
        args, kwargs = pytree.tree_unflatten(filled, spec)
        return own.function(*args, **kwargs)

    try:
        graph = make_fx(call, pre_dispatch=True)(*tensors.values())
    except Exception:
        # Evidence only: an untraceable call proves nothing about the ops that it names.
        return set()
    targets = (node.target for node in graph.graph.nodes)
    return {str(target) for target in targets if isinstance(target, OpOverload)}


def gather(paths: Sequence[Path]) -> dict[str, Any]:
    """Return the evidence of result files: by overload, the dtypes proven and what it becomes."""
    dtypes: dict[str, set[str]] = defaultdict(set)
    into: Overloads = defaultdict(set)
    for path in paths:
        for line in path.read_text().splitlines():
            result = json.loads(line)
            if result["failures"] or not result["passed"]:
                continue
            for overload, targets in result["overloads"].items():
                dtypes[overload].add(result["case"][2])
                into[overload].update(targets)
    return {
        overload: {"dtypes": sorted(dtypes[overload]), "into": sorted(into[overload])}
        for overload in sorted(dtypes)
    }


if __name__ == "__main__":
    found = gather([Path(argument) for argument in sys.argv[1:]])
    lines = [f"{json.dumps(overload)}: {json.dumps(proof)}" for overload, proof in found.items()]
    EVIDENCE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{len(found)} overloads")
