"""Runs one of a few functions compiled, in a process of its own; prints what it cost as JSON."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._dynamo.utils import counters

import tpu_compile


def inference() -> tuple[Any, Any]:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3)).eval()
    compiled = torch.compile(model, backend="tpu", fullgraph=True)
    x = torch.randn(5, 4)
    with torch.no_grad():
        return compiled(x), model(x)


def training() -> tuple[Any, Any]:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    reference = copy.deepcopy(model)
    compiled = torch.compile(model, backend="tpu", fullgraph=True)
    x = torch.randn(5, 4)

    def step(call: Callable[..., Any], owner: nn.Module) -> list[torch.Tensor]:
        call(x).square().mean().backward()
        gradients = [parameter.grad for parameter in owner.parameters()]
        return [gradient for gradient in gradients if gradient is not None] + list(owner.buffers())

    return step(compiled, model), step(reference, reference)


def views_and_writes() -> tuple[Any, Any]:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y.mul_(2)
        table = torch.arange(40.0).reshape(5, 8)
        return x.t(), (x @ table).t(), x[1:], y

    compiled = torch.compile(function, backend="tpu", fullgraph=True)
    x, y = torch.randn(3, 5), torch.ones(4)
    y_eager = y.clone()
    outputs = compiled(x, y)
    assert outputs[0].data_ptr() == x.data_ptr()
    assert outputs[3] is y
    return [*outputs, y], [*function(x, y_eager), y_eager]


def overlap() -> tuple[Any, Any]:
    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return a + b

    def inputs() -> tuple[torch.Tensor, torch.Tensor]:
        base = torch.arange(6.0)
        return (base[:4], base[2:]) if sys.argv[2] == "shared" else (base[:4].clone(), base[2:])

    return torch.compile(function, backend="tpu")(*inputs()), function(*inputs())


def offset() -> tuple[Any, Any]:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.as_strided((2,), (1,), 0) * 1

    start = int(sys.argv[2])
    x = torch.arange(10.0)[start : start + 4]
    return torch.compile(function, backend="tpu")(x), function(x)


def custom_op() -> tuple[Any, Any]:
    factor = float(sys.argv[2])
    with torch.library._scoped_library("warm_start", "DEF") as library:
        library.define("scale(Tensor x) -> Tensor")
        library.impl("scale", lambda x: x * factor, "CompositeImplicitAutograd")
        scale = torch.ops.warm_start.scale
        x = torch.ones(3)
        return torch.compile(lambda x: scale(x) + 1, backend="tpu")(x), scale(x) + 1


def dropout() -> tuple[Any, Any]:
    compiled = torch.compile(
        lambda x: torch.nn.functional.dropout(x, 0.5), backend="tpu", fullgraph=True
    )
    torch.manual_seed(3)
    first, second = compiled(torch.ones(1000)), compiled(torch.ones(1000))
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    return compiled(torch.ones(1000)), first


def dynamic() -> tuple[Any, Any]:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(0)

    compiled = torch.compile(function, backend="tpu", fullgraph=True, dynamic=True)
    inputs = [torch.randn(size) for size in (5, 9, 3)]
    return [compiled(x) for x in inputs], [function(x) for x in inputs]


def precision() -> tuple[Any, Any]:
    function = torch.mm
    a, b = torch.randn(4, 4), torch.randn(4, 4)
    options = {"matmul_precision": sys.argv[2]} if len(sys.argv) > 2 else {}
    compiled = torch.compile(lambda a, b: function(a, b), backend="tpu", options=options)
    return compiled(a, b), function(a, b)


def main() -> None:
    torch.manual_seed(0)
    name = sys.argv[1]
    if name.startswith("precompiled-"):
        torch._dynamo.config.caching_precompile = True
    actual, expected = globals()[name.removeprefix("precompiled-")]()
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    if torch._dynamo.config.caching_precompile:
        torch.compiler.save_cache_artifacts()
    stats = tpu_compile.stats()
    print(
        json.dumps(
            {
                "lowered": stats.lowered,
                "compiled": stats.xla_compiles,
                "from disk": stats.disk_hits,
                "hits": counters["aot_autograd"]["autograd_cache_hit"],
                "stored": counters["aot_autograd"]["autograd_cache_saved"],
                "dynamo hits": counters["dynamo_cache"]["dynamo_cache_hit"],
            }
        )
    )


if __name__ == "__main__":
    main()
