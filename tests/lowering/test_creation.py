import math

import pytest
import torch

from tests.lowering.running import check, run


def test_constants():
    check(
        lambda x: [
            torch.full((2, 3), 1.5),
            torch.full((), 7),
            torch.full((0, 2), 1, dtype=torch.uint8),
            torch.full((2,), -math.inf, dtype=torch.bfloat16),
            torch.full((2,), math.nan),
            torch.full((2,), True),
            torch.full((2,), 2, dtype=torch.bool),
            torch.full((2,), 1 + 2j),
            torch.full((2,), torch.iinfo(torch.int64).min),
            torch.full((2,), 255, dtype=torch.uint8),
            torch.full_like(x, 2),
            torch.full_like(x, 2.7, dtype=torch.int32),
            torch.zeros(3),
            torch.ones_like(x),
            x.new_zeros(2),
            x.new_full((2,), 3),
            torch.scalar_tensor(3.5),
            torch.scalar_tensor(3, dtype=torch.int32),
            torch.tensor(2.5, dtype=torch.float16) + 0,
        ],
        torch.rand(3, 2).t(),
    )


def test_empty_tensors_have_shape_and_dtype():
    outputs = run(
        lambda x: [
            torch.empty(2, 3, dtype=torch.bfloat16),
            torch.empty_like(x),
            x.new_empty(2),
            torch.empty_strided((2, 3), (1, 2)),
            torch.ops.aten.empty_permuted.default((2, 3), (1, 0)),
            torch.ops.aten.new_empty_strided.default(x, (4,), (1,)),
        ],
        torch.rand(2, 2).double(),
    )
    assert [(tuple(output.shape), output.dtype) for output in outputs] == [
        ((2, 3), torch.bfloat16),
        ((2, 2), torch.float64),
        ((2,), torch.float64),
        ((2, 3), torch.float32),
        ((2, 3), torch.float32),
        ((4,), torch.float64),
    ]


def test_arange():
    check(
        lambda: [
            torch.arange(5),
            torch.arange(0),
            torch.arange(3, -4, -2),
            torch.arange(2**40, 2**40 + 3),
            torch.arange(5, dtype=torch.uint8),
            torch.arange(1, 2, 0.25),
            torch.arange(5.0),
            torch.arange(0.0, 1.0, 0.1),
            torch.arange(5, dtype=torch.bfloat16),
            torch.arange(0, 1000, 3, dtype=torch.float16),
            torch.arange(1.5, 6.5, 1.2, dtype=torch.int64),
            torch.arange(0.0, 1.0, 0.1, dtype=torch.float64),
            torch.arange(7, dtype=torch.int32),
        ]
    )


def test_ranges_from_decompositions():
    check(
        lambda: [
            torch.linspace(-1, 1, 7),
            torch.logspace(0, 2, 3),
        ]
    )


@pytest.mark.parametrize("offset", [-4, -2, -1, 0, 1, 2, 5])
def test_triangle_indices(offset):
    sizes = [(3, 3), (2, 5), (5, 2), (1, 1), (4, 7)]
    check(
        lambda: [
            function(*size, offset)
            for size in sizes
            for function in (torch.tril_indices, torch.triu_indices)
        ]
    )


def test_triangle_indices_without_entries():
    check(
        lambda: [
            torch.tril_indices(0, 3),
            torch.triu_indices(3, 0),
            torch.tril_indices(4, 4, dtype=torch.int32),
        ]
    )
