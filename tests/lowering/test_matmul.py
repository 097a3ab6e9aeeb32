"""Matrix products against eager PyTorch."""

from __future__ import annotations

import math

import pytest
import torch

from lowering import LoweringOptions, lower_graph
from tests.lowering.running import check, run, trace

aten = torch.ops.aten
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.complex64)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return random data of any dtype, integers over the whole positive range."""
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(*shape, dtype=dtype)
    return torch.randint(0, torch.iinfo(dtype).max, shape, dtype=dtype)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_products(dtype: torch.dtype) -> None:
    a, b, batch = (rand(*shape, dtype=dtype) for shape in ((5, 7), (7, 3), (2, 3, 4)))
    check(
        lambda a, b, left, right: (aten.mm(a, b), aten.bmm(left, right)),
        a.t().contiguous().t(),
        b,
        batch,
        batch.transpose(1, 2),
    )


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.uint8])
def test_products_with_an_added_tensor(dtype: torch.dtype) -> None:
    integer = not (dtype.is_floating_point or dtype.is_complex)
    beta, alpha = (2.7, 3) if integer else (0.5, -1.25)
    shapes = {"row": (3,), "full": (5, 3), "a": (5, 7), "b": (7, 3), "one": (1,), "vector": (7,)}
    batches = {"left": (2, 5, 4), "right": (2, 4, 3)}
    data = {name: rand(*shape, dtype=dtype) for name, shape in {**shapes, **batches}.items()}
    check(
        lambda row, full, a, b, one, vector, left, right: (
            aten.addmm(row, a, b),
            aten.addmm(full, a, b, beta=beta, alpha=alpha),
            aten.addmv(one, a, vector, beta=beta, alpha=alpha),
            aten.addbmm(full, left, right, beta=beta, alpha=alpha),
        ),
        *data.values(),
    )


def test_a_factor_of_zero_drops_nan() -> None:
    nan, ones = torch.full((2, 2), math.nan), torch.ones(2, 2)
    check(
        lambda nan, ones, nan_row, row, batch: (
            aten.addmm(nan, ones, ones, beta=0),
            aten.addmm(ones, nan, ones, alpha=0),
            aten.addmm(nan, nan, nan, beta=0, alpha=0),
            aten.addmv(nan_row, ones, row, beta=0),
            aten.addbmm(nan, batch, batch, beta=0),
            aten.addmm(nan, ones, ones),
        ),
        nan,
        ones,
        nan[0],
        ones[0],
        ones[None],
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_empty_dims(dtype: torch.dtype) -> None:
    batch = torch.zeros(4, 2, 0, dtype=dtype)
    check(
        lambda tall, wide, left, right, no_left, no_right, row, one, none: (
            aten.mm(tall, wide),
            aten.mm(wide, tall),
            aten.bmm(left, right),
            aten.bmm(no_left, no_right),
            aten.addmm(row, tall, wide, beta=3),
            aten.addmv(row, tall, none, beta=3),
            aten.addbmm(one, left, right, beta=2),
        ),
        torch.zeros(2, 0, dtype=dtype),
        torch.zeros(0, 2, dtype=dtype),
        batch,
        batch.transpose(1, 2),
        batch[:0],
        batch[:0].transpose(1, 2),
        torch.arange(1, 3, dtype=dtype),
        torch.ones(1, dtype=dtype),
        torch.zeros(0, dtype=dtype),
    )


def test_infinities_and_nan_flow() -> None:
    a = torch.tensor([[math.inf, 1.0], [math.nan, 0.0], [-math.inf, math.inf]])
    check(lambda a, b: (aten.mm(a, b), aten.mm(b, a)), a, a.t())


def test_int_mm() -> None:
    a = torch.randint(-128, 128, (33, 64), dtype=torch.int8)
    b = torch.randint(-128, 128, (64, 16), dtype=torch.int8)
    check(lambda a, b: aten._int_mm(a, b), a, b)


def test_half_precision_accumulates_in_float32() -> None:
    ones = torch.ones(1, 4096, dtype=torch.bfloat16)
    (total,) = run(lambda a, b: aten.mm(a, b), ones, ones.t())
    assert total.item() == 4096


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_trilinear(dtype: torch.dtype) -> None:
    check(
        lambda first, middle, last: (
            aten._trilinear(first, middle, last, [1, 3], [0], [1, 2], [2, 3]),
            aten._trilinear(first, middle, last, [1, 3], [0], [1, 2], [-2], 2),
            aten._trilinear(first, middle, last, [1, 3], [0], [1, 2], []),
        ),
        rand(3, 4, dtype=dtype),
        rand(6, 4, 5, dtype=dtype),
        rand(3, 5, dtype=dtype),
    )


def merged_products(
    x: torch.Tensor, grad: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Return products of matrices whose rows are merged dims, as `linear` and its gradient have."""
    rows, rows_grad = aten.view(x, [-1, x.size(-1)]), aten.view(grad, [-1, grad.size(-1)])
    return (
        aten.addmm(bias, rows, weight.t()),
        aten.addmm(rows_grad, rows, weight.t(), beta=2, alpha=0.5),
        aten.mm(rows_grad.t(), rows),
        aten.mm(rows_grad, weight),
        aten.mm(rows, rows.t()),
    )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("lead", [(2, 3), (1, 6), (2, 1, 3), (0, 3)])
def test_products_of_merged_rows(dtype: torch.dtype, lead: tuple[int, ...]) -> None:
    shapes = ((*lead, 5), (*lead, 4), (4, 5), (4,))
    check(merged_products, *[rand(*shape, dtype=dtype) for shape in shapes])


def test_merged_rows_that_do_not_match() -> None:
    check(
        lambda a, b: aten.mm(aten.view(a, [6, 4]).t(), aten.view(b, [6, 5])),
        rand(2, 3, 4),
        rand(3, 2, 5),
    )


def test_products_are_taken_before_rows_are_merged() -> None:
    shapes = ((2, 3, 5), (2, 3, 4), (4, 5), (4,))
    graph = trace(merged_products, *[rand(*shape) for shape in shapes])
    text = lower_graph(graph, options=LoweringOptions(platform="tpu")).text()
    products = [line.partition(" : ")[2] for line in text.splitlines() if "dot_general" in line]
    assert len(products) == 5
    assert all(product.startswith("(tensor<2x3x") for product in products)
