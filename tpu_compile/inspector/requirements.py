"""The version ranges that an installed package declares, and whether a version is in one."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from importlib import metadata
from typing import Any

_REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9._-]+)\s*(?:\[[^]]*\])?\s*\(?(?P<range>[^;)]*)")
_CONDITION = re.compile(r"(?P<comparison>>=|<=|==|!=|<|>)\s*(?P<version>\d+(?:\.\d+)*)")
_COMPARISONS: dict[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}


def ranges_of(package: str) -> dict[str, str]:
    """Return the range of each requirement of `package` that no extra asks for, and of `python`.

    Raises:
        PackageNotFoundError: `package` is not installed.
    """
    ranges = {}
    for requirement in metadata.requires(package) or ():
        match = _REQUIREMENT.match(requirement)
        if match is not None and "extra ==" not in requirement:
            # Wheels spell `ml_dtypes` with a dash or an underscore.
            ranges[match["name"].replace("-", "_").lower()] = match["range"].strip()
    # A mapping by its protocol in typeshed, an email message in truth.
    described: Any = metadata.metadata(package)
    ranges["python"] = described.get("Requires-Python", "")
    return ranges


def is_inside(version: str, wanted: str) -> bool | None:
    """Whether `version` is in the range `wanted`; None if either has a form not known here.

    Compares releases alone: a local part (`+cpu`) or a pre-release suffix is left out.

    >>> is_inside("2.13.0+cpu", ">=2.13,<2.15")
    True
    """
    found = re.match(r"\d+(?:\.\d+)*", version)
    if found is None:
        return None
    own = _release(found[0])
    for text in wanted.split(","):
        condition = _CONDITION.fullmatch(text.strip())
        if condition is None:
            return None
        if not _COMPARISONS[condition["comparison"]](own, _release(condition["version"])):
            return False
    return True


def _release(version: str) -> tuple[int, ...]:
    parts = [int(part) for part in version.split(".")]
    while parts and parts[-1] == 0:
        parts.pop()
    return tuple(parts)
