import pytest
import torch

from tests.lowering.elementwise import check_each

aten = torch.ops.aten


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gamma(dtype):
    """Each of ATen's regions; a number at zero gives no NaN."""
    alphas = torch.tensor([0.05, 0.9, 3.0, 7.9, 8.1, 50.0, 200.0], dtype=dtype)[:, None]
    factors = torch.tensor([1e-3, 0.1, 0.5, 0.89, 0.91, 1.0, 1.09, 1.11, 2.0, 4.0], dtype=dtype)
    numbers = torch.cat([alphas * factors, torch.tensor([0.0, 0.79, 0.81]).expand(7, -1)], 1)
    alphas = alphas.expand_as(numbers).contiguous()
    check_each(
        {"gamma": aten._standard_gamma_grad},
        alphas,
        numbers.to(dtype),
        tolerance=2e-4 if dtype is torch.float32 else 1e-8,
        signed_zeros=False,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dirichlet(dtype):
    x = torch.tensor([1e-4, 0.01, 0.2, 0.4, 0.49, 0.5, 0.51, 0.7, 0.95, 0.999], dtype=dtype)
    alphas = torch.tensor([0.1, 1.0, 3.5, 7.0, 40.0, 300.0], dtype=dtype)
    betas = torch.tensor([0.2, 2.0, 5.9, 7.0, 41.0, 500.0], dtype=dtype)
    x, alpha, beta = (
        part.contiguous()
        for part in torch.broadcast_tensors(x[:, None, None], alphas[:, None], betas)
    )
    check_each(
        {"dirichlet": aten._dirichlet_grad},
        x,
        alpha,
        alpha + beta,
        tolerance=5e-3 if dtype is torch.float32 else 1e-7,
        signed_zeros=False,
    )
