from __future__ import annotations

import pytest

from tpu_compile.runtime.targets import CHIPS, UnknownTargetError, parse_target


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("cpu", "cpu"),
        ("v6e", "v6e:1x1"),
        (" V6E:2x4 ", "v6e:2x4"),
        ("trillium", "v6e:1x1"),
        ("7x", "tpu7x:1x1x1"),
        ("v5p:2x2x1", "v5p:2x2x1"),
    ],
)
def test_names(text: str, target: str) -> None:
    assert str(parse_target(text)) == target


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("v66", "did you mean 'v6e'"),
        ("", "one of cpu, v4"),
        ("v6e:", "2 dims"),
        ("v6e:2x2x2", "2 dims"),
        ("v6e:0x1", "2 dims"),
        ("tpu7x:2x2", "3 dims"),
        ("cpu:1", "did you mean 'cpu'"),
    ],
)
def test_wrong_names_are_told_the_nearest(text: str, said: str) -> None:
    with pytest.raises(UnknownTargetError, match=said):
        parse_target(text)


def test_devices_share_a_chip() -> None:
    chip = CHIPS["tpu7x"]
    assert chip.device_hbm_bytes == 96 * 2**30
    assert chip.device_peak_flops == chip.peak_flops / 2
