import math

import pytest
import torch

from tests.lowering.elementwise import check_each
from tests.lowering.running import check

INF, NAN = math.inf, math.nan
HARD = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -2.5, -3.0, 0.999, -10.3, 1e-3, 5.0]
FUNCTIONS = {name: getattr(torch, name) for name in ["erf", "erfc", "erfinv", "digamma"]}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_hard_values(dtype):
    tolerance = 1e-10 if dtype is torch.float64 else None
    check_each(FUNCTIONS, torch.tensor(HARD, dtype=dtype), tolerance=tolerance)


def test_lgamma():
    # Relative accuracy is lost at the zeros of the function, 1 and 2.
    check(torch.lgamma, torch.tensor([NAN, INF, -INF, 0.0, 1.0, 0.5, 2.0, -2.5, 1.3]))
    check(torch.lgamma, torch.tensor([30.0, 1e5, 1e-10, -10.3]))


def test_integers_and_shapes():
    functions = {**FUNCTIONS, "lgamma": torch.lgamma}
    for values in torch.tensor([3, 4, -2]), torch.tensor(0.3), torch.empty(0, 2):
        check_each(functions, values)


def test_zeta():
    orders = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 10.0, NAN, -1.0])
    starts = torch.tensor([0.0, 1.0, 2.5, -1.0, -1.5, 10.0])
    check_each({"zeta": torch.special.zeta}, orders[:, None].contiguous(), starts[None])
    check_each(
        {
            "start": lambda x: torch.special.zeta(x, 2.0),
            "order": lambda x: torch.special.zeta(2, x),
        },
        torch.tensor([1.5, 3.0]),
    )


def test_polygamma():
    functions = {str(n): lambda x, n=n: torch.polygamma(n, x) for n in range(5)}
    check_each(functions, torch.tensor([0.3, 1.0, 4.5, -0.5, -1.3, 20.0]), tolerance=1e-5)
    check_each(functions, torch.tensor([2, 5]), tolerance=1e-5)


def test_decomposed_relatives():
    x = torch.tensor([0.1, 0.5, 0.9])
    check(
        lambda x: [
            torch.special.xlog1py(x, x),
            torch.special.entr(x),
            torch.special.ndtr(x),
            torch.logit(x),
        ],
        x,
    )
