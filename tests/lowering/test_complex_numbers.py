import math

import torch

from tests.lowering.running import check

INF, NAN = math.inf, math.nan
NUMBERS = torch.tensor([1 + 2j, -0.5 + 0.1j, 3 - 1j, complex(INF, -1)])


def test_parts():
    check(
        lambda z: [
            torch.view_as_real(z) + 0,
            z.conj() * 2,
            torch.conj_physical(z),
            z.conj().resolve_conj(),
            z.angle(),
        ],
        NUMBERS,
    )


def test_building():
    check(
        lambda a, b, pairs: [
            torch.complex(a, b),
            torch.polar(a, b),
            torch.view_as_complex(pairs) + 0,
            torch.complex(a.double(), b.double()),
        ],
        torch.tensor([1.0, -0.5, 3.0]),
        torch.tensor([[0.3], [2.0]]),
        torch.rand(3, 2),
    )


def test_shapes():
    check(
        lambda z, empty: [torch.view_as_real(z) + 0, z.conj() + z, torch.view_as_real(empty) + 1],
        torch.tensor(1 + 2j),
        torch.empty(0, 2, dtype=torch.complex64),
    )


def test_angle_of_reals():
    check(
        lambda x, i: [x.angle(), i.angle()],
        torch.tensor([NAN, INF, -INF, 0.0, -0.0, -2.0, 3.0]),
        torch.tensor([-1, 0, 2]),
    )


def test_angle_on_the_axes():
    check(
        torch.angle,
        torch.tensor([complex(-1, 0.0), complex(-1, -0.0), complex(0, 1), complex(NAN, 1), 0j]),
    )


def test_nan_to_num_acts_on_each_part():
    check(
        lambda z: [
            torch.nan_to_num(z),
            torch.nan_to_num(z, nan=1.5, posinf=5, neginf=-3),
            torch.nan_to_num(z.conj().t(), nan=2.0),
        ],
        torch.tensor([[complex(NAN, INF), complex(1, -INF)], [complex(-INF, NAN), -0j]]),
    )
