"""The backend's names in torch's registry.

Installed packages need nothing: the entry points `tpu` and `tpu_compile` are found by torch. Only
when we are imported without being installed (a source tree on the path) are the names entered by
hand. A name that is somebody else's is left to them, and said once.
"""

from __future__ import annotations

import sys
import warnings
from importlib.metadata import entry_points

from tpu_compile.errors import TpuCompileWarning

NAMES = ("tpu", "tpu_compile")
_GROUP = "torch_dynamo_backends"
TARGET = "tpu_compile.backend:tpu"


def register_backends() -> None:
    """Make both names known to `torch.compile`, if they are not and nobody else has them."""
    for name in NAMES:
        owner = owner_of(name)
        if owner is None:
            _register(name)
        elif owner != TARGET:
            warnings.warn(
                f"The backend name {name!r} belongs to {owner}; use "
                f'torch.compile(model, backend="tpu_compile") for this project.',
                TpuCompileWarning,
                stacklevel=3,
            )


def owner_of(name: str) -> str | None:
    """Return who has `name` ("module:attribute"), or None; imports nothing."""
    registry = sys.modules.get("torch._dynamo.backends.registry")
    registered = getattr(registry, "_COMPILER_FNS", {}).get(name)
    if registered is not None:
        module = getattr(registered, "__module__", "an unknown module")
        return f"{module}:{getattr(registered, '__name__', 'backend')}"
    found = [entry.value for entry in entry_points(group=_GROUP, name=name)]
    foreign = [value for value in found if value != TARGET]
    return foreign[0] if foreign else (TARGET if found else None)


def _register(name: str) -> None:
    from torch._dynamo.backends.registry import register_backend

    from tpu_compile.backend import tpu

    register_backend(tpu, name=name)
