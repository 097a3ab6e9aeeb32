"""`report`: the page says what the compiler says, and no name of a model can run in it."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
import warnings
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.inspector import hostile_model
from tpu_compile.ahead import hlo_text
from tpu_compile.ahead.lowered import lower_made
from tpu_compile.inspector import report as command
from tpu_compile.inspector.cli import main
from tpu_compile.inspector.exits import ExitCode
from tpu_compile.inspector.html.facts import Instruction, ModuleCost, Report
from tpu_compile.inspector.html.gather import gather
from tpu_compile.inspector.html.kinds import kind_of
from tpu_compile.inspector.html.liveness import donated_outputs, liveness
from tpu_compile.inspector.html.page import as_data, make_page
from tpu_compile.inspector.html.places import COMPILER, places_in
from tpu_compile.runtime.pjrt import plugin_path

HOSTILE = f"{hostile_model.__file__}:factory"
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
VOID = {"meta", "input", "br", "img", "link"}


class Reader(HTMLParser):
    """Collects the elements of a page, and checks that each is closed where it has to be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self._open: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.elements.append((tag, attributes))
        if tag not in VOID:
            self._open.append((tag, attributes.get("id") or tag))

    def handle_endtag(self, tag: str) -> None:
        opened, _ = self._open.pop()
        assert opened == tag

    def handle_data(self, data: str) -> None:
        if self._open:
            name = self._open[-1][1]
            self.texts[name] = self.texts.get(name, "") + data


def reported(make: Any, target: str = "cpu", training: str | None = None) -> Report:
    """Return what the page would show of what `make` gives."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lowered = lower_made(make, platform="cpu" if target == "cpu" else "tpu")
        compiled = lowered.compile(target)
    return gather(lowered, compiled, model="a:model", training=training)


@pytest.fixture(scope="module")
def hostile() -> Report:
    return reported(lambda: (*hostile_model.factory(), {}))


def modules_of(module: ModuleCost) -> dict[str, ModuleCost]:
    found = {module.path: module}
    for child in module.modules:
        found |= modules_of(child)
    return found


# --- the page ------------------------------------------------------------------------------------


def test_the_page_needs_nothing_else(hostile: Report) -> None:
    page = make_page(hostile)
    read = Reader(page)
    shell = page.replace(read.texts["data"], "")
    assert "http://" not in shell
    assert "https://" not in shell
    assert not re.search(r"@import|url\(|\bfetch\(|XMLHttpRequest|innerHTML|\beval\(", shell)
    links = [attributes["href"] for _, attributes in read.elements if "href" in attributes]
    assert links
    assert all(link is not None and link.startswith("#") for link in links)
    ids = {attributes.get("id") for _, attributes in read.elements}
    assert {str(link)[1:] for link in links} <= ids
    assert not any("src" in attributes for _, attributes in read.elements)
    (policy,) = [a["content"] for t, a in read.elements if t == "meta" and "http-equiv" in a]
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy


def test_hostile_names_stay_data(hostile: Report) -> None:
    odd = dataclasses.replace(hostile, model="{{data}}</title><script>alert(2)</script>\u2028")
    page = make_page(odd)
    read = Reader(page)
    assert [tag for tag, _ in read.elements].count("script") == 2
    assert "img" not in [tag for tag, _ in read.elements]
    assert read.texts["title"].startswith("{{data}}</title><script>")
    assert "\u2028" not in read.texts["data"]
    assert json.loads(read.texts["data"]) == json.loads(json.dumps(as_data(odd)))
    assert f"layers.{hostile_model.NAME}" in modules_of(hostile.root)


def test_it_says_what_the_compiler_says(hostile: Report) -> None:
    assert hostile.totals.runs == len(hostile.programs) == 3
    assert hostile.totals.cycles is None
    assert hostile.chip is None
    (fallback,) = hostile.fallbacks
    assert fallback.op == "tpu_compile_report_tests.twice.default"
    assert "hostile_model.py:" in fallback.where
    (reason,) = hostile.graph_breaks
    assert "graph_break" in reason
    modules = modules_of(hostile.root)
    plain = modules["layers.plain"]
    (product,) = [op for op in plain.own if op.op == "aten.addmm.default"]
    assert (product.kind, product.ops) == ("product", 1)
    assert "hostile_model.py:" in product.line
    # Weight, input, bias and result, each float32, once at least.
    assert product.memory_bytes >= 4 * (16 * 8 + 4 * 16 + 8 + 4 * 8)
    assert hostile.root.ops == hostile.totals.ops
    assert hostile.root.memory_bytes == sum(
        one.memory_bytes * one.runs for one in hostile.instructions
    )
    largest = hostile.programs[hostile.liveness.program]
    assert hostile.liveness.peak_bytes >= largest.arguments


def test_a_compiled_training_step_has_its_runs() -> None:
    model = nn.Linear(4, 4)

    def step(x: torch.Tensor) -> None:
        model(x).sum().backward()

    report = reported(lambda: (step, (torch.ones(2, 4),), {}), training="sgd")
    assert [run.program for run in report.runs] == list(range(len(report.programs)))
    assert any("backward" in program.title for program in report.programs)
    assert all(program.lowering_seconds > 0 for program in report.programs)
    assert report.capture_seconds > 0


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(256, 200)
        self.second = nn.Linear(200, 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


@pytest.mark.skipif(plugin_path("tpu") is None, reason="needs libtpu, the compiler")
def test_for_a_chip() -> None:
    def make() -> Any:
        torch.set_default_dtype(torch.bfloat16)
        try:
            model = Pair()
        finally:
            torch.set_default_dtype(torch.float32)
        return model.requires_grad_(False), (torch.ones(60, 256, dtype=torch.bfloat16),), {}

    report = reported(make, "v6e")
    assert report.totals.cycles is not None
    assert report.root.cycles == report.totals.cycles > 0
    assert report.chip is not None
    assert report.chip.product == "TPU v6e (Trillium)"
    assert report.totals.bound == "memory"
    assert {"first", "second"} <= {module.path for module in report.root.modules}
    products = [one for one in report.instructions if one.op == "aten.addmm.default"]
    assert all(re.search(r"test_report\.py:\d+$", one.line) for one in products)
    assert any(one.padded_bytes > one.bytes for one in report.instructions)
    (program,) = report.programs
    own = program.arguments + program.outputs + program.temporaries
    assert program.arguments <= report.liveness.peak_bytes <= 2 * own


# --- reading HLO ---------------------------------------------------------------------------------

HLO = """\
HloModule m, input_output_alias={ {1}: (0, {}, may-alias) }, entry_computation_layout={}

FileNames
1 "/src/a \\"b\\".py"

FunctionNames
1 "f"

FileLocations
1 {file_name_id=1 function_name_id=1 line=7 end_line=7 column=0 end_column=0}

StackFrames
1 {file_location_id=1 parent_frame_id=1}

ENTRY %main (a: f32[4,128]) -> (f32[8,128], f32[4,128]) {
  %a = f32[4,128]{1,0:T(8,128)} parameter(0)
  %start = (f32[4,128]{1,0:T(8,128)S(1)}, f32[4,128]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%a)
  %done = f32[4,128]{1,0:T(8,128)S(1)} copy-done(%start)
  %big = f32[64,128]{1,0:T(8,128)} broadcast(%done), metadata={op_name="m.x/aten.expand.default" \
stack_frame_id=1}
  %cast = f32[64,128]{1,0:T(8,128)} bitcast(%big)
  %out = f32[8,128]{1,0:T(8,128)} slice(%cast)
  %odd = f32[] abs(%k), metadata={op_name="\\303\\251;/x\\"/aten.abs.default"}
  %new = f32[4,128]{1,0:T(8,128)} negate(%a), metadata={op_name="aten.neg.default;b/aten.c.d"}
  ROOT %t = (f32[8,128]{1,0:T(8,128)}, f32[4,128]{1,0:T(8,128)}) tuple(%out, %new)
}
"""


def test_live_bytes() -> None:
    schedule = hlo_text.parse(HLO).instructions
    assert donated_outputs(HLO) == {1}
    found = liveness(3, schedule, donated_outputs(HLO))
    tile = 8 * 128 * 4
    # The argument fills half of its tile; what is donated takes no more.
    assert found.live == (
        tile,
        tile,
        tile,
        9 * tile,
        9 * tile,
        10 * tile,
        2 * tile + 4,
        2 * tile,
        2 * tile,
    )
    assert (found.peak_at, found.peak_bytes, found.instructions) == (5, 10 * tile, 9)
    roles = [(one.name, one.role, one.bytes) for one in found.largest]
    assert roles[0] == ("big", "temporary", 8 * tile)
    assert sorted(roles[1:]) == [("a", "argument", tile), ("out", "output", tile)]
    assert liveness(0, schedule).live[-2:] == (3 * tile, 3 * tile)


def test_live_bytes_of_a_long_schedule_keep_the_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpu_compile.inspector.html.liveness.MOST_POINTS", 3)
    found = liveness(0, hlo_text.parse(HLO).instructions)
    assert len(found.live) == 3
    assert max(found.live) == found.peak_bytes


def test_places() -> None:
    module = hlo_text.parse(HLO)
    places = places_in(module.instructions, module.computations)
    assert places["big"].line == '/src/a "b".py:7'
    assert (places["big"].module, places["big"].op) == ("m.x", "aten.expand.default")
    # A copy of an argument is for its reader; what follows from an op belongs to it.
    assert places["start"] == places["done"] == places["big"] == places["out"] == places["a"]
    assert (places["new"].module, places["new"].op) == ("", "aten.neg.default")
    assert (places["odd"].module, places["odd"].op) == ('é;/x"', "aten.abs.default")
    lone = hlo_text.parse("ENTRY %m () -> f32[] {\n  ROOT %c = f32[] constant(0)\n}\n")
    assert places_in(lone.instructions, {})["c"].module == COMPILER


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        ("aten._scaled_dot_product_flash_attention_for_cpu.default", "product"),
        ("aten.convolution.default", "product"),
        ("aten.index_add.default", "movement"),
        ("aten.t.default", "movement"),
        ("aten.native_layer_norm.default", "reduction"),
        ("aten.tanh.default", "elementwise"),
        ("copy-start", "movement"),
        ("custom-call", "other"),
    ],
)
def test_kinds(op: str, kind: str) -> None:
    assert kind_of(op) == kind


# --- the command ---------------------------------------------------------------------------------


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.html"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert main(["report", HOSTILE, "--target", "cpu", "--html", str(path), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    data = json.loads(Reader(path.read_text()).texts["data"])
    assert printed["totals"] == data["totals"]
    assert printed["instructions"] == len(data["instructions"]["rows"])
    assert data["instructions"]["columns"][0] == "program"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["missing/report.html", "."])
def test_a_report_that_cannot_be_written_is_told_first(
    name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "lower_subject", None)
    arguments = ["report", HOSTILE, "--target", "cpu", "--html", str(tmp_path / name)]
    assert main(arguments) == ExitCode.FILE
    assert capsys.readouterr().err.startswith(f"error: {tmp_path / name} cannot be written: ")
    assert not list(tmp_path.iterdir())


def test_an_older_report_outlives_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.html"
    path.write_text("older")
    failing = HOSTILE.replace(":factory", ":fails")
    assert main(["report", failing, "--target", "cpu", "--html", str(path)]) == ExitCode.MODEL
    assert "no such weights" in capsys.readouterr().err
    assert path.read_text() == "older"
    assert list(tmp_path.iterdir()) == [path]


# --- in a browser --------------------------------------------------------------------------------


def drawn(page: str, folder: Path) -> str:
    """Return the document as Chromium has it once the scripts ran, which must not fail."""
    assert CHROMIUM is not None
    (folder / "page.html").write_text(page)
    switches = (
        "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking "
        "disable-component-update disable-sync dump-dom enable-logging=stderr v=0 "
        f"user-data-dir={folder / 'profile'}"
    )
    done = subprocess.run(
        [CHROMIUM, *(f"--{one}" for one in switches.split()), (folder / "page.html").as_uri()],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert "CONSOLE" not in done.stderr, done.stderr
    (root,) = re.findall(r"<html[^>]*>", done.stdout)
    assert 'data-ready="yes"' in root
    assert "data-error" not in root
    return done.stdout


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_browser_draws_hostile_names_as_text(hostile: Report, tmp_path: Path) -> None:
    document = drawn(make_page(hostile), tmp_path)
    read = Reader(re.sub(r"<script>.*?</script>", "", document, flags=re.DOTALL))
    tags = [tag for tag, _ in read.elements]
    assert "img" not in tags
    assert tags.count("svg") == 3
    labels = [a.get("aria-label") for tag, a in read.elements if tag == "svg" and "role" in a]
    assert len(labels) == 2
    assert all(labels)
    cells = [a["aria-label"] for tag, a in read.elements if tag == "button" and "aria-label" in a]
    assert any(hostile_model.NAME in str(cell) for cell in cells)
    assert "tpu_compile_report_tests.twice.default" in document


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_browser_shows_a_large_model_by_pages(hostile: Report, tmp_path: Path) -> None:
    def row(number: int) -> Instruction:
        return Instruction(
            0, f"fusion.{number}", "fusion", f"layers.{number % 200}", "aten.add.Tensor",
            f"model.py:{number % 900}", "f32[8,128]", 1, number, 4096, 8192, 12288,
        )  # fmt: skip

    children = tuple(
        dataclasses.replace(hostile.root, name=str(number), path=f"layers.{number}", modules=())
        for number in range(2000)
    )
    large = dataclasses.replace(
        hostile,
        instructions=tuple(map(row, range(20_000))),
        root=dataclasses.replace(hostile.root, modules=children),
        totals=dataclasses.replace(hostile.totals, cycles=1),
    )
    document = drawn(make_page(large), tmp_path)
    read = Reader(re.sub(r"<script>.*?</script>", "", document, flags=re.DOTALL))
    assert read.texts["shown"] == "1 to 100 of 20,000"
    # The heaviest first.
    assert ">fusion.19999<" in document
    assert ">fusion.5<" not in document
    tags = [tag for tag, _ in read.elements]
    assert 100 < tags.count("tr") < 200
    assert tags.count("button") < 5000
