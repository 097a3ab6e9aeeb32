"""Runs one op whose output sizes depend on data: a padded program, then a cut to the real sizes.

The rules are `lowering.sized`'s. A program is compiled for each new input shape, and for ops whose
size has no bound, for each new size.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from lowering.dtypes import TensorSpec
from lowering.sized import SIZED, Padded
from lowering.tracing import trace
from tpu_compile.executable import GraphExecutable
from tpu_compile.history import GraphName
from tpu_compile.options import CompileOptions
from tpu_compile.runtime.pjrt import Client


class SizedExecutable:
    """One such op, called with the arguments of its schema."""

    def __init__(
        self, node: fx.Node, *, name: GraphName, options: CompileOptions, client: Client
    ) -> None:
        self._rule = SIZED[node.target]  # type: ignore[index]
        self._gives_many = isinstance(node.meta["val"], (list, tuple))
        self._name = name
        self._options = options
        self._client = client
        self._programs: dict[Any, tuple[GraphExecutable, list[int | None]]] = {}
        self._lock = threading.Lock()

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the op's outputs at their real sizes."""
        leaves, structure = pytree.tree_flatten((list(args), dict(kwargs)))
        size: int | None = None
        if self._rule.measure is not None:
            (measured,) = self._run("measure", self._measure, leaves, structure, None)
            size = int(measured)
        results = self._run("build", self._build, leaves, structure, size)
        return tuple(results) if self._gives_many else results[0]

    def _measure(self, size: int | None, *args: Any, **kwargs: Any) -> tuple[torch.Tensor]:
        assert self._rule.measure is not None
        return (self._rule.measure(*args, **kwargs),)

    def _build(self, size: int | None, *args: Any, **kwargs: Any) -> Any:
        given = () if size is None else (size,)
        return self._rule.build(*given, *args, **kwargs)

    def _run(
        self,
        step: str,
        function: Callable[..., Any],
        leaves: list[Any],
        structure: Any,
        size: int | None,
    ) -> list[torch.Tensor]:
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        key = (
            step,
            size,
            structure,
            tuple(
                (tuple(leaf.shape), leaf.dtype) if isinstance(leaf, torch.Tensor) else repr(leaf)
                for leaf in leaves
            ),
        )
        with self._lock:
            if key not in self._programs:
                self._programs[key] = self._compile(function, leaves, structure, size)
            executable, dims = self._programs[key]
        results = iter(executable(tensors))
        outputs = []
        for dim in dims:
            value = next(results)
            outputs.append(value if dim is None else value.narrow(dim, 0, int(next(results))))
        return outputs

    def _compile(
        self, function: Callable[..., Any], leaves: list[Any], structure: Any, size: int | None
    ) -> tuple[GraphExecutable, list[int | None]]:
        """Return the program and, for each output, the dim that a count cuts (None: none does)."""
        dims: list[int | None] = []

        def on_tensors(*tensors: torch.Tensor) -> list[torch.Tensor]:
            given = iter(tensors)
            filled = [next(given) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
            args, kwargs = pytree.tree_unflatten(filled, structure)
            flat: list[torch.Tensor] = []
            dims.clear()
            for output in function(size, *args, **kwargs):
                dims.append(output.dim if isinstance(output, Padded) else None)
                flat.extend(output[:2] if isinstance(output, Padded) else [output])
            return flat

        specs = [
            TensorSpec(tuple(leaf.shape), leaf.dtype)
            for leaf in leaves
            if isinstance(leaf, torch.Tensor)
        ]
        graph = trace(on_tensors, specs)
        executable = GraphExecutable(
            graph, name=self._name, options=self._options, client=self._client
        )
        return executable, dims
