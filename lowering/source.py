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


@functools.lru_cache(maxsize=4096)
def _frame(stack_trace: str) -> tuple[str | None, int, str]:
    """Return (file, line, function) of the innermost frame outside torch."""
    frames = [(m["file"], int(m["line"]), m["function"]) for m in _FRAME.finditer(stack_trace)]
    for frame in reversed(frames):
        if not frame[0].startswith(_TORCH_FOLDER):
            return frame
    return frames[-1] if frames else (None, 0, "")


def _stack_trace(node: fx.Node) -> str:
    meta = node.meta
    return meta.get("stack_trace") or meta.get("fwd_stack_trace") or ""


def _module_path(node: fx.Node) -> str:
    meta = node.meta
    stack = meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack")
    return next(reversed(stack.values()))[0] if stack else ""


@functools.lru_cache(maxsize=4096)
def _line(stack_trace: str, path: str) -> SourceLine:
    frame = _frame(stack_trace) if stack_trace else (None, 0, "")
    return SourceLine(*frame, _readable_path(path))


@functools.lru_cache(maxsize=4096)
def _readable_path(path: str) -> str:
    path = re.sub(r"^L\['\w+'\]\.?", "", path)
    path = re.sub(r"_modules\['([^']+)'\]", r"\1", path)
    return re.sub(r"\[(\d+)\]", r".\1", path).replace("slf.", "").strip(".")


def own_line(node: fx.Node) -> SourceLine:
    """Return the user's line in the node's own metadata; one without a file if it has none."""
    return _line(_stack_trace(node), _module_path(node))


def source_line(node: fx.Node) -> SourceLine:
    """Return the user's line that `node` came from.

    A node without a stack trace (some decompositions lose it) takes the line of the nearest node
    that feeds it; one without a file when there is none.
    """
    own = own_line(node)
    if own.file is not None:
        return own
    seen = {node}
    queue = [node]
    while queue:
        current = queue.pop(0)
        trace = _stack_trace(current)
        if trace:
            return _line(trace, _module_path(node) or _module_path(current))
        for source in current.all_input_nodes:
            if source not in seen and len(seen) < 32:
                seen.add(source)
                queue.append(source)
    return _line("", _module_path(node))
