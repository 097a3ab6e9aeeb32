"""The work that is timed: call overhead, a GPT-2 forward, a training step, the first call."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch import nn

from benchmarks import peers
from benchmarks.harness import Result, Timing, interleave
from benchmarks.lowering_speed import lowering_speed
from benchmarks.padding import mask_cost


class Adder(nn.Module):
    """Adds its parameters to its input, one after the other: almost no work for its arguments."""

    def __init__(self, parameters: int) -> None:
        super().__init__()
        self.offsets = nn.ParameterList(nn.Parameter(torch.ones(8)) for _ in range(parameters))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return `x` plus every parameter; shape `[8]`."""
        for offset in self.offsets:
            x = x + offset
        return x


class Gpt2(nn.Module):
    """GPT-2 of transformers without a cache: token ids `[batch, time]` to logits."""

    def __init__(self, layers: int, width: int, positions: int) -> None:
        super().__init__()
        import transformers

        transformers.logging.set_verbosity_error()
        config = transformers.GPT2Config(
            n_layer=layers,
            n_embd=width,
            n_head=width // 64,
            n_positions=positions,
            use_cache=False,
        )
        self.model = transformers.GPT2LMHeadModel(config)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits `[batch, time, vocabulary]`."""
        return self.model(input_ids=tokens).logits  # type: ignore[no-any-return]


def _overhead(parameters: int, *, quick: bool) -> list[Result]:
    names = ["tpu_compile", "eager", "inductor", "aot no-op", "jax.jit", "torch-xla2"]
    with torch.no_grad():
        calls, left_out = peers.make_calls(Adder(parameters), [torch.ones(8)], names)
        timings = interleave(calls, rounds=3 if quick else 21)
    return [Result(f"call overhead, {parameters} parameters", timings, left_out)]


def overhead_of_one(*, quick: bool) -> list[Result]:
    """Time one call with one parameter of 8 elements, without gradients."""
    return _overhead(1, quick=quick)


def overhead_of_hundred(*, quick: bool) -> list[Result]:
    """Time one call with 100 parameters of 8 elements, without gradients."""
    return _overhead(100, quick=quick)


def _gpt2(*, quick: bool) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    layers, width, batch, length = (2, 128, 2, 32) if quick else (6, 512, 4, 128)
    return Gpt2(layers, width, 256).eval(), torch.randint(0, 50257, (batch, length))


def gpt2_forward(*, quick: bool) -> list[Result]:
    """Time the forward of GPT-2 (6 layers, 512 wide, batch 4, 128 tokens), without gradients."""
    module, tokens = _gpt2(quick=quick)
    with torch.no_grad():
        calls, left_out = peers.make_calls(
            module, [tokens], ["tpu_compile", "eager", "inductor", "jax.jit", "torch-xla2"]
        )
        timings = interleave(calls, rounds=2 if quick else 11)
    return [Result("GPT-2 forward", timings, left_out)]


def gpt2_training(*, quick: bool) -> list[Result]:
    """Time forward and backward of the same GPT-2."""
    module, tokens = _gpt2(quick=quick)
    runs: dict[str, Callable[[], object]] = {}
    for name in ("tpu_compile", "eager", "inductor"):
        forward = peers.PEERS[name](module, [tokens])

        def step(forward: Callable[[], object] = forward) -> None:
            module.zero_grad()
            forward().logsumexp(-1).mean().backward()  # type: ignore[attr-defined]

        step()
        runs[name] = step
    timings = interleave(runs, rounds=2 if quick else 11)
    return [Result("GPT-2 forward and backward", timings)]


def first_call(*, quick: bool) -> list[Result]:
    """Time from `torch.compile` to the first result of GPT-2 in a fresh process each time."""
    timings = {}
    left_out = {}
    rounds = 1 if quick else 3
    samples: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name in ("tpu_compile", "inductor", "jax.jit"):
            if name in left_out:
                continue
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.first_call", name, str(int(quick))],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                left_out[name] = (done.stderr.strip().splitlines() or ["no message"])[-1][:100]
            else:
                samples.setdefault(name, []).append(json.loads(done.stdout.splitlines()[-1]))
    for name, values in samples.items():
        values.sort()
        timings[name] = Timing(values[len(values) // 2], values[-1] - values[0])
    return [Result("first call of GPT-2 in a new process", timings, left_out)]


def time_first_call(name: str, *, quick: bool) -> float:
    """Return the seconds from handing the model to `name` to its first result."""
    module, tokens = _gpt2(quick=quick)
    with torch.no_grad():
        started = time.perf_counter()
        peers.PEERS[name](module, [tokens])()
        return time.perf_counter() - started


def device_op(*, quick: bool) -> list[Result]:
    """Time one cached op of the device `tpu`, run and recorded."""
    # Imported here: it makes `tpu` a device of torch, and torch-xla2 wants that place for its own.
    from benchmarks import device

    return device.one_op(quick=quick)


def device_training(*, quick: bool) -> list[Result]:
    """Time a training step of a small transformer on the device `tpu`, in each of its modes."""
    from benchmarks import device

    return device.training_step(quick=quick)


SUITES: dict[str, Callable[..., list[Result]]] = {
    "overhead-1": overhead_of_one,
    "overhead-100": overhead_of_hundred,
    "gpt2-forward": gpt2_forward,
    "gpt2-training": gpt2_training,
    "first-call": first_call,
    "lowering": lowering_speed,
    "masks": mask_cost,
    "device-op": device_op,
    "device-training": device_training,
}
