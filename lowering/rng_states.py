"""Saved random states: for what a checkpointed function draws again when it is recomputed.

Torch's partitioner saves the state of its own generator (`run_and_save_rng_state`) in the forward
graph and sets it (`run_with_rng_state`) in the backward graph. In compiled graphs the state is a
key of ours, 8 bytes, drawn from the key of the forward call.
"""

from __future__ import annotations

import operator

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from lowering.registry import unsupported_reason
from lowering.subgraphs import RNG_STATE_BYTES

higher_order = torch.ops.higher_order


def give_keys_for_states(graph_module: fx.GraphModule, platform: str) -> None:
    """Change the fake states in the graph's metadata to keys where they will be compiled.

    An op without a lowering keeps torch's state, in the forward and in the backward graph alike.
    """
    for node in graph_module.graph.nodes:
        if node.target is higher_order.run_and_save_rng_state:
            if unsupported_reason(node, platform) is None:
                state, results = node.meta["val"]
                key = _key(state)
                node.meta["val"] = (key, results)
                for user in node.users:
                    if user.target is operator.getitem and user.args[1] == 0:
                        user.meta["val"] = key
        elif node.target is higher_order.run_with_rng_state:
            state_node = node.args[0]
            if unsupported_reason(node, platform) is None:
                state_node.meta["val"] = _key(state_node.meta["val"])


def _key(state: torch.Tensor) -> torch.Tensor:
    if isinstance(state, FakeTensor):
        with state.fake_mode:
            return torch.empty((RNG_STATE_BYTES,), dtype=torch.uint8)
    return torch.empty((RNG_STATE_BYTES,), dtype=torch.uint8)
