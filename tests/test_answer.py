"""The answer in plain words: which peer was slow, and why; what a notebook and a program get of it."""

import html
import re
from pathlib import Path

import pytest

import otel_worker
from otel_worker.breakdown import overtaking, tasks, worker_names
from otel_worker.breakdown.activities import WORDS
from otel_worker.breakdown.answer import Answer, answer
from otel_worker.breakdown.ours import Ours
from otel_worker.breakdown.peers import peers
from otel_worker.pages import Found, TimeReport
from otel_worker.pages.colors import KINDS, OTHER, kind_of
from otel_worker.pages.lanes import NOT_DRAWN, by_owner, longest_packed, packed
from otel_worker.reports import Options
from otel_worker.traces import SourceError, Traces
from otel_worker.traces.collected import Collected, Limits
from tests.drawing import draw
from tests.many import many

pytestmark = pytest.mark.once

SLOW = """
task sum                |====================================| key=x worker=tcp://a worker.name=alice
  waiting               |====================================| wait.peer.unspill=2.4 wait.network=0.6 wait.deserialize=0.6
    fetch sum           |====================================| peer=tcp://c fetch.keys=y fetched=8000000
      request           |==============================      | request.network=0.6 request.peer_unspill=2.4
        get_data        |===========================         | worker=tcp://c worker.name=carol
          unspill       |========================            | worker=tcp://c spill.key=y
            unspill.read        |===                         | worker=tcp://c
            unspill.deserialize |   =====================    | worker=tcp://c
      fetch.deserialize |                              ======|
task load               |=                                   | key=y worker=tcp://c worker.name=carol
"""
BUSY = """
task sum        |====================| key=x worker=tcp://a worker.name=alice
  waiting       |====================| wait.queued.busy=1.8 wait.network=0.2
    fetch sum   |=                   | peer=tcp://b outcome=busy
      request   |=                   |
    fetch sum   |                   =| peer=tcp://b outcome=success
      request   |                   =|
task load       |=                   | key=y worker=tcp://b worker.name=bob
"""
BLOCKED = """
task sum           |====================| key=x worker=tcp://a worker.name=alice
  waiting          |====================| wait.peer.loop=1.9 wait.network=0.1
    fetch sum      |====================| peer=tcp://d
      request      |====================| request.network=0.1 request.peer_loop=1.9
event_loop.blocked |=================== | worker=tcp://d event_loop.cause=task event_loop.blocked_by=hold-0
task load          |=                   | key=y worker=tcp://d worker.name=dave
"""


def told(drawing: str) -> Answer:
    ours = Ours(draw(drawing))
    found = tasks(ours)
    return answer(found, peers(found, ours), overtaking(found), worker_names(found))


CARRIED = (
    "1 task waited 3.6 s for values from carol: 2.4 s while carol read them back from its disk (unpickling took 2.1 s, 2.1 s "
    "for y), 600 ms while they were unpickled where they arrived and 600 ms on the network."
)
REFUSED = "1 task waited 2.0 s for values from bob: 1.8 s because bob answered that it was busy (1 time)."
HELD = (
    "1 task waited 2.0 s for values from dave: 1.9 s because dave's event loop was blocked (once for 1.9 s by hold-0)."
)


@pytest.mark.parametrize(
    ("drawing", "verdict", "sentence"),
    [(SLOW, "carol was slow", CARRIED), (BUSY, "bob was busy", REFUSED), (BLOCKED, "dave did not answer", HELD)],
)
def test_which_peer_was_slow_and_why(drawing: str, verdict: str, sentence: str):
    (found,) = told(drawing).verdicts
    assert (found.verdict, found.sentence) == (verdict, sentence)


def test_peers_that_are_alike_are_not_called_slow():
    found = TimeReport(Found(many(400, workers=8), "many", Options())).answer
    assert [v.verdict for v in found.verdicts] == ["No peer stood out"]
    assert "for values from 8 peers, for each about as long" in found.verdicts[0].sentence


def test_peers_that_are_alike_in_seconds_alone_are_told_one_by_one():
    three = (drawing.replace("tcp://a", f"tcp://a{i}") for i, drawing in enumerate((SLOW, BUSY * 2, BLOCKED * 2)))
    assert [v.verdict for v in told("".join(three)).verdicts] == [
        "bob was busy",
        "dave did not answer",
        "carol was slow",
    ]


def test_where_nobody_waited_nobody_was_slow():
    found = told("task sum | ====== | key=x worker=a\n  execute | ====== | execute.run.cpu=0.6")
    assert found.headline == "1 task on 1 worker took 600 ms, added up: 100% executing (600 ms)."
    assert found.verdicts == ()
    assert found.remarks == ("No task waited for data.",)


def test_what_tasks_waited_for_peers_adds_up():
    spans = many(300, workers=3)
    ours = Ours(spans.spans)
    found = tasks(ours)
    waited = sum(sum(ns for path, ns in t.parts.items() if path.startswith("waiting.")) for t in found) / 1e9
    assert sum(p.seconds for p in peers(found, ours)) == pytest.approx(waited, rel=1e-6)
    assert all(sum(p.parts.values()) == pytest.approx(p.seconds) for p in peers(found, ours))


# --- colours and lanes -------------------------------------------------------------------------------------------------


def test_every_activity_that_has_words_has_a_colour():
    leaves = [p for p in WORDS if not any(other.startswith(f"{p}.") for other in WORDS)]
    grey = {"waiting.other", "execute.other", "other"}  # what nothing explains
    assert {p for p in leaves if kind_of(p) == OTHER} == grey
    assert len({kind.color for kind in KINDS}) == len(KINDS)


# As Machado, Oliveira and Fernandes (2009) simulate them, severity 1, on linear RGB.
_SIGHTS = {
    "deuteranopia": ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)),
    "protanopia": ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)),
    "tritanopia": ((1.256, -0.077, -0.179), (-0.078, 0.931, 0.148), (0.005, 0.691, 0.304)),
}


@pytest.mark.parametrize("sight", [None, *_SIGHTS])
def test_colours_can_be_told_apart(sight: str | None):
    """Any two, in CIE Lab as such a person sees them; 2.3 is what is just noticed side by side."""
    seen = {kind.name: _lab(_linear(kind.color), sight) for kind in KINDS}
    pairs = {
        (a, b): sum((x - y) ** 2 for x, y in zip(seen[a], seen[b], strict=True)) ** 0.5
        for a in seen
        for b in seen
        if a < b
    }
    assert min(pairs.values()) > 12, min(pairs, key=pairs.__getitem__)


def _linear(color: str) -> list[float]:
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]


def _lab(rgb: list[float], sight: str | None) -> tuple[float, float, float]:
    if sight:
        rgb = [min(1, max(0, sum(m * c for m, c in zip(row, rgb, strict=True)))) for row in _SIGHTS[sight]]
    rows = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    white = (0.9505, 1.0, 1.089)
    xyz = [sum(m * c for m, c in zip(row, rgb, strict=True)) / w for row, w in zip(rows, white, strict=True)]
    x, y, z = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def test_lanes():
    overlapping = [(0, 10), (5, 8), (8, 12), (10, 20), (11, 30)]
    assert packed(overlapping) == [0, 1, 1, 0, 2]
    kept = longest_packed(overlapping, 1)
    assert [i for i, lane in enumerate(kept) if lane != NOT_DRAWN] == [0, 4]
    assert by_owner([(0, 5), (1, 4), (6, 8), (6, 9)], ["a", "b", "b", "a"]) == [0, 1, 1, 0]
    assert packed([(3, 3), (3, 3)]) == [0, 1]


# --- the object --------------------------------------------------------------------------------------------------------


def test_a_report_of_collected_spans():
    into = Collected(Limits())
    for span in draw(SLOW):
        into.add(span)
    found = otel_worker.report(into)
    assert repr(found) == "<TimeReport of Collected: 2 tasks on 2 workers>"
    assert "waiting for data" in found.text()
    assert str(found) == found.text()
    shown = found._repr_mimebundle_()["text/html"]
    assert "<b>carol was slow.</b>" in shown
    assert "<script" not in shown


def test_a_report_as_a_table():
    frame = otel_worker.report(Traces(tuple(draw(SLOW)))).to_pandas()
    assert list(frame["key"]) == ["x", "y"]
    assert list(frame.columns[:14]) == [
        *("key", "prefix", "group", "worker", "worker_name", "outcome", "count", "start"),
        *("total", "waiting", "ready", "execute", "arrival", "other"),
    ]
    row = frame.iloc[0]
    assert row["waiting.peer.unspill"] == pytest.approx(2.4)
    assert str(row["start"]) == "2023-11-14 22:13:20+00:00"
    for _, row in otel_worker.report(many(50)).to_pandas().iterrows():
        phases = row[["waiting", "ready", "execute", "arrival", "other"]].sum()
        assert row["total"] == pytest.approx(phases)
        assert row["waiting"] == pytest.approx(
            row[[c for c in frame.columns if c.startswith("waiting.") and c in row]].sum(), abs=0.05
        )


def test_a_page_written_by_the_object(tmp_path: Path):
    path = otel_worker.report(Traces(tuple(draw(SLOW)))).to_html(tmp_path / "page.html")
    assert "<b>carol was slow.</b>" in path.read_text()


def test_wrong_sources_are_one_sentence(tmp_path: Path):
    with pytest.raises(SourceError, match="No such file"):
        otel_worker.report(tmp_path / "missing.jsonl")
    with pytest.raises(TypeError, match=r"report\(\) takes a file, .*, not int"):
        otel_worker.report(3)
    with pytest.raises(ValueError, match="'fast' is not one of shares, critical_path"):
        otel_worker.report(Traces(), method="fast")


def test_without_a_task_there_is_still_something_to_show():
    found = otel_worker.report(Traces())
    assert "0 tasks took no time." in found._repr_html_()
    assert len(found.to_pandas()) == 0


def test_keys_are_text_in_a_notebook():
    evil = "<img/src=x/onerror=alert(1)>"
    shown = otel_worker.report(Traces(tuple(draw(SLOW.replace("key=x", f"key={evil}")))))._repr_html_()
    assert evil not in shown
    assert html.escape(evil) in shown
    assert not re.search(r"<img", shown)
