"""The options --html and --perfetto: what is written, what is said, and what can't be."""

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from otel_worker import names
from otel_worker.cli.group import otel_worker
from otel_worker.pages import Found, TimeReport, bars, page, to_perfetto
from otel_worker.pages.waterfall import data
from otel_worker.reports import Options
from otel_worker.traces import Span, Traces
from tests.drawing import draw
from tests.lines import otlp_lines
from tests.many import many
from tests.test_perfetto import check
from tests.test_report import CASE, SPANS

pytestmark = pytest.mark.once

PROGRAM = """
from distributed import Client

if __name__ == "__main__":
    with Client(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None) as client:
        print(client.submit(pow, 2, 10, key="pow-1").result())
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "traces.jsonl"
    path.write_bytes(otlp_lines(draw(CASE)))
    return path


def report(*arguments: object) -> Result:
    return CliRunner().invoke(otel_worker, ["report", *map(str, arguments)], prog_name="otel-worker")


def test_pictures_beside_the_report(file: Path, tmp_path: Path):
    html, perfetto = tmp_path / "page.html", tmp_path / "trace.json"
    found = report(file, "--html", html, "--perfetto", perfetto)
    assert found.exit_code == 0
    assert "2 tasks of 1 computation" in found.stdout
    assert found.stderr == f"The page is in {html}.\nThe trace for Perfetto is in {perfetto}.\n"
    assert html.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert len(json.loads(perfetto.read_text())["traceEvents"]) > 10


def test_a_file_that_cant_be_written_is_one_sentence_and_keeps_no_other(file: Path, tmp_path: Path):
    found = report(file, "--html", tmp_path / "missing" / "page.html", "--perfetto", tmp_path / "trace.json")
    assert found.exit_code == 1
    assert f"otel-worker: {tmp_path}/missing/page.html can't be written: No such file or directory." in found.stderr
    assert (tmp_path / "trace.json").exists()


def test_without_bokeh_it_says_what_to_install(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "bokeh.embed", None)
    found = report(file, "--html", tmp_path / "page.html")
    assert found.exit_code == 1
    assert found.stderr == "otel-worker: --html needs Bokeh: pip install 'otel-worker[html]'.\n"


def test_the_report_alone_loads_no_bokeh(file: Path):
    code = f"""
import sys
from otel_worker.cli.group import otel_worker
try:
    otel_worker(["report", {str(file)!r}])
finally:
    assert not {{"bokeh", "pandas"}} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_run_writes_both(tmp_path: Path):
    (tmp_path / "program.py").write_text(PROGRAM)
    html, perfetto = tmp_path / "page.html", tmp_path / "trace.json"
    command = [str(Path(sys.executable).with_name("otel-worker")), "run", "--out", str(tmp_path / "out")]
    command += ["--html", str(html), "--perfetto", str(perfetto), str(tmp_path / "program.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (0, "1024\n"), done.stderr
    assert f"The page is in {html}." in done.stderr
    assert "pow-1" in html.read_text(encoding="utf-8")
    assert "pow-1" in perfetto.read_text(encoding="utf-8")


def test_a_page_without_tasks_says_so():
    text = page(Found(Traces(), "nothing", Options()))
    assert "0 tasks took no time." in text
    assert "There is nothing to draw: no span stands for a single task." in text


def test_what_is_too_much_to_draw_is_said_on_the_page(monkeypatch: pytest.MonkeyPatch):
    """The slowest one by one, of the others when they kept a thread busy; and the workers that waited longest."""
    monkeypatch.setattr(bars, "MOST_TASKS", 100)
    found = Found(many(400, workers=20, threads=1), "many", Options())
    drawn = found.picture
    assert drawn.left_out[0].startswith("100 of 400 tasks are drawn one by one: the slowest, with ")
    assert "Of the others it is drawn when they kept a thread busy." in drawn.left_out[0]
    whats = [bars.WHATS[int(what)] for what in drawn.items[0]]
    assert whats.count("runs") == 100
    assert whats.count("others") > 0
    monkeypatch.setattr(bars, "MOST_LANES", 20)
    fewer = Found(found.traces, "many", Options())
    assert any(
        "of 20 workers are drawn: those whose tasks waited longest for data." in s for s in fewer.picture.left_out
    )
    shown = page(fewer)
    assert all(sentence in shown for sentence in fewer.picture.left_out)


def test_bars_of_what_is_drawn_have_the_seconds_of_the_report():
    """Every wait's bars add up to it, and every execution's."""
    found = Found(many(200, workers=2), "many", Options())
    drawn = found.picture
    sums: dict[int, float] = {}
    for start, end, item in zip(drawn.bars[1], drawn.bars[2], drawn.bars[5], strict=True):
        sums[int(item)] = sums.get(int(item), 0.0) + end - start
    for number, (start, end) in enumerate(zip(drawn.items[6], drawn.items[7], strict=True)):
        assert sums[number] == pytest.approx(end - start, abs=2e-6)


def test_an_execution_is_drawn_in_its_parts():
    """What a span tells stands where it was; before and after the run, what the sums still lack there."""
    told = "execute.load=0.1 execute.load.unspill=0.3 execute.executor_queue=0.1 execute.run.cpu=0.6 execute.run.shuffle.flush=0.2"
    drawing = f"""
task sum   |=============| key=x worker=a
  execute  |=============| {told} execute.loop=0.1 execute.store=0.1 execute.store.spill=0.1
    unspill|  ===        | spill.key=y
    run    |     ======  |
    spill  |            =| spill.key=z
"""
    drawn = Found(Traces(tuple(draw(drawing))), "case", Options()).picture
    parts = [
        (drawn.strings.texts[int(path)].removeprefix("execute."), round(start, 3), round(end, 3))
        for start, end, path in zip(drawn.bars[1], drawn.bars[2], drawn.bars[4], strict=True)
    ]
    assert parts == [
        ("load", 0.0, 0.1),
        ("executor_queue", 0.1, 0.2),
        ("load.unspill", 0.2, 0.5),
        ("run.cpu", 0.5, 0.95),
        ("run.shuffle.flush", 0.95, 1.1),
        ("loop", 1.1, 1.15),
        ("store", 1.15, 1.2),
        ("store.spill", 1.2, 1.3),
    ]


OURS = SPANS.map(lambda span: msgspec.structs.replace(span, scope=names.SCOPE))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example([Span("t", "a", "", "task a", 2**64, 5, scope=names.SCOPE)])
@given(st.lists(st.one_of(OURS, SPANS), max_size=10))
def test_whatever_the_spans_say_there_are_pictures(spans: list[Span]):
    unique = tuple({s.ref: s for s in spans}.values())
    found = TimeReport(Found(Traces(unique), "x", Options()))
    assert "<script" not in found._repr_html_()
    assert len(found.to_pandas()) == len(found._found.tasks)
    check(json.loads(to_perfetto(unique))["traceEvents"])
    json.dumps(data(found._found.picture, found._found.workers))
