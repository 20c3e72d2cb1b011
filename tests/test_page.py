"""The page in a real browser: what it says first, that its pixels are seconds, its search, and that keys stay text."""

import time
from collections import Counter
from collections.abc import Callable

import pytest

from otel_worker.pages import Found, page
from otel_worker.pages.colors import KINDS
from otel_worker.reports import Options
from otel_worker.traces import Traces
from tests.browser import Page
from tests.drawing import draw
from tests.many import many

pytestmark = pytest.mark.browser

EVIL = "<script>alert(1)</script>"
# Carol takes 2.4 s to read back what alice needs; the request takes 3 s of the fetch of 3.6 s.
CASE = """
compute sum             |==========================================| computation=c
task load               |=====                                     | key=l worker=tcp://c worker.name=carol task.dependencies=0
  execute               |=====                                     | execute.run.cpu=0.5
task sum                |     =====================================| key=x worker=tcp://a worker.name=alice
  waiting               |     ==================================== | wait.peer.unspill=2.4 wait.network=0.6 wait.queued.busy=0.3 wait.deserialize=0.3
    fetch sum           |     ==================================== | peer=tcp://c fetched=25000000 outcome=success
      fetch.queued      |     ===                                  | fetch.time.queued.busy=0.3
      request           |        ==============================    | request.network=0.6 request.peer_unspill=2.4
      fetch.deserialize |                                      === |
  execute               |                                         =| execute.run.cpu=0.1
"""
PARTS = {"holders busy": 0.3, "reads from its disk": 2.4, "network": 0.6, "deserialize": 0.3}


def html(drawing: str = CASE) -> str:
    return page(Found(Traces(tuple(draw(drawing))), "case.jsonl", Options(top=10)))


def test_the_first_thing_to_read_is_the_answer(open_page: Callable[..., Page]):
    shown = open_page(html())
    lines = [line for line in shown.texts().splitlines() if line.strip()]
    assert lines[0] == "Where the time went"
    assert lines[2].startswith("2 tasks on 2 workers took 4.2 s, added up: 86% waiting for data (3.6 s)")
    assert lines[3] == (
        "carol was slow. 1 task waited 3.6 s for values from carol: 2.4 s while carol read them back from its disk and "
        "600 ms on the network."
    )
    assert shown.run("return document.querySelector('.answer').getBoundingClientRect().bottom") < 400


def test_a_fetch_zoomed_to_has_its_seconds_in_pixels(open_page: Callable[..., Page]):
    """Not what we say is drawn, but the pixels of the canvas: each part's colour, as wide as its share of the fetch."""
    shown = open_page(html())
    fetch = next(bar for bar in shown.drawn() if bar["title"].startswith("fetch from carol"))
    shown.zoom(0.5, 4.1)
    bars = [bar for bar in shown.drawn() if bar["title"] == fetch["title"]]
    found = {bar["part"].partition(":")[0]: bar["right"] - bar["left"] for bar in bars}
    assert found == pytest.approx(PARTS, abs=1e-5)
    seen = Counter(shown.pixels(fetch["y"]))
    widths = {bar["color"]: seen[rgb(bar["color"])] for bar in bars}
    whole = sum(widths.values())
    assert whole > 900
    for bar in bars:
        seconds = bar["right"] - bar["left"]
        assert widths[bar["color"]] == pytest.approx(seconds / 3.6 * whole, abs=3), bar["part"]


def rgb(color: str) -> tuple[int, int, int]:
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return red, green, blue


def test_a_search_finds_a_key_and_shows_it(open_page: Callable[..., Page]):
    shown = open_page(html())
    results = shown.search("X")
    assert results[0] == "2 found:"
    assert results[1].endswith("3.600 s alice waits: x")
    assert {bar["alpha"] for bar in shown.drawn() if bar["title"].endswith(": x")} == {1}
    assert {bar["alpha"] for bar in shown.drawn() if bar["title"] == "runs: l"} == {0.15}
    shown.run("document.querySelector('#results button').click()")
    start, end = shown.run("const {start, end} = otelWorker.plot().x_range; return [start, end]")
    assert (start, end) == pytest.approx((0.5 - 0.04 * 3.6, 4.1 + 0.04 * 3.6), abs=0.01)
    assert shown.search("nobody-has-this") == ["Nothing drawn has such a key."]
    shown.run("document.getElementById('zoom-whole').click()")
    assert shown.run("return otelWorker.plot().x_range.end") > 4.2


def test_a_drag_over_the_time_zooms_to_it(open_page: Callable[..., Page]):
    shown = open_page(html())
    shown.drag(1.0, 2.0, 0)
    start, end = shown.run("const {start, end} = otelWorker.plot().x_range; return [start, end]")
    assert (start, end) == pytest.approx((1.0, 2.0), abs=0.02)
    shown.until("return /^(1[.]0|9[89])/.test(document.getElementById('detail').innerText)")  # 1.01 s, or 991 ms


def test_a_slow_task_is_shown_by_its_button(open_page: Callable[..., Page]):
    shown = open_page(html())
    shown.run("document.querySelector('button[data-start]').click()")
    start, end = shown.run("const {start, end} = otelWorker.plot().x_range; return [start, end]")
    assert (start, end) == pytest.approx((0.5 - 0.04 * 3.7, 4.2 + 0.04 * 3.7), abs=0.01)


def test_keys_from_strangers_stay_text(open_page: Callable[..., Page]):
    """In tables, sentences, titles, results and the browser's own title; and where the mouse points."""
    drawing = CASE.replace("key=x", f'key="{EVIL}x"').replace("key=l", f'key="{EVIL}</script><img/src=x>l"')
    drawing = drawing.replace("task sum", f"task {EVIL.replace('<', '<i>')}").replace("name=alice", f'name="<b>{EVIL}"')
    shown = open_page(html(drawing))
    assert f"{EVIL}x" in shown.texts()
    assert any(line.endswith(f"waits: {EVIL}x") for line in shown.search("script"))
    bar = next(bar for bar in shown.drawn() if bar["title"] == f"waits: {EVIL}x" and bar["right"] - bar["left"] > 1)
    shown.point((bar["left"] + bar["right"]) / 2, bar["y"])
    tip = shown.until(_TIP)
    assert f"waits: {EVIL}x" in tip
    assert shown.run("return document.querySelectorAll('img').length") == 0
    assert shown.run("return [...document.scripts].filter((s) => s.textContent === 'alert(1)').length") == 0
    assert shown.run("return document.title") == "Where the time went: case.jsonl"


_TIP = """
const every = (root) => [...root.querySelectorAll('*')].flatMap((e) => e.shadowRoot ? [e, ...every(e.shadowRoot)] : [e]);
const tip = every(document).find((e) => e.className && String(e.className).includes('bk-Tooltip'));
return tip ? (tip.shadowRoot || tip).textContent || tip.innerText : '';
"""


@pytest.mark.parametrize("width", [1400, 800])
def test_the_page_fits_its_window(open_page: Callable[..., Page], width: int):
    shown = open_page(html(), width)
    assert shown.run("return document.documentElement.scrollWidth <= window.innerWidth")
    assert shown.run("return otelWorker.plot().inner_width") > width / 2


def test_every_activity_has_one_colour_everywhere(open_page: Callable[..., Page]):
    shown = open_page(html())
    colors = {kind.color for kind in KINDS}
    assert {bar["color"] for bar in shown.drawn()} <= colors
    segments = shown.run(
        "return [...document.querySelectorAll('.breakdown .bar i')].map((e) => [e.title.split('\\n')[0], e.style.backgroundColor])"
    )
    for told, color in segments:
        kind = next(kind for kind in KINDS if kind.label in told)
        assert color == f"rgb({', '.join(map(str, rgb(kind.color)))})"


def test_ten_thousand_tasks_are_usable(open_page: Callable[..., Page]):
    """Seconds of CPU and of the browser, with room for a machine that does other things; docs/page.md has those measured."""
    before = time.process_time()
    text = page(Found(many(10_000), "many", Options(top=20)))
    assert time.process_time() - before < 30
    assert len(text) < 12e6
    shown = open_page(text)
    assert "are drawn together" in shown.run("return document.getElementById('detail').innerText")
    for end in (10, 1, 0.01):
        shown.zoom(0, end)
        assert 0 < len(shown.drawn()) < 16_000
        assert shown.run("const t = performance.now(); otelWorker.draw(); return performance.now() - t") < 3_000
    assert "drawn together" not in shown.run("return document.getElementById('detail').innerText")


def test_nothing_comes_from_the_network(open_page: Callable[..., Page]):
    """Not even where a worker's name looks like TeX, for which Bokeh could load a library."""
    shown = open_page(html(CASE.replace("name=alice", "name=$$a$$")))
    assert shown.run("return performance.getEntriesByType('resource').map((entry) => entry.name)") == []
