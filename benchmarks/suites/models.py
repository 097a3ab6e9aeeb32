"""Whole models: forward pass, training step, and generation with both kinds of cache."""

from __future__ import annotations

import functools

import torch

from benchmarks.peers import contest
from benchmarks.registry import Case, Settings, Suite
from benchmarks.results import Measured
from benchmarks.suites import decode
from benchmarks.training import WithLoss, step_contest
from benchmarks.zoo import MODELS


def _forward(name: str, settings: Settings) -> Measured:
    work = MODELS[name].work(quick=settings.quick)
    with torch.no_grad():
        return contest(work.module, work.inputs).timed(rounds=settings.rounds_or(11))


def _training(name: str, settings: Settings) -> Measured:
    work = MODELS[name].work(quick=settings.quick, training=True)
    steps = step_contest(WithLoss(work.module), [*work.inputs, work.targets])
    return steps.timed(rounds=settings.rounds_or(7))


SUITE = Suite(
    "models",
    (
        *(
            Case(
                f"{name}-forward",
                f"{model.title}, forward without gradients",
                functools.partial(_forward, name),
                limit=1200,
            )
            for name, model in MODELS.items()
        ),
        *(
            Case(
                f"{name}-training",
                f"{model.title}, forward, backward and AdamW",
                functools.partial(_training, name),
                limit=1800,
            )
            for name, model in MODELS.items()
        ),
        *decode.CASES,
    ),
)
