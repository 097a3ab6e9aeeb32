"""Drawings as SVG text: ratios on a logarithmic axis, and ratios over runs."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence

from benchmarks.history import Trend
from benchmarks.reporting.summary import ratio_text
from benchmarks.results import Row

LEFT, WIDTH, RIGHT = 250, 980, 20
LANE, ROW_GAP, TOP, BOTTOM = 11, 9, 26, 30


class Axis:
    """A logarithmic axis between two pixels, with 1 in it."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        low, high = min([*values, 0.8]), max([*values, 1.25])
        self.low, self.high = math.log10(low) - 0.04, math.log10(high) + 0.04
        self.start, self.end = start, end

    def at(self, value: float) -> float:
        """Return the pixel of a value."""
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self) -> list[float]:
        """Return 1, 2 and 5 times the powers of ten in range; over much range, only the powers."""
        steps = (1,) if self.high - self.low > 2.2 else (1, 2, 5)
        powers = range(math.floor(self.low), math.ceil(self.high) + 1)
        every = [step * 10.0**power for power in powers for step in steps]
        if self.high - self.low < 0.4:
            every += [0.7, 0.8, 0.9, 1.1, 1.2, 1.5]
        return sorted(tick for tick in every if self.low <= math.log10(tick) <= self.high)


def _circle(x: float, y: float, kind: str) -> str:
    return f'<circle class="mark {kind}" cx="{x}" cy="{y}" r="4"/>'


def _polygon(*corners: tuple[float, float]) -> Callable[[float, float, str], str]:
    def draw(x: float, y: float, kind: str) -> str:
        points = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
        return f'<polygon class="mark {kind}" points="{points}"/>'

    return draw


_SHAPES = {
    "eager": _circle,
    "inductor": _polygon((-4, -4), (4, -4), (4, 4), (-4, 4)),
    "jax.jit": _polygon((0, -5), (5, 4), (-5, 4)),
    "torch-xla2": _polygon((0, -5.5), (5.5, 0), (0, 5.5), (-5.5, 0)),
    "torch-xla": _polygon((-5, -4), (5, -4), (0, 5)),
}
_REFERENCES = (
    _polygon((-5, -1.5), (5, -1.5), (5, 1.5), (-5, 1.5)),
    _polygon((-1.5, -5), (1.5, -5), (1.5, 5), (-1.5, 5)),
    _polygon((-4, -4), (4, -4), (-4, 4), (4, 4)),
)


def shape(name: str, others: Sequence[str], at: tuple[float, float], kind: str) -> str:
    """Return the mark of one of `others`; its shape says who, its colour how it went."""
    references = [other for other in others if other not in _SHAPES]
    drawn = _SHAPES.get(name) or _REFERENCES[references.index(name) % len(_REFERENCES)]
    return drawn(*at, kind)


def sample(name: str, others: Sequence[str]) -> str:
    """Return a competitor's mark for a legend."""
    mark = shape(name, others, (8, 7), "plain")
    return f'<svg viewBox="0 0 16 14" aria-hidden="true" focusable="false">{mark}</svg>'


def ratio_plot(suite: str, rows: Sequence[Row], others: Sequence[str]) -> str:
    """Return a plot of ratios: a row a case, a lane a competitor, a line between quartiles."""
    rows = [row for row in rows if row.measured.ratios]
    if not rows:
        return '<p class="note">No case has a ratio.</p>'
    edges = [
        edge
        for row in rows
        for ratio in row.measured.ratios.values()
        for edge in (ratio.low, ratio.median, ratio.high)
    ]
    axis = Axis(edges, LEFT, WIDTH - RIGHT)
    body: list[str] = []
    y: float = TOP
    for row in rows:
        lanes = [name for name in others if name in row.measured.ratios]
        height = LANE * len(lanes) + ROW_GAP
        body.append(f'<line class="grid" x1="0" x2="{WIDTH}" y1="{y}" y2="{y}"/>')
        middle = y + height / 2 + 4
        body.append(
            f'<text x="{LEFT - 10}" y="{middle}" text-anchor="end">{_text(row.label)}</text>'
        )
        for lane, name in enumerate(lanes):
            at = y + ROW_GAP / 2 + LANE * (lane + 0.5)
            body.append(_dot(axis, at, row, name, others))
        y += height
    total = y + BOTTOM
    name = f"plot-{suite}"
    return (
        f'<svg viewBox="0 0 {WIDTH} {total:g}" role="img" aria-labelledby="{name}-t {name}-d">'
        f'<title id="{name}-t">Ratios of {_text(suite)}</title>'
        f'<desc id="{name}-d">Our figure over the competitor\'s, for each case, on a logarithmic '
        "axis; the table below has the same figures.</desc>"
        f"{_scale(axis, TOP, y)}{''.join(body)}</svg>"
    )


def _dot(axis: Axis, y: float, row: Row, name: str, others: Sequence[str]) -> str:
    ratio = row.measured.ratios[name]
    kind = row.verdicts().get(name, "plain")
    label = _text(f"{row.label}, against {name}: {ratio_text(ratio)}")
    line = (
        f'<line class="mark {kind}" x1="{axis.at(ratio.low)}" x2="{axis.at(ratio.high)}" '
        f'y1="{y}" y2="{y}"/>'
    )
    mark = shape(name, others, (axis.at(ratio.median), y), kind)
    return f"<g><title>{label}</title>{line}{mark}</g>"


def _scale(axis: Axis, top: float, bottom: float) -> str:
    parts = []
    for tick in axis.ticks():
        x = axis.at(tick)
        kind = "one" if tick == 1 else "grid"
        parts.append(f'<line class="{kind}" x1="{x}" x2="{x}" y1="{top}" y2="{bottom}"/>')
        parts.append(
            f'<text class="faint" x="{x}" y="{bottom + 16}" text-anchor="middle">{tick:g}</text>'
        )
    one = axis.at(1)
    parts.append(f'<text class="win" x="{one - 8}" y="16" text-anchor="end">ours takes less</text>')
    parts.append(f'<text class="loss" x="{one + 8}" y="16">ours takes more</text>')
    return "".join(parts)


def trend_plot(trend: Trend) -> str:
    """Return the line of a trend, the latest run at the right."""
    width, height, left, right = 460, 150, 44, 70
    values = [value for _, value in trend.points]
    axis = Axis(values, height - 24, 14)
    step = (width - left - right) / (len(values) - 1)
    places = [(round(left + index * step, 1), axis.at(value)) for index, value in enumerate(values)]
    title = f"{trend.suite} against {trend.rival}: mean ratio over {len(values)} runs"
    parts = [
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{_text(title)}">',
        *(
            f'<line class="{"one" if tick == 1 else "grid"}" x1="{left}" x2="{width - right}" '
            f'y1="{axis.at(tick)}" y2="{axis.at(tick)}"/><text class="faint" x="{left - 6}" '
            f'y="{axis.at(tick) + 4}" text-anchor="end">{tick:g}</text>'
            for tick in axis.ticks()
        ),
        f'<polyline class="trend" points="{" ".join(f"{x},{y}" for x, y in places)}"/>',
    ]
    for (name, value), (x, y) in zip(trend.points, places, strict=True):
        parts.append(
            f'<circle class="point" cx="{x}" cy="{y}" r="3.5">'
            f"<title>{_text(name)}: {value:.2f}</title></circle>"
        )
    for (name, _), (x, _), anchor in (
        (trend.points[0], places[0], "start"),
        (trend.points[-1], places[-1], "end"),
    ):
        parts.append(
            f'<text class="faint" x="{x}" y="{height - 6}" text-anchor="{anchor}">'
            f"{_text(name)}</text>"
        )
    x, y = places[-1]
    parts.append(f'<text x="{x + 8}" y="{y + 4}">{values[-1]:.2f}</text></svg>')
    return "".join(parts)


def _text(text: str) -> str:
    return html.escape(text)
