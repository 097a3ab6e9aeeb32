"""Saved random states: for what a checkpointed function draws again when it is recomputed.

Torch's partitioner saves the state of its own generator (`run_and_save_rng_state`) in the forward
graph and sets it (`run_with_rng_state`) in the backward graph. In compiled graphs the state is a
key of ours, 8 bytes, drawn from the key of the forward call.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from lowering.registry import unsupported_reason
from lowering.subgraphs import RNG_STATE_BYTES

higher_order = torch.ops.higher_order


def give_keys_for_states(graph_module: fx.GraphModule, platform: str) -> None:
    """Change the fake states in the graph's metadata to keys where they will be compiled.

    An op without a lowering keeps torch's state, in the forward and in the backward graph alike.
    The partitioner leaves no metadata on the nodes it makes, so it is filled in here.
    """
    for node in graph_module.graph.nodes:
        if node.target is higher_order.run_and_save_rng_state:
            states = [user for user in node.users if _index(user) == 0]
            state = states[0].meta["val"] if states else torch.empty((0,), dtype=torch.uint8)
            node.meta["val"] = (state, _results(node.args[0], node.args[1:], node.kwargs))
            _fill_results(node)
            if unsupported_reason(node, platform) is None:
                key = _key(state)
                node.meta["val"] = (key, node.meta["val"][1])
                for user in states:
                    user.meta["val"] = key
        elif node.target is higher_order.run_with_rng_state:
            node.meta["val"] = _results(node.args[1], node.args[2:], node.kwargs)
            if unsupported_reason(node, platform) is None:
                node.args[0].meta["val"] = _key(node.args[0].meta["val"])


def _index(node: fx.Node) -> Any:
    return node.args[1] if node.target is operator.getitem else None


def _fill_results(node: fx.Node) -> None:
    """Set the metadata of the node that takes the op's results out of the pair with the state."""
    for user in node.users:
        if _index(user) == 1:
            user.meta["val"] = node.meta["val"][1]


def _results(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return the fake results of `op`."""
    args, kwargs = fx.node.map_arg((tuple(args), kwargs), lambda node: node.meta["val"])
    modes = [x.fake_mode for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, FakeTensor)]
    with modes[0] if modes else contextlib.nullcontext():
        return op(*args, **kwargs)


def _key(state: torch.Tensor) -> torch.Tensor:
    fake = state.fake_mode if isinstance(state, FakeTensor) else contextlib.nullcontext()
    with fake:
        return torch.empty((RNG_STATE_BYTES,), dtype=torch.uint8)
