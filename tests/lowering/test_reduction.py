import math

import pytest
import torch

from tests.lowering.running import check

INF, NAN = math.inf, math.nan

# Eager warns where too few elements are left.
pytestmark = pytest.mark.filterwarnings(r"ignore:.*degrees of freedom")
DIMS = [None, 0, -1, (0, 2), (), (2, 0, 1)]


def reductions(x):
    """Return sums, means and products of `x` over several dims."""
    outputs = [x.sum(), x.prod()]
    outputs += [x.sum(dim, keepdim=keep) for dim in DIMS for keep in (False, True)]
    outputs += [x.prod(dim, keepdim=keep) for dim in (0, -1) for keep in (False, True)]
    if x.dtype.is_floating_point or x.dtype.is_complex:
        outputs += [x.mean(), *(x.mean(dim, keepdim=True) for dim in DIMS)]
    return outputs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.complex64])
def test_floats(dtype):
    check(reductions, (torch.rand(2, 3, 4) + 0.5).to(dtype))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool])
def test_integers_are_summed_in_int64(dtype):
    check(reductions, torch.randint(0, 2 if dtype is torch.bool else 100, (2, 3, 4)).to(dtype))


def test_hard_values():
    check(
        lambda x: [x.sum(0), x.mean(0), x.prod(0), x.sum(), torch.nansum(x)],
        torch.tensor([[NAN, INF, 1.0, INF, 2.0], [1.0, -INF, 0.0, 0.0, -0.0]]),
    )


def test_shapes():
    check(
        lambda number, empty, strided: [
            *(f(number, dim) for f in (torch.sum, torch.mean, torch.prod) for dim in (0, -1)),
            number.sum(()),
            *(f(empty) for f in (torch.sum, torch.mean, torch.prod)),
            *(f(empty, dim) for f in (torch.sum, torch.mean, torch.prod) for dim in (0, 1)),
            strided.sum(0),
        ],
        torch.tensor(2.5),
        torch.empty(0, 3),
        torch.rand(3, 4).t(),
    )


def test_dtype_argument():
    check(
        lambda x, i, h: [
            x.sum(dtype=torch.float64),
            x.sum(0, dtype=torch.int32),
            i.sum(0, dtype=torch.int32),
            i.mean(0, dtype=torch.float32),
            i.mean(dtype=torch.bfloat16),
            i.prod(0, dtype=torch.float32),
            h.sum(dtype=torch.float32),
            h.mean(0, dtype=torch.float32),
        ],
        torch.rand(3, 4) * 10,
        torch.arange(12).reshape(3, 4),
        torch.rand(3, 4).bfloat16(),
    )


def test_narrow_floats_are_summed_in_float32():
    check(
        lambda x: [x.sum(), x.mean(), x.var(), torch.linalg.vector_norm(x)],
        torch.full((4096,), 1.0, dtype=torch.bfloat16),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8, torch.bool])
def test_any_and_all(dtype):
    values = torch.tensor([[0, 1], [0, 0], [2, 3]]).to(dtype)
    check(
        lambda x, number: [
            *(f(x) for f in (torch.any, torch.all)),
            *(f(x, dim) for f in (torch.any, torch.all) for dim in (0, -1, (0, 1), ())),
            *(f(x, 1, keepdim=True) for f in (torch.any, torch.all)),
            number.any(),
            number.all(0),
        ],
        values,
        values.sum().to(dtype),
    )


def test_any_of_nan_and_of_nothing():
    check(
        lambda x, empty: [x.any(), x.all(), empty.any(), empty.all(), empty.any(0), empty.all(1)],
        torch.tensor([NAN, NAN]),
        torch.empty(0, 2),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_moments(dtype):
    check(
        lambda x: [
            x.var(),
            x.var(0),
            x.var((0, 2), keepdim=True),
            x.var(1, correction=0),
            x.var(1, correction=2.5),
            x.var(1, correction=3),
            x.var(1, correction=7),
            x.std(1),
            *torch.var_mean(x, 1),
            *torch.var_mean(x, (0, 1), correction=0, keepdim=True),
            *torch.std_mean(x),
        ],
        torch.randn(2, 3, 4, dtype=dtype),
    )


def test_moments_of_few_elements():
    check(
        lambda one, none, number: [
            one.var(), one.var(correction=0), none.var(), none.var(0), number.var(), number.var(0),
        ],
        torch.tensor([3.0]),
        torch.empty(0, 2),
        torch.tensor(2.0),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("order", [0, 1, 2, 3, 0.5, -1, -2, INF, -INF])
def test_vector_norm(order, dtype):
    check(
        lambda x: [
            torch.linalg.vector_norm(x, order),
            torch.linalg.vector_norm(x, order, 1),
            torch.linalg.vector_norm(x, order, (0, 1), keepdim=True),
        ],
        torch.tensor([[3, -4, 1.5], [2, 0.5, -1]]).to(dtype),
    )


def test_distance():
    check(
        lambda a, b: [
            *(torch.dist(a, b, order) for order in (0, 1, 2, 3, INF)),
            torch.dist(a.bfloat16(), b.bfloat16()),
        ],
        torch.randn(3, 4),
        torch.randn(4),
    )


def test_vector_norm_of_hard_values():
    check(
        lambda x, empty, number: [
            *(torch.linalg.vector_norm(x, order, 1) for order in (0, 1, 2, INF, -INF)),
            *(torch.linalg.vector_norm(empty, order) for order in (0, 1, 2)),
            torch.linalg.vector_norm(empty, INF, 1),
            torch.linalg.vector_norm(number, 2, 0),
            torch.linalg.vector_norm(x, dtype=torch.float64),
            torch.norm(number),
        ],
        torch.tensor([[NAN, 1.0], [INF, 0.0], [0.0, -0.0]]),
        torch.empty(0, 2),
        torch.tensor(-3.0),
    )


def test_decomposed_relatives():
    check(
        lambda x: [
            torch.logsumexp(x, 1, keepdim=True),
            torch.count_nonzero(x, 0),
            torch.nansum(x, 1),
            x.norm(),
        ],
        torch.randn(3, 4),
    )


def test_hash_tensor_reads_wide_bits() -> None:
    integers = torch.tensor([[5, -7, 0], [2**31 - 1, 5, 1]])
    floats = torch.tensor([[1.5, float("nan"), -0.0], [float("inf"), 1.5, 2.0]])

    def hashes(integers, floats):  # type: ignore[no-untyped-def]
        return [
            torch.hash_tensor(integers),
            torch.hash_tensor(integers.to(torch.uint8), dim=1, keepdim=True),
            torch.hash_tensor(integers > 0, dim=0),
            torch.hash_tensor(floats, dim=[0, 1]),
            torch.hash_tensor(floats[1:].bfloat16(), dim=-1),
            torch.hash_tensor(floats.double(), dim=[]),
        ]

    check(hashes, integers, floats)
