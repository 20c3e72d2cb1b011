"""A report as a person reads it, and as a program does."""

import io
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from otel_worker import names
from otel_worker.breakdown import BY, self_check
from otel_worker.checks import check
from otel_worker.reports import METHODS, Options, Report, build, render, to_json
from otel_worker.reports.schema import text as schema_text
from otel_worker.traces import Link, Resource, Span, Traces
from otel_worker.trees import tree
from tests.drawing import draw

CASE = """
compute sum          |                             =================================| computation=c
task load            |                             ==========                       | key=l worker=tcp://a task.dependencies=0 nbytes=8000000
  execute            |                             ==========                       | execute.run.cpu=1.0
task sum             |                             =================================| key=x worker=tcp://a
  waiting            |                             ===============================  | wait.peer.unspill=2.4 wait.network=0.7
    fetch sum        |                             ===============================  | peer=tcp://slow
      request        |                             ===============================  | request.network=0.7 request.peer_unspill=2.4
  execute            |                                                             =| execute.run.cpu=0.1
"""


def report(options: Options | None = None, problems: tuple[str, ...] = (), drawing: str = CASE) -> Report:
    return build(Traces(tuple(draw(drawing)), problems), "case.jsonl", options)


def text(found: Report, width: int = 120, **more: bool) -> str:
    out = io.StringIO()
    render(found, Console(file=out, width=width, highlight=False, markup=False, emoji=False, **more))  # type: ignore[arg-type]
    return out.getvalue()


def test_everything_a_person_is_told():
    lines = [line.rstrip() for line in text(report(problems=("Line 3 is cut off.",))).splitlines()]
    assert lines == [
        "2 tasks of 1 computation on 1 worker, from 2023-11-14 22:13:22 UTC over 3.3 s, method shares",
        "",
        "                           seconds   share                tasks   mean    p50    p95    max",
        "all tasks                    4.300  100.0%  ████████████      2  2.150  1.000  3.300  3.300",
        "  waiting for data           3.100   72.1%  █████████         1  3.100  3.100  3.100  3.100",
        "    at the peer              2.400   55.8%  ███████           1  2.400  2.400  2.400  2.400",
        "      reads from its disk    2.400   55.8%  ███████           1  2.400  2.400  2.400  2.400",
        "    network                  0.700   16.3%  ██                1  0.700  0.700  0.700  0.700",
        "  executing                  1.100   25.6%  ███               2  0.550  0.100  1.000  1.000",
        "    running                  1.100   25.6%  ███               2  0.550  0.100  1.000  1.000",
        "      on the CPU             1.100   25.6%  ███               2  0.550  0.100  1.000  1.000",
        "  short phases and gaps      0.100    2.3%  ▏                 1  0.100  0.100  0.100  0.100",
        "",
        "Slowest tasks",
        "     3.300 s  x on tcp://a waited 3.1 s, 2.4 s of it for tcp://slow to read from disk.",
        "     1.000 s  l on tcp://a was executing for 1.0 s, all of it computing.",
        "",
        "Producers overtaking",
        (
            "     1.000 s  1 task of sum waited for data while their worker ran 1 of load, which made 8.0"
            " MB (32% of all their waiting)."
        ),
        "",
        "What if a part took no time",
        (
            "     3.300 s  computation 00000000000000000000000000000001: without unspill 0.900 s (73%"
            " less), without network 2.600 s (21% less), at best."
        ),
        "",
        "Problems of the source",
        "  Line 3 is cut off.",
    ]


@pytest.mark.parametrize("width", [20, 40, 63, 64, 80, 84, 100, 200])
def test_tables_fit_the_window(width):
    head, _, _ = text(report(), width).partition("Slowest tasks")
    table = head.split("\n\n", 1)[1]
    assert max(len(line) for line in table.splitlines()) <= width
    assert "100.0%" in table or width <= 40


def test_no_colours_where_none_are_wanted(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[" in text(report(), force_terminal=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", text(report(), force_terminal=True))


def test_keys_can_not_move_the_cursor():
    assert "\x1b" not in text(report(Options(by=("key",)), drawing="task a |===| key='\x1b[2Jx'"))


def test_groups_that_are_not_shown_are_counted():
    assert "… and 1 more group: 1 task, 1.000 s." in text(report(Options(by=("key",), groups=1)))


def test_by_and_only():
    found = report(Options(by=("prefix", "worker"), only={"prefix": "sum"}))
    assert [g.by for g in found.groups] == [{"prefix": "sum", "worker": "tcp://a"}]
    assert "prefix sum, worker tcp://a" in text(found)


def test_critical_path_is_told_in_the_same_words():
    found = report(Options(method="critical_path"))
    assert "waited 3.1 s, 2.4 s of it for tcp://slow to read from disk" in text(found)
    assert all(self_check(group.tree) == [] for group in found.groups)


def test_json_is_what_its_schema_says():
    found = report(Options(by=("prefix",)))
    assert msgspec.json.decode(to_json(found), type=Report) == found
    assert b'"schema": "otel-worker/report/1"' in to_json(found)


def test_the_committed_schema_is_current():
    committed = Path(__file__).parent.parent / "docs" / "report.schema.json"
    assert committed.read_bytes() == schema_text(), "python -m otel_worker.reports.schema > docs/report.schema.json"


def test_a_report_of_nothing():
    found = build(Traces(), "nothing", None)
    assert found.extent.tasks == 0
    assert "0 tasks" in text(found)


def test_a_selection_is_seen_among_all():
    found = report(Options(only={"prefix": "sum"}))
    assert found.extent.tasks == 1
    assert [pair.producer for pair in found.overtaking] == ["load"]
    assert found.what_if == report().what_if
    assert report(Options(only={"prefix": "load"})).overtaking == ()


# --- anything -----------------------------------------------------------------------------------------------------

NAMES = [
    "compute c",
    "submit",
    "task a",
    "task b",
    "tasks a",
    "waiting",
    "ready",
    "execute",
    "run",
    "fetch a",
    "fetch.queued",
    "connect",
    "connect.dial",
    "request",
    "get_data",
    "unspill",
    "spill",
    "get_data.serialize",
    "fetch.deserialize",
    "GET /",
]
ATTRIBUTES = [
    v for n, v in vars(names).items() if isinstance(v, str) and v.startswith("dask.") and not n.startswith("METRIC")
]
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.lists(st.text(max_size=3), max_size=2)
)
IDS = st.sampled_from(["a", "b", "c", "d", "e", "f", "g"])
TIMES = st.one_of(st.integers(0, 30), st.integers(0, 2**64))
SPANS = st.builds(
    Span,
    trace_id=st.sampled_from(["t", "u"]),
    span_id=IDS,
    parent_id=st.one_of(st.just(""), IDS),
    name=st.sampled_from(NAMES),
    start=TIMES,
    end=TIMES,
    scope=st.sampled_from([names.SCOPE, names.SCOPE, "another"]),
    resource=st.sampled_from([Resource({"host.name": "h"}), Resource()]),
    attributes=st.dictionaries(
        st.sampled_from([*ATTRIBUTES, "dask.wait.network", "dask.execute.run.cpu", "dask.fetch.time.network"]),
        VALUES,
        max_size=4,
    ),
    links=st.lists(st.builds(Link, trace_id=st.just("t"), span_id=IDS), max_size=2).map(tuple),
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(SPANS, max_size=12), st.sampled_from(METHODS), st.lists(st.sampled_from(list(BY)), max_size=2, unique=True)
)
def test_whatever_the_spans_say_there_is_a_report(spans, method, by):
    unique = tuple({s.ref: s for s in spans}.values())
    found = build(Traces(unique), "x", Options(method=method, by=tuple(by)))
    assert [text for text in found.missing if "more than its parts" in text or "less than nothing" in text] == []
    assert msgspec.json.decode(to_json(found), type=Report) == found
    text(found)
    tree(unique, links=True, seconds=True, details=True)
    check(unique)
