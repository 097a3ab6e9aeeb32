"""Core ATen overloads that have no rule: AOTAutograd makes them functional or takes them apart."""

from __future__ import annotations

import pytest
import torch

from tests.tpu_compile.comparing import STRICT, assert_same_call, compiled

aten = torch.ops.aten


def test_atan2_out_writes_to_its_buffer() -> None:
    x = torch.tensor([0.0, -0.0, 1.0, float("nan"), float("-inf")])
    y = torch.tensor([-0.0, -1.0, float("inf"), 2.0, float("-inf")])
    buffer = torch.full((5,), 7.0)
    expected = torch.atan2(x, y)
    result = compiled(lambda x, y, out: aten.atan2.out(x, y, out=out))(x, y, buffer)
    assert result is buffer
    torch.testing.assert_close(buffer, expected, equal_nan=True)
    assert torch.equal(buffer.signbit(), expected.signbit())


def test_native_batch_norm_updates_its_statistics() -> None:
    def normalize(x, weight, bias, mean, variance):  # type: ignore[no-untyped-def]
        return aten._native_batch_norm_legit.default(
            x, weight, bias, mean, variance, True, 0.25, 1e-3
        )

    shapes = torch.randn(3), torch.randn(3), torch.randn(3), torch.rand(3)
    assert_same_call(normalize, torch.randn(4, 3, 5) * 3 + 1, *shapes)


@pytest.mark.parametrize("size", [([7, 3], None), (None, [1.7, 0.6])])
def test_upsample_by_size_or_by_factors(size: tuple[object, object]) -> None:
    def upsample(x):  # type: ignore[no-untyped-def]
        return (
            aten.upsample_bilinear2d.vec(x, size[0], False, size[1]),
            aten.upsample_bilinear2d.vec(x, size[0], True, size[1]),
            aten.upsample_nearest2d.vec(x, size[0], size[1]),
        )

    assert_same_call(upsample, torch.randn(2, 3, 5, 6), tolerance=3e-6)


def test_resize_reads_memory_in_order() -> None:
    """Dynamo breaks at the method `resize_`, with every backend; the overload compiles."""
    aten = torch.ops.aten

    def resize(x):  # type: ignore[no-untyped-def]
        transposed = (x + 1).t()
        return (
            aten.resize_.default(x + 1, [2, 3]) * 2,
            aten.resize.default(transposed, [2, 3]),
            aten.resize.default(x, [0, 5]),
            # The fifth row is uninitialized in eager.
            aten.resize.default(x, [5, 3])[:4],
        )

    x = torch.randn(4, 3)
    for ours, eager in zip(compiled(resize)(x), resize(x), strict=True):
        torch.testing.assert_close(ours, eager, rtol=0, atol=0)


def test_sizes_are_numbers_of_the_call() -> None:
    def sizes(x):  # type: ignore[no-untyped-def]
        return x * (x.numel() + x.stride(0) + x.size(1))

    function = torch.compile(sizes, backend="tpu", fullgraph=True, dynamic=True, options=STRICT)
    for x in (torch.randn(4, 3), torch.randn(5, 7)[1:]):
        torch.testing.assert_close(function(x), sizes(x))
