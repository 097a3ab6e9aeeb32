"""Chips by name: what a target string means, and what the makers say of the chip.

Figures are those of the chips' public pages at docs.cloud.google.com/tpu/docs (v4, v5e, v5p, v6e,
tpu7x), read in November 2026. Some chips are two devices to XLA; a program runs on one.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from tpu_compile.errors import OptionError

_GIB = 2**30


class UnknownTargetError(OptionError):
    """There is no target of that name."""


@dataclass(frozen=True)
class Chip:
    """A kind of TPU; figures are those of a whole chip."""

    name: str
    product: str
    """How its maker calls it."""
    dims: int
    """Of a topology: 2 or 3."""
    devices: int
    """How many devices of XLA one chip is."""
    hbm_bytes: int
    hbm_bandwidth: float
    """Bytes a second."""
    peak_flops: float
    """Of bfloat16 products that are summed in float32, a second."""
    aliases: tuple[str, ...] = ()

    @property
    def device_hbm_bytes(self) -> int:
        """The memory of one device of XLA, in bytes; the run time keeps a little of it."""
        return self.hbm_bytes // self.devices

    @property
    def device_bandwidth(self) -> float:
        """The share of the memory bandwidth of one device, in bytes a second."""
        return self.hbm_bandwidth / self.devices

    @property
    def device_peak_flops(self) -> float:
        """The peak of one device, in floating-point operations a second."""
        return self.peak_flops / self.devices

    @property
    def one(self) -> str:
        """The topology of a single chip, such as `"1x1"`."""
        return "x".join("1" * self.dims)


CHIPS: dict[str, Chip] = {
    chip.name: chip
    for chip in (
        Chip("v4", "TPU v4", 3, 2, 32 * _GIB, 1228e9, 275e12),
        Chip("v5e", "TPU v5e", 2, 1, 16 * _GIB, 819e9, 197e12, ("v5litepod", "v5lite")),
        Chip("v5p", "TPU v5p", 3, 1, 95 * _GIB, 2765e9, 459e12),
        Chip("v6e", "TPU v6e (Trillium)", 2, 1, 32 * _GIB, 1640e9, 918e12, ("trillium",)),
        Chip(
            "tpu7x",
            "TPU7x (Ironwood)",
            3,
            2,
            192 * _GIB,
            7380e9,
            2307e12,
            ("ironwood", "v7x", "7x"),
        ),
    )
}
_NAMES = {alias: chip for chip in CHIPS.values() for alias in (chip.name, *chip.aliases)}


@dataclass(frozen=True)
class Target:
    """What a module is compiled for: the CPU of this machine, or a chip in a topology."""

    platform: str
    """PJRT's name: `"cpu"` or `"tpu"`."""
    chip: Chip | None = None
    topology: str = ""
    """Chips along each dim, such as `"2x2"`. One-device programs use the first device."""

    def __str__(self) -> str:
        return self.platform if self.chip is None else f"{self.chip.name}:{self.topology}"

    @property
    def is_one_chip(self) -> bool:
        """Whether the topology is a single chip."""
        return self.chip is not None and self.topology == self.chip.one


def parse_target(text: str) -> Target:
    """Return the target that `text` names: `"cpu"`, `"v6e"` (one chip) or `"v6e:2x4"`.

    >>> str(parse_target("v6e"))
    'v6e:1x1'

    Raises:
        UnknownTargetError: no such chip, or no topology of its kind; the nearest name is said.
    """
    if not isinstance(text, str):
        raise UnknownTargetError(f"A target is a string such as 'v6e:1x1', not {text!r}")
    name, colon, topology = text.strip().lower().partition(":")
    if name == "cpu" and not colon:
        return Target("cpu")
    chip = _NAMES.get(name)
    if chip is None:
        near = difflib.get_close_matches(name, ["cpu", *_NAMES], n=1, cutoff=0.5)
        raise UnknownTargetError(
            f"There is no target {text!r}",
            why=f"did you mean {near[0]!r}?" if near else "its chip is not known",
            ways_out=(f"one of {', '.join(['cpu', *CHIPS])}, or with a topology such as v6e:2x4",),
        )
    topology = topology if colon else chip.one
    if not re.fullmatch(rf"[1-9]\d*(x[1-9]\d*){{{chip.dims - 1}}}", topology):
        example = "x".join("2" * min(chip.dims, 2)) + ("x1" if chip.dims == 3 else "")
        raise UnknownTargetError(
            f"{topology!r} is no topology of {chip.name}",
            why=f"it is the number of chips along each of {chip.dims} dims",
            ways_out=(f"{chip.name}:{chip.one}", f"{chip.name}:{example}"),
        )
    return Target("tpu", chip, topology)
