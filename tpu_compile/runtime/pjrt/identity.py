"""What a compiled program depends on beside its module: flags of the compiler, and its build."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

# What they name is written while XLA compiles; the program is the same.
_WITHOUT_EFFECT = ("--xla_dump_",)
_PIECE = 2**20


def compiler_flags(platform: str, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the flags that XLA and libtpu take from the environment, by variable.

    Their order stays: the last of two values counts. Flags that only write dumps are left out, so
    that the folder of the dumps is no part of a key.
    """
    names = ("XLA_FLAGS",) if platform == "cpu" else ("LIBTPU_INIT_ARGS", "XLA_FLAGS")
    found = {}
    for name in names:
        flags = _without_effect_left_out(_text(environment.get(name, "")))
        if flags:
            found[name] = flags
    return found


def _text(value: str) -> str:
    """Return the flags themselves: XLA takes a value that begins with no dash for a file."""
    value = value.strip()
    if not value or value.startswith("-"):
        return value
    try:
        return Path(value).read_text(errors="replace")
    except OSError:
        return value


def _without_effect_left_out(text: str) -> str:
    return " ".join(flag for flag in text.split() if not flag.startswith(_WITHOUT_EFFECT))


@functools.cache
def library_digest(path: str) -> str:
    """Return what tells one build of a plugin from another, on every machine.

    A digest of its size and of its first and last MiB, which hold the linker's build id, the
    sections and the symbols: libtpu is too large to be read whole at each start.

    Raises:
        OSError: the library cannot be read.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        digest = hashlib.sha256(size.to_bytes(8, "little") + file.read(_PIECE))
        file.seek(max(0, size - _PIECE))
        digest.update(file.read())
    return digest.hexdigest()
