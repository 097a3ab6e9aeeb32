"""What graphs are called, and which inputs each was compiled for: why a program was needed."""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass(frozen=True)
class GraphName:
    """How records and errors call a graph."""

    function: str
    where: str
    kind: str
    """`"forward"`, `"backward"` or `"inference"`."""

    def __str__(self) -> str:
        return f"{self.function} {self.kind}"


class CompileHistory:
    """Which input signatures each function was compiled for, to say why another is needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[GraphName, list[tuple[str, ...]]] = {}

    def add(self, name: GraphName, inputs: tuple[str, ...]) -> None:
        """Note that a program of `name` for `inputs` exists."""
        with self._lock:
            self._seen.setdefault(name, []).append(inputs)

    def reason(self, name: GraphName, inputs: tuple[str, ...]) -> str:
        """Return why `inputs` need a program, as the difference from the nearest earlier one."""
        with self._lock:
            earlier = list(self._seen.get(name, ()))
        same_length = [seen for seen in earlier if len(seen) == len(inputs)]
        if not same_length:
            return "another graph of this function" if earlier else "first program of this graph"
        nearest = min(same_length, key=lambda seen: sum(map(_differs, seen, inputs)))
        changes = [
            f"input {index} went from {old} to {new}"
            for index, (old, new) in enumerate(zip(nearest, inputs, strict=True))
            if old != new
        ]
        return "; ".join(changes[:4]) or "the same inputs, but another graph or other options"

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._seen.clear()


def _differs(old: str, new: str) -> bool:
    return old != new


HISTORY = CompileHistory()
