"""A row for a terminal."""

from __future__ import annotations

from benchmarks.results import Row, quantity


def text_of(row: Row) -> str:
    """Return a row as lines: each figure, its spread, our figure over it, and what is missing."""
    found = row.measured
    lines = [f"{row.suite}/{row.label}: {row.title}"]
    if found.figures:
        lines.append(f"  {'':22}{'median':>12}{'spread':>12}{'ours / it':>11}{'quartiles':>16}")
    verdicts = row.verdicts()
    for name, figure in sorted(found.figures.items(), key=lambda item: item[1].median):
        line = f"  {name:22}{quantity(figure.median, found.unit):>12}"
        line += f"{quantity(figure.spread, found.unit):>12}"
        ratio = found.ratios.get(name)
        if ratio is not None:
            quartiles = f"{ratio.low:.2f} to {ratio.high:.2f}"
            line += f"{ratio.median:>11.2f}{quartiles:>16}  {verdicts.get(name, '')}"
        lines.append(line.rstrip())
    lines += [f"  {name or 'FAILED':22}{why}" for name, why in row.gaps().items()]
    lines += [f"  {name}: {value}" for name, value in found.facts.items()]
    return "\n".join(lines)
