"""Input specifications on the command line: `f32[8,128]`, `mask=b[batch,seq]`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from tpu_compile.inspector.exits import ExitCode, InspectorError

DTYPES: dict[str, torch.dtype] = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "b": torch.bool,
    "c64": torch.complex64,
    "c128": torch.complex128,
}
_INPUT = re.compile(r"^(?:(?P<name>[A-Za-z_]\w*)=)?(?P<dtype>[a-z]\w*)\[(?P<sizes>[^\]]*)\]$")


@dataclass(frozen=True)
class InputSpec:
    """A tensor to call a model with: `f32[8,128]`, or `mask=b[batch,seq]` for a keyword."""

    text: str
    name: str | None
    dtype: torch.dtype
    sizes: tuple[int | str, ...]
    """A name stands for `--batch`, `--seq` or `--size NAME=N`."""

    def tensor(self, sizes: Mapping[str, int]) -> torch.Tensor:
        """Return a tensor of that kind; integers are small, as indices have to be."""
        shape = [size if isinstance(size, int) else sizes[size] for size in self.sizes]
        if self.dtype.is_floating_point or self.dtype.is_complex:
            return torch.randn(shape, dtype=torch.float32).to(self.dtype)
        if self.dtype is torch.bool:
            return torch.ones(shape, dtype=torch.bool)
        return torch.randint(0, 2, shape, dtype=self.dtype)


def parse_input(text: str) -> InputSpec:
    """Return the specification that `text` is.

    >>> parse_input("mask=b[batch,128]").sizes
    ('batch', 128)

    Raises:
        InspectorError: it is none.
    """
    found = _INPUT.match(text.replace(" ", ""))
    known = ", ".join(DTYPES)
    if found is None:
        raise InspectorError(
            f"{text!r} is no input specification",
            ExitCode.INPUT,
            why="it is a dtype and sizes",
            ways_out=("f32[8,128]", "mask=b[batch,seq] for a keyword argument"),
        )
    if found["dtype"] not in DTYPES:
        raise InspectorError(
            f"{text!r} has an unknown dtype {found['dtype']!r}",
            ExitCode.INPUT,
            ways_out=(f"one of {known}",),
        )
    sizes: list[int | str] = []
    for size in filter(None, found["sizes"].split(",")):
        if not re.fullmatch(r"\d+|[A-Za-z_]\w*", size):
            raise InspectorError(
                f"{text!r} has a bad size {size!r}",
                ExitCode.INPUT,
                why="a size is a whole number from 0 up, or a name",
            )
        sizes.append(int(size) if size.isdigit() else size)
    return InputSpec(text, found["name"], DTYPES[found["dtype"]], tuple(sizes))


def sizes_of(text: str, option: str) -> Sequence[int]:
    """Return the sizes of `1,8,32`.

    Raises:
        InspectorError: one of them is no positive whole number.
    """
    found = text.split(",")
    if not all(size.strip().isdigit() and int(size) > 0 for size in found):
        raise InspectorError(
            f"{option} got {text!r}",
            ExitCode.INPUT,
            why="it takes positive whole numbers, separated by commas",
        )
    return [int(size) for size in found]
