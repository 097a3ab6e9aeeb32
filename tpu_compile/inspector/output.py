"""How the tool prints: tables, sizes, colours on a terminal only, JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any, TextIO

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


def styled(text: str, style: str, stream: TextIO | None = None) -> str:
    """Return `text` in a style of `_STYLES`; as it is where `stream` is no terminal.

    The environment variable `NO_COLOR`, if set to anything, turns styles off.
    """
    stream = sys.stdout if stream is None else stream
    if os.environ.get("NO_COLOR") or not stream.isatty():
        return text
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m"


def fail(message: str) -> None:
    """Print an error as one line on standard error."""
    line = " ".join(message.split())
    print(f"{styled('error:', 'red', sys.stderr)} {line}", file=sys.stderr)


def note(message: str) -> None:
    """Print a remark that is no result on standard error."""
    print(styled(message, "dim", sys.stderr), file=sys.stderr)


def print_json(value: Any) -> None:
    """Print `value` as indented JSON."""
    print(json.dumps(value, indent=2))


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return rows under a header; columns of numbers are aligned to the right."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    right = [
        bool(cells) and all(_is_numeric(row[index]) for row in cells)
        for index in range(len(header))
    ]

    def line(row: Sequence[str]) -> str:
        padded = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ]
        return "  ".join(padded).rstrip()

    return "\n".join([styled(line(header), "bold"), *map(line, cells)])


def line_of(where: str) -> str:
    """Return a `file:line` for reading: from the current folder, where the file is below it."""
    return where.removeprefix(os.getcwd() + os.sep)


def _is_numeric(cell: str) -> bool:
    return cell[:1].isdigit() or cell[:1] in "+-<" or cell in ("", "-")


def size(count: float) -> str:
    """Return a number of bytes for reading, in powers of 1024: `16.0 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024 or unit == "TiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("the last unit takes everything")


def age(seconds: float) -> str:
    """Return how long ago something was, for reading, in its largest unit.

    >>> age(7300)
    '2h ago'
    """
    for unit, length in (("w", 604800), ("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{int(seconds // length)}{unit} ago"
    return f"{max(0, int(seconds))}s ago"


def quantity(count: float, unit: str = "") -> str:
    """Return a count for reading, in powers of 1000: `1.2 G`, followed by `unit`."""
    for prefix in ("", "k", "M", "G", "T", "P"):
        if abs(count) < 1000 or prefix == "P":
            text = f"{count:.0f}" if prefix == "" else f"{count:.1f}"
            return f"{text} {prefix}{unit}".rstrip()
        count /= 1000
    raise AssertionError("the last prefix takes everything")
