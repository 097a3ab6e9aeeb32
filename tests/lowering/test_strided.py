"""as_strided and its scatter."""

from __future__ import annotations

import pytest
import torch

from lowering import lower_graph
from lowering.errors import UnsupportedOpError
from tests.lowering.running import check, trace
from tests.lowering.test_views import numbers, used

WINDOWS = [
    ((4, 6), (6, 1), 0),
    ((6, 4), (1, 6), 0),
    ((2, 3), (12, 2), 3),
    ((3, 2), (2, 12), 1),
    ((3, 5), (0, 2), 2),
    ((5, 4), (2, 1), 4),
    ((2, 2, 2), (3, 3, 1), 0),
    ((), (), 7),
    ((1, 3), (100, 7), 1),
    ((0, 3), (1, 1), 0),
    ((3, 1, 2), (8, 1, 4), 0),
]


@pytest.mark.parametrize("window", WINDOWS)
def test_as_strided(window):
    def function(x):
        y = x + 1
        return [
            used(y.as_strided(*window)),
            used(y.t().as_strided(*window)),
            used((x.t() + 1).as_strided(*window)),
        ]

    check(function, numbers(4, 6))


@pytest.mark.parametrize("window", [window for window in WINDOWS if 0 not in window[1]][:5])
def test_as_strided_scatter(window):
    def function(x, src):
        return [
            torch.as_strided_scatter(x + 1, src, *window),
            torch.as_strided_scatter(x.t() + 1, src, *window),
        ]

    check(function, numbers(4, 6), -numbers(*window[0]))


def test_offset_of_a_view():
    def function(x):
        y = (x + 1)[1:]
        return [used(y.as_strided((2, 2), (6, 1))), used(y.as_strided((2, 2), (6, 1), 7))]

    check(function, numbers(4, 6))


def test_gaps_are_refused():
    graph = trace(
        lambda x: [torch.as_strided_copy((x + 1)[:, ::2], (2, 2), (1, 1), 0)], numbers(4, 6)
    )
    with pytest.raises(UnsupportedOpError, match="gaps"):
        lower_graph(graph)
