from __future__ import annotations

import dataclasses
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import benchmarks.__main__
from benchmarks import history, report
from benchmarks.reporting.html.page import make_page
from benchmarks.reporting.markdown import markdown
from benchmarks.reporting.text import text_of
from benchmarks.results import Row, Run, load, measured, to_json
from tests.benchmarks.example_run import ROWS, RUN

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "performance.md"


def part(page: str, title: str) -> str:
    return page.split(f"## {title}\n")[1].split("\n## ")[0]


def test_results_survive_json(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(to_json(RUN))
    assert load(path) == RUN
    path.write_text("{}")
    with pytest.raises(ValueError, match="--json FILE"):
        load(path)


def test_markdown_shows_losses_and_wins_alike() -> None:
    page = markdown(RUN, ["run.json"])
    assert page.index("## Where we lose") < page.index("## Ops") < page.index("## Where we win")
    losses, wins = part(page, "Where we lose"), part(page, "Where we win")
    assert "| ops/slow | eager | 3.00 ms | 1.50 ms | **2.25 (1.88 to 2.62)** |" in losses
    assert "| memory/peak, later call | eager | 2.0 MiB | 1.0 MiB |" in losses
    assert "fast" not in losses
    assert "tied" not in losses + wins
    assert "aot no-op" not in losses
    assert "| ops/fast | eager | 1.00 ms | 2.00 ms | **0.50 (0.50 to 0.50)** |" in wins
    assert "| ops | eager | 1 | 1 | 1 |" in part(page, "Score")
    table = part(page, "Ops")
    assert "**0.50 (0.50 to 0.50) win**" in table
    assert "**2.25 (1.88 to 2.62) loss**" in table


def test_markdown_shows_what_has_no_figure() -> None:
    page = markdown(RUN, ["run.json"])
    table = part(page, "Ops")
    assert "- inductor: wrong result: result 0 is off by 0.5. Cases: slow" in table
    assert "- jax.jit: jax is not installed. Cases: slow" in table
    assert "- tpu_compile: wrong result: result 0 has NaN. Cases: wrong" in table
    assert "| wrong: ours is wrong | wrong |" in table
    assert "- slow: programs 2" in table
    assert "killed by signal 11. Cases: dead" in part(page, "Memory")
    assert r"slow: a lost \| case" in table


def test_a_quick_run_makes_no_page() -> None:
    with pytest.raises(ValueError, match="--quick"):
        markdown(dataclasses.replace(RUN, quick=True), ["run.json"])


def test_write_and_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results, page = tmp_path / "run.json", tmp_path / "performance.md"
    results.write_text(to_json(RUN))

    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["report", *arguments, str(results)])
        return report.main()

    assert run("--check", str(page)) == 1
    assert run("--write", str(page)) == 0
    assert run("--check", str(page)) == 0
    page.write_text(page.read_text().replace("2.25", "1.25"))
    assert run("--check", str(page)) == 1
    assert "stale" in capsys.readouterr().err
    results.write_text(to_json(dataclasses.replace(RUN, quick=True)))
    assert run("--write", str(page)) == 2


def test_files_of_one_machine_become_one_run() -> None:
    again = Row("ops", "fast", "now slower", measured({"tpu_compile": [3.0], "eager": [2.0]}))
    later = dataclasses.replace(RUN, date="later", rows=(again,))
    whole = report.merged([RUN, later])
    assert whole.rows == (again, *ROWS[1:])
    assert whole.date == "later"
    with pytest.raises(ValueError, match="other machines"):
        report.merged([RUN, dataclasses.replace(later, versions={"machine": "N"})])


@pytest.mark.skipif(not PAGE.exists(), reason="the page was not generated yet")
def test_the_committed_page_is_what_its_results_give() -> None:
    found = re.search(r"--write docs/performance\.md ([^`]+)`", PAGE.read_text())
    assert found is not None
    sources = found[1].split()
    assert PAGE.read_text() == markdown(
        report.merged([load(ROOT / source) for source in sources]), sources, report.known_cases()
    )


def test_the_page_names_what_was_not_run() -> None:
    page = markdown(RUN, ["run.json"], ["ops/fast", "models/other"])
    assert "## Not measured" in page
    assert "- `models/other`" in page
    assert "- `ops/fast`" not in page
    assert "## Not measured" not in markdown(RUN, ["run.json"], ["ops/fast"])


class Reader(HTMLParser):
    """Checks that elements nest, and collects the text."""

    VOID = frozenset({"meta", "br"})
    SHAPES = frozenset({"line", "circle", "polygon", "polyline"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.text = ""
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value for name, value in attrs if name == "id" and value]
        self.scripts += tag == "script" or any(name.startswith("on") for name, _ in attrs)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in self.SHAPES

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read_page(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert not reader.open
    return reader


def test_html_has_each_case_and_both_verdicts() -> None:
    page = make_page(RUN, [])
    reader = read_page(page)
    assert not reader.scripts
    assert len(reader.ids) == len(set(reader.ids))
    for row in ROWS:
        assert row.label in reader.text
        assert row.title in reader.text
    assert '<span class="loss">2.25 (1.88 to 2.62) loss</span>' in page
    assert '<span class="win">0.50 (0.50 to 0.50) win</span>' in page
    # Two losses and one win against rivals are drawn, and one comparison with a reference.
    assert page.count('<line class="mark loss"') == 2
    assert page.count('<line class="mark win"') == 1
    assert page.count('<line class="mark plain"') == 1
    assert "slow, against eager: 2.25 (1.88 to 2.62)" in reader.text
    assert "inductor: wrong result: result 0 is off by 0.5. Cases: slow" in reader.text
    assert "killed by signal 11. Cases: dead" in reader.text
    assert not re.search(r'(?:src|href)="(?!#)', page)


def test_history_is_of_common_cases_on_one_machine(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    fewer = dataclasses.replace(RUN, commit="old", rows=ROWS[:1])
    elsewhere = dataclasses.replace(RUN, commit="far", versions={"machine": "N"})
    quick = dataclasses.replace(RUN, commit="quick", quick=True)
    for run in (fewer, elsewhere, quick, RUN):
        history.append(path, run)
    past = history.read(path)
    assert past == [fewer, elsewhere, quick, RUN]
    (trend,) = history.trends(past, RUN)
    assert (trend.suite, trend.rival, trend.cases) == ("ops", "eager", 1)
    assert trend.points == (("old", 0.5), ("abc", 0.5))
    page = make_page(RUN, [trend])
    assert "Against eager over past runs, mean of 1 cases" in read_page(page).text
    assert history.trends([RUN], RUN) == []


def test_text_has_ratio_verdict_and_reasons() -> None:
    text = text_of(ROWS[1])
    assert re.search(r"eager +1\.50 ms +500\.0 us +2\.25 +1\.88 to 2\.62  loss", text)
    assert re.search(r"inductor +wrong result: result 0 is off by 0\.5", text)
    assert re.search(r"FAILED +killed by signal 11", text_of(ROWS[4]))


def test_one_case_from_end_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {name: tmp_path / name for name in ("run.json", "history.jsonl", "page.html")}
    arguments = ["benchmarks", "device/op", "--quick", "--rounds", "3"]
    for option, path in zip(("--json", "--history", "--html"), files.values(), strict=True):
        arguments += [option, str(path)]
    monkeypatch.setattr(sys, "argv", arguments)
    assert benchmarks.__main__.main() == 0
    run: Run = load(files["run.json"])
    (row,) = run.rows
    assert row.measured.rounds == 3
    assert {"tpu_compile", "eager"} <= set(row.measured.figures)
    assert "eager" in row.measured.ratios
    assert not row.gaps()
    assert json.loads(files["history.jsonl"].read_text())["rows"][0]["case"] == "op"
    assert "one cached op on 8 elements" in read_page(files["page.html"].read_text()).text
    assert "device/op: one cached op" in capsys.readouterr().out


def test_list_names_cases_and_runs_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--list", "models"])
    monkeypatch.setattr("benchmarks.__main__.run_case", None)
    assert benchmarks.__main__.main() == 0
    assert "models/bert-training" in capsys.readouterr().out


def test_ours_alone_fails_a_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "device/op"])
    for row, code in ((ROWS[1], 0), (ROWS[3], 1), (ROWS[4], 1)):
        monkeypatch.setattr("benchmarks.__main__.run_case", lambda *_, row=row: [row])
        assert benchmarks.__main__.main() == code
