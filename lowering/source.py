"""Where in the user's program an FX node comes from: file, line and module path.

Dynamo and AOTAutograd leave this in node metadata; some decompositions lose it, so a node without
a stack borrows from the nodes that feed it.
"""

from __future__ import annotations

import functools
import os
import re
from typing import NamedTuple

import torch
from torch import fx

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)')
_TORCH_FOLDER = os.path.dirname(torch.__file__) + os.sep


class SourceLine(NamedTuple):
    """A line of the user's program, and the path of the `nn.Module` that ran it."""

    file: str | None
    line: int
    function: str
    module_path: str

    def __str__(self) -> str:
        if self.file is None:
            return f"in module `{self.module_path}`" if self.module_path else "unknown line"
        return f"{self.file}:{self.line}"


_NO_FRAME = (None, 0, "")
UNKNOWN = SourceLine(None, 0, "", "")


@functools.lru_cache(maxsize=4096)
def _frame(stack_trace: str) -> tuple[str | None, int, str]:
    """Return (file, line, function) of the innermost frame outside torch."""
    frames = [(m["file"], int(m["line"]), m["function"]) for m in _FRAME.finditer(stack_trace)]
    for frame in reversed(frames):
        if not frame[0].startswith(_TORCH_FOLDER):
            return frame
    return frames[-1] if frames else (None, 0, "")


def _module_path(node: fx.Node) -> str:
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    return _readable_path(next(reversed(stack.values()))[0]) if stack else ""


@functools.lru_cache(maxsize=4096)
def _readable_path(path: str) -> str:
    path = re.sub(r"^L\['(?:self|fn|mod)'\]\.?", "", path)
    path = re.sub(r"_modules\['([^']+)'\]", r"\1", path)
    return re.sub(r"\[(\d+)\]", r".\1", path).replace("slf.", "").strip(".")


def own_line(node: fx.Node) -> SourceLine:
    """Return the user's line in the node's own metadata; one without a file if it has none."""
    trace = node.meta.get("stack_trace") or node.meta.get("fwd_stack_trace")
    frame = _frame(trace) if trace else _NO_FRAME
    return SourceLine(*frame, _module_path(node))


def source_line(node: fx.Node) -> SourceLine:
    """Return the user's line that `node` came from.

    A node without a stack trace (some decompositions lose it) takes the line of the nearest node
    that feeds it; `UNKNOWN` when there is none.
    """
    own = own_line(node)
    if own.file is not None:
        return own
    seen = {node}
    queue = [node]
    while queue:
        current = queue.pop(0)
        trace = current.meta.get("stack_trace") or current.meta.get("fwd_stack_trace")
        if trace:
            file, line, function = _frame(trace)
            return SourceLine(file, line, function, _module_path(node) or _module_path(current))
        for source in current.all_input_nodes:
            if source not in seen and len(seen) < 32:
                seen.add(source)
                queue.append(source)
    path = _module_path(node)
    return SourceLine(None, 0, "", path) if path else UNKNOWN
