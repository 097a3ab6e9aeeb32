"""The page as one text: markup, style, scripts and data in one file.

Names in the data are a stranger's. They reach the page only as JSON, which the scripts put in as
text; a content security policy lets nothing run, load or apply but the page's own script and style.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import html
import json
import re
from importlib import resources
from typing import Any

from tpu_compile.inspector.html.facts import Instruction, Report

SCRIPTS = ("dom.js", "tree.js", "treemap.js", "charts.js", "table.js", "page.js")
"""In this order; they share one scope."""

_COLUMNS = tuple(column.name for column in dataclasses.fields(Instruction))
# In a script element, and in old parsers of JavaScript, these mean something.
_ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def as_data(report: Report) -> dict[str, Any]:
    """Return the data as JSON knows it; instructions are rows under one list of columns."""
    data = dataclasses.asdict(dataclasses.replace(report, instructions=()))
    rows = [[getattr(one, column) for column in _COLUMNS] for one in report.instructions]
    data["instructions"] = {"columns": list(_COLUMNS), "rows": rows}
    return data


def make_page(report: Report) -> str:
    """Return the page, as HTML."""
    data = json.dumps(as_data(report), ensure_ascii=False, separators=(",", ":"))
    style = asset("style.css")
    body = "\n".join(map(asset, SCRIPTS))
    script = f'\n(() => {{\n"use strict";\n{body}\n}})();\n'
    parts = {
        "title": html.escape(f"{report.model} on {report.target}"),
        "policy": f"default-src 'none'; script-src {digest(script)}; style-src {digest(style)}",
        "style": style,
        "data": data.translate(_ESCAPES),
        "script": script,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], asset("page.html"))


def digest(text: str) -> str:
    """Return how a content security policy names an inline script or style."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def asset(name: str) -> str:
    """Return the text of a file that lies beside this one."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
