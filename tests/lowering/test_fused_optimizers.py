"""Fused optimizer steps and the loss scaler's ops against ATen's CPU kernels.

Called by their functional overloads: functionalization does not take the in-place ones with an
empty list, and `torch.optim` keeps Dynamo out of them. Variants run the decomposition in eager
PyTorch; one step of each op is compiled.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch._ops import OpOverload

from lowering.decompositions import decomposition_table
from tests.lowering.running import assert_same, check

aten = torch.ops.aten
SHAPES = ((3, 5), (), (17,))


def _tensors(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.randn(shape).to(dtype) for shape in SHAPES]


def _squares(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.rand(shape).to(dtype) for shape in SHAPES]


def _step_counts(first: float) -> list[torch.Tensor]:
    return [torch.tensor(first + i) for i in range(len(SHAPES))]


SCALES = {
    "unscaled": {},
    "scaled": {"grad_scale": torch.tensor(8.0), "found_inf": torch.tensor(0.0)},
    "overflow": {"grad_scale": torch.tensor(8.0), "found_inf": torch.tensor(1.0)},
}


RATE = {"default": 0.05, "tensor_lr": torch.tensor(0.05)}
ADAM = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
ADAGRAD = {"lr_decay": 0.01, "weight_decay": 0.1, "eps": 1e-10}


def _assert_decomposed(op: OpOverload, *args: Any, **kwargs: Any) -> None:
    """Assert that the decomposition gives the lists that `op` gives."""
    expected = op(*args, **kwargs)
    actual = decomposition_table()[op](*args, **kwargs)
    assert [len(group) for group in actual] == [len(group) for group in expected]
    for ours, eager in zip(itertools.chain(*actual), itertools.chain(*expected), strict=True):
        assert_same(ours, eager)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("rate", RATE)
@pytest.mark.parametrize("name", ["_fused_adam", "_fused_adamw"])
def test_adam(name: str, rate: str, scale: str) -> None:
    op = getattr(getattr(aten, name), rate)
    for amsgrad, decay, maximize in itertools.product((False, True), (0.0, 0.1), (False, True)):
        largest = _squares() if amsgrad else []
        lists = (_tensors(), _tensors(), _tensors(), _squares(), largest, _step_counts(1.0))
        options = {"amsgrad": amsgrad, "weight_decay": decay, "maximize": maximize}
        _assert_decomposed(op, *lists, lr=RATE[rate], **ADAM, **options, **SCALES[scale])


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("rate", RATE)
def test_sgd(rate: str, scale: str) -> None:
    op = getattr(aten._fused_sgd, rate)
    for momentum, nesterov, first in (
        (0.0, False, False),
        (0.9, False, True),
        (0.9, True, False),
        (0.9, False, False),
    ):
        _assert_decomposed(
            op,
            _tensors(),
            _tensors(),
            _tensors() if momentum else [],
            weight_decay=0.1,
            momentum=momentum,
            lr=RATE[rate],
            dampening=0.0 if nesterov else 0.5,
            nesterov=nesterov,
            maximize=first,
            is_first_step=first,
            **SCALES[scale],
        )


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("rate", RATE)
def test_adagrad(rate: str, scale: str) -> None:
    op = getattr(aten._fused_adagrad, rate)
    lists = (_tensors(), _tensors(), _squares(), _step_counts(3.0))
    for maximize in (False, True):
        _assert_decomposed(op, *lists, lr=RATE[rate], maximize=maximize, **ADAGRAD, **SCALES[scale])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_half_and_double_parameters(dtype: torch.dtype) -> None:
    lists = (_tensors(dtype), _tensors(dtype), _tensors(dtype), _squares(dtype), [])
    counts = [count.to(dtype) for count in _step_counts(2.0)]
    options = {"weight_decay": 0.1, "amsgrad": False, "maximize": False}
    _assert_decomposed(aten._fused_adamw.default, *lists, counts, lr=0.01, **ADAM, **options)


def test_a_compiled_step() -> None:
    def step(params: Any, grads: Any, means: Any, squares: Any, counts: Any, scales: Any) -> Any:
        options = {"weight_decay": 0.1, "maximize": False}
        return (
            aten._fused_adam(
                params,
                grads,
                means,
                squares,
                [],
                counts,
                lr=0.01,
                amsgrad=False,
                **ADAM,
                **options,
                **scales,
            ),
            aten._fused_sgd(
                params,
                grads,
                means,
                lr=0.1,
                momentum=0.9,
                dampening=0.0,
                nesterov=True,
                is_first_step=False,
                **options,
                **scales,
            ),
            aten._fused_adagrad(
                params, grads, squares, counts, lr=0.1, maximize=False, **ADAGRAD, **scales
            ),
        )

    lists = (_tensors(), _tensors(), _tensors(), _squares(), _step_counts(1.0))
    check(step, *lists, SCALES["scaled"])


def test_unscaling_finds_what_is_not_finite() -> None:
    def unscale(tensors: Any, found: torch.Tensor, scale: torch.Tensor) -> Any:
        copied, found = [tensor.clone() for tensor in tensors], found.clone()
        torch._amp_foreach_non_finite_check_and_unscale_(copied, found, scale)
        return copied, found

    zero, scale = torch.zeros(1), torch.tensor([0.125])
    check(unscale, _tensors(), zero, scale)
    check(unscale, _tensors(), torch.ones(1), torch.ones(1))
    check(unscale, _tensors(torch.float16), zero, scale)
    for bad in (torch.inf, -torch.inf, torch.nan):
        check(unscale, [torch.ones(3), torch.tensor([1.0, bad]), torch.ones(2)], zero, scale)


def test_scale_grows_after_an_interval_and_shrinks_after_an_overflow() -> None:
    def update(scale: torch.Tensor, tracker: torch.Tensor, found: torch.Tensor) -> Any:
        scale, tracker = scale.clone(), tracker.clone()
        torch._amp_update_scale_(scale, tracker, found, 2.0, 0.5, 3)
        return scale, tracker

    largest = torch.finfo(torch.float32).max
    for value, seen, found in ((8.0, 0, 0.0), (8.0, 2, 0.0), (8.0, 2, 1.0), (largest, 2, 0.0)):
        check(
            update, torch.tensor(value), torch.tensor(seen, dtype=torch.int32), torch.tensor(found)
        )
