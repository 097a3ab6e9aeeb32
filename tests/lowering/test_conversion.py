import math

import pytest
import torch

from tests.lowering.running import check, run

DTYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.filterwarnings("ignore:Casting complex values")
def test_casts(dtype):
    values = torch.tensor([0, 1, 3, 100, 70], dtype=torch.float64).to(dtype)
    check(lambda x: [x.to(other) for other in DTYPES], values)


def test_casts_of_hard_values():
    check(
        lambda x, y, i: [
            x.bool(),
            x.double(),
            x.bfloat16(),
            y.int(),
            y.long(),
            y.to(torch.uint8),
            y.to(torch.int8),
            i.int(),
            i.to(torch.uint8),
            i.float(),
            i.half(),
        ],
        torch.tensor([math.nan, math.inf, -math.inf, -0.0, 1e9]),
        torch.tensor([-0.0, 300.0, -1.5, 2.7, 1e9]),
        torch.tensor([2**40 + 3, -1, 255, 256, -129]),
    )


def test_cast_to_float8():
    check(
        lambda x: [x.to(torch.float8_e4m3fn).float(), x.to(torch.float8_e5m2).float()],
        torch.tensor([0.0, 0.3, -1.7, 100.0]),
    )


def test_copies():
    check(
        lambda a, b: [
            a.clone(),
            torch.ops.aten.alias.default(a),
            a.detach() + 0,
            torch.ops.aten.copy.default(a, b),
            torch.ops.aten.copy.default(a, b.to(torch.int64)),
            torch.ops.aten.lift_fresh_copy.default(a),
        ],
        torch.rand(2, 3),
        torch.rand(1, 3).double(),
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (torch.float32, torch.int32),
        (torch.int32, torch.float32),
        (torch.float32, torch.uint8),
        (torch.uint8, torch.int32),
        (torch.int64, torch.int16),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.bfloat16),
        (torch.bool, torch.uint8),
        (torch.uint8, torch.bool),
        (torch.complex64, torch.float32),
        (torch.float32, torch.complex64),
        (torch.complex64, torch.int64),
        (torch.int8, torch.uint8),
    ],
)
def test_views_of_bits(old, new):
    values = torch.arange(16, dtype=torch.float32).reshape(2, 8)
    values = values.remainder(2).to(old) if new is torch.bool else values.to(old)
    check(lambda x: x.view(new).clone(), values)


def test_view_of_a_0d_tensor():
    check(lambda x: x.view(torch.int32).clone(), torch.tensor(1.5))


def test_float8_e4m3fn_saturates():
    values = [1000.0, 470.0, 448.0, -1e9, math.inf, -math.inf, math.nan, 0.3, -0.0]
    for dtype in (torch.float32, torch.bfloat16):
        inputs = torch.tensor(values, dtype=dtype)
        (ours,) = run(lambda x: x.to(torch.float8_e4m3fn), inputs)
        eager = inputs.to(torch.float8_e4m3fn)
        assert torch.equal(ours.view(torch.uint8) & 127, eager.view(torch.uint8) & 127)


def test_float8_to_float8():
    bits = torch.arange(256, dtype=torch.uint8)
    dtypes = [
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.float8_e4m3fnuz,
        torch.float8_e5m2fnuz,
    ]
    for source in dtypes:
        check(lambda x: [x.to(dtype).float() for dtype in dtypes], bits.view(source))
