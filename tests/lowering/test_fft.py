"""Discrete Fourier transforms."""

from __future__ import annotations

import pytest
import torch

from lowering import LoweringOptions, lower_graph
from tests.lowering.running import check, run, trace

aten = torch.ops.aten


def random(*shape, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex(dtype):
    def function(x, wide):
        return [
            *(
                aten._fft_c2c(x, [1], mode, forward)
                for mode in range(3)
                for forward in (True, False)
            ),
            aten._fft_c2c(x, [2, 0], 1, True),
            aten._fft_c2c(x, [0, 1, 2], 0, False),
            aten._fft_c2c(x, [], 0, True),
            torch.fft.fftn(wide, dim=(-1, 0, 3, 1)),
            torch.fft.ifftn(wide, norm="ortho"),
            torch.fft.fft(x[..., :1]),
            torch.fft.fft(x, n=7),
            torch.fft.ifft(x, n=3, dim=0, norm="forward"),
        ]

    check(
        function,
        random(3, 4, 5, dtype=dtype),
        random(2, 3, 2, 3, 4, dtype=dtype),
        tolerance=1e-5 if dtype is torch.complex64 else None,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_real(dtype):
    def function(x, wide):
        return [
            *(
                aten._fft_r2c(x, [2], mode, onesided)
                for mode in range(3)
                for onesided in (True, False)
            ),
            aten._fft_r2c(x, [2, 0], 1, True),
            aten._fft_r2c(x, [0, 2, 1], 2, False),
            torch.fft.rfftn(wide, dim=(0, -1, 3, 1)),
            torch.fft.ihfft(x),
            torch.fft.rfft(x[..., :1]),
            torch.fft.fft(torch.arange(6)),
        ]

    check(
        function,
        random(3, 4, 5, dtype=dtype),
        random(2, 3, 2, 3, 4, dtype=dtype),
        tolerance=1e-5 if dtype is torch.float32 else None,
    )


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_to_real(dtype):
    """Of spectra that no real signal has, too."""

    def function(x, wide):
        return [
            *(aten._fft_c2r(x, [2], mode, size) for mode in range(3) for size in (8, 9)),
            aten._fft_c2r(x, [2, 0], 1, 4),
            aten._fft_c2r(x, [0, 2, 1], 2, 6),
            torch.fft.irfftn(wide, dim=(0, -1, 3, 1)),
            torch.fft.irfft(x, n=5),
            torch.fft.irfft(x, n=1),
            torch.fft.hfft(x),
        ]

    check(
        function,
        random(3, 4, 5, dtype=dtype),
        random(2, 3, 2, 3, 4, dtype=dtype),
        tolerance=1e-5 if dtype is torch.complex64 else None,
    )


def test_infinities_stay_in_their_part():
    """The factor is real: no infinity times a zero imaginary part."""
    check(
        lambda x: [torch.view_as_real(torch.fft.ifft(x, norm="forward"))],
        torch.tensor([[complex(torch.inf, 0)], [1.0]]),
    )


def test_empty_batches():
    """Eager's library refuses them for most transforms; the meta function gives the shapes."""
    results = run(
        lambda z, x: [torch.fft.fft(z), torch.fft.rfft(x), torch.fft.irfft(z)],
        random(0, 4, dtype=torch.complex64),
        random(0, 4),
    )
    assert [(tuple(result.shape), result.dtype) for result in results] == [
        ((0, 4), torch.complex64),
        ((0, 3), torch.complex64),
        ((0, 6), torch.float32),
    ]


def test_builds_for_tpu():
    graph = trace(lambda x: [torch.fft.irfft(torch.fft.rfft(x))], random(2, 8))
    assert "stablehlo.fft" in lower_graph(graph, options=LoweringOptions(platform="tpu")).text()
