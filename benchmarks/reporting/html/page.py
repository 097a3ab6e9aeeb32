"""The page as one text. Names in the results are escaped; nothing on the page runs or loads."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.history import Trend
from benchmarks.reporting.html.plots import ratio_plot, sample, trend_plot
from benchmarks.reporting.summary import (
    COMPETITORS,
    RULE,
    Comparison,
    comparisons,
    facts,
    gaps,
    heading,
    others_of,
    ratio_text,
    scores,
)
from benchmarks.results import OURS, Row, Run, quantity, with_spread
from tpu_compile.inspector.html.page import asset, digest

_WORDS = ("case", "suite", "against")
_NUMBER = ' class="number"'


def make_page(run: Run, trends: Sequence[Trend]) -> str:
    """Return the HTML page of a run, with lines for how its suites did over past runs."""
    style = asset("style.css") + Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    policy = f"default-src 'none'; style-src {digest(style)}"
    quick = '<p class="alarm">A quick run: sizes are tiny, and the figures mean nothing.</p>'
    suites = run.suites()
    links = "".join(f'<li><a href="#{_id(name)}">{_e(heading(name))}</a></li>' for name in suites)
    sections = [
        _section("losses", "Where we lose", _list(run, "loss")),
        _section("score", "Score", _score(run)),
        _section(
            "competitors",
            "Competitors",
            _lines("", [f"{name}: {what}" for name, what in COMPETITORS.items()]),
        ),
        *(
            _suite(name, rows, [one for one in trends if one.suite == name])
            for name, rows in suites.items()
        ),
        _section("wins", "Where we win", _list(run, "win")),
    ]
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_e(policy)}">
<meta name="color-scheme" content="light dark">
<title>Benchmarks of tpu_compile</title>
<style>{style}</style>
</head>
<body>
<header>
<h1>Benchmarks of tpu_compile</h1>
<p id="subject">{_e(run.date)}, commit {_e(run.commit or "unknown")}</p>
{quick if run.quick else ""}
<p class="note">{_e(RULE)}</p>
<nav aria-label="Sections"><ul><li><a href="#losses">Where we lose</a></li>
<li><a href="#score">Score</a></li>{links}<li><a href="#wins">Where we win</a></li></ul></nav>
<dl id="versions">{_versions(run)}</dl>
</header>
<main>
{"".join(sections)}
</main>
</body>
</html>
"""


def _versions(run: Run) -> str:
    return "".join(
        f"<div><dt>{_e(name)}</dt><dd>{_e(value)}</dd></div>"
        for name, value in run.versions.items()
    )


def _suite(name: str, rows: Sequence[Row], trends: Sequence[Trend]) -> str:
    others = others_of(rows)
    legend = "".join(f"<li>{sample(other, others)}{_e(other)}</li>" for other in others)
    parts = [
        f'<div class="plot scroll" role="region" aria-label="Plot of {_e(name)}" tabindex="0">'
        f"{ratio_plot(_id(name), rows, others)}</div>",
        f'<ul class="legend" aria-label="Competitors">{legend}</ul>' if others else "",
        _table(f"Figures of {name}", ["case", OURS, *others], (_row(row, others) for row in rows)),
        _lines("", facts(rows)),
        _lines("Without a figure", [f"{why}. Cases: {cases}" for why, cases in gaps(rows)]),
    ]
    for trend in trends:
        parts.append(
            f"<h3>Against {_e(trend.rival)} over past runs, mean of {trend.cases} cases</h3>"
            f'<div class="plot scroll trends">{trend_plot(trend)}</div>'
        )
    return _section(_id(name), heading(name), "".join(parts))


def _row(row: Row, others: Sequence[str]) -> list[str]:
    found = row.measured
    cells = [f'<th scope="row">{_e(row.label)}<br><small>{_e(row.title)}</small></th>']
    for name in (OURS, *others):
        figure = found.figures.get(name)
        if figure is None:
            cells.append(f'<td class="number">{_absence(row, name)}</td>')
            continue
        text = _e(with_spread(figure, found.unit))
        ratio = found.ratios.get(name)
        if ratio is not None:
            kind = row.verdicts().get(name, "")
            text = f'<span class="{kind}">{ratio_text(ratio)} {kind}</span><small>{text}</small>'
        cells.append(f'<td class="number">{text}</td>')
    return cells


def _absence(row: Row, name: str) -> str:
    if row.failure or name in row.measured.wrong:
        return f'<span class="loss">{"failed" if row.failure else "wrong"}</span>'
    return "left out" if name in row.measured.left_out else ""


def _list(run: Run, kind: str) -> str:
    those = [one for one in comparisons(run.rows) if one.verdict == kind]
    if not those:
        return f"<p>No case is a {kind}.</p>"
    if kind == "win":
        those.reverse()
    heads = ["case", "against", "ours", "its", "ours / it"]
    return _table(f"Each {kind}", heads, map(_comparison, those))


def _comparison(one: Comparison) -> list[str]:
    found = one.row.measured
    return [
        f'<th scope="row">{_e(one.row.suite)}/{_e(one.row.label)}</th>',
        f"<td>{_e(one.rival)}</td>",
        *(
            f'<td class="number">{_e(quantity(found.figures[name].median, found.unit))}</td>'
            for name in (OURS, one.rival)
        ),
        f'<td class="number"><span class="{one.verdict}">{ratio_text(one.ratio)}</span></td>',
    ]


def _score(run: Run) -> str:
    heads = ["suite", "against", "wins", "even", "losses", "mean ratio"]
    rows = (
        [
            f'<th scope="row">{_e(one.suite)}</th>',
            f"<td>{_e(one.rival)}</td>",
            f'<td class="number"><span class="win">{one.wins}</span></td>',
            f'<td class="number">{one.evens}</td>',
            f'<td class="number"><span class="loss">{one.losses}</span></td>',
            f'<td class="number">{one.mean:.2f}</td>',
        ]
        for one in scores(run)
    )
    return _table("Wins and losses", heads, rows)


def _table(label: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(
        f'<th scope="col"{"" if text in _WORDS else _NUMBER}>{_e(text)}</th>' for text in heads
    )
    body = "".join(f"<tr>{''.join(cells)}</tr>" for cells in rows)
    return (
        f'<div class="scroll" role="region" aria-label="{_e(label)}" tabindex="0">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _lines(title: str, lines: Sequence[str]) -> str:
    if not lines:
        return ""
    head = f"<h3>{_e(title)}</h3>" if title else ""
    return head + "<ul>" + "".join(f"<li>{_e(line)}</li>" for line in lines) + "</ul>"


def _section(name: str, title: str, body: str) -> str:
    return f'<section id="{_e(name)}" class="wide"><h2>{_e(title)}</h2>{body}</section>\n'


def _id(suite: str) -> str:
    return f"suite-{suite}"


def _e(text: str) -> str:
    return html.escape(text)
