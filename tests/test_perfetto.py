"""`--perfetto`: every rule that Chrome's trace-event format has for slices and flows, checked strictly, on drawn and on many spans."""

from collections import defaultdict
from typing import Any

import msgspec
import pytest

from otel_worker import names
from otel_worker.pages import to_perfetto
from otel_worker.traces import Span
from tests.drawing import START, draw
from tests.many import many

pytestmark = pytest.mark.once

CASE = """
task load               |=====                                     | key=l worker=tcp://c worker.name=carol
  execute               |=====                                     | execute.run.cpu=0.5
    run                 |=====                                     | thread.id=7
task sum                |     =====================================| key=x worker=tcp://a worker.name=alice
  waiting               |     ==================================== | wait.network=3.6
    fetch sum           |     ==================================== | peer=tcp://c fetched=25000000
      fetch.queued      |     ===                                  |
      request           |        ==============================    |
        get_data        |        ===========================       | worker=tcp://c worker.name=carol peer=tcp://a
          unspill       |        ========================          | worker=tcp://c
      fetch.deserialize |                                      === |
  execute               |                                         =| execute.run.cpu=0.1
"""


def events(spans: list[Span]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = msgspec.json.decode(to_perfetto(spans))["traceEvents"]
    return found


def check(found: list[dict[str, Any]]) -> None:
    """Slices of a track nest; a flow begins and ends once, in this order, inside of slices; every number is one."""
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    flows: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in found:
        assert all(type(event[name]) is int for name in ("pid", "tid"))
        assert isinstance(event["ts"], (int, float))
        assert event["ts"] >= 0
        assert event["ph"] in ("X", "M", "s", "f")
        if event["ph"] == "X":
            assert event["dur"] >= 0
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] in ("s", "f"):
            flows[event["id"]].append(event)
    for slices in tracks.values():
        _nest(slices)
    for pair in flows.values():
        start, end = pair
        assert (start["ph"], end["ph"], end["bp"]) == ("s", "f", "e")
        assert start["ts"] <= end["ts"]
        assert start["name"] == end["name"]
        assert start["cat"] == end["cat"]
        for event in pair:
            assert any(a - 1e-3 <= event["ts"] <= b + 1e-3 for a, b in tracks[event["pid"], event["tid"]])


def _nest(slices: list[tuple[float, float]]) -> None:
    stack: list[tuple[float, float]] = []
    for start, end in sorted(slices, key=lambda one: (one[0], -one[1])):
        while stack and stack[-1][1] <= start + 1e-6:
            stack.pop()
        assert not stack or end <= stack[-1][1] + 1e-3, f"{(start, end)} crosses {stack[-1]}"
        stack.append((start, end))


def tracks(found: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Process, track, slice: as a person sees them, from top to bottom, by start."""
    processes = {e["pid"]: e["args"]["name"] for e in found if e["name"] == "process_name"}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in found if e["name"] == "thread_name"}
    slices = [e for e in found if e["ph"] == "X"]
    slices.sort(key=lambda e: (e["pid"], e["tid"], e["ts"], -e["dur"]))
    return [(processes[e["pid"]], threads[e["pid"], e["tid"]], e["name"]) for e in slices]


def test_workers_are_processes_and_what_they_do_are_tracks():
    found = events(draw(CASE))
    check(found)
    assert tracks(found) == [
        ("alice (tcp://a)", "waits", "waiting: x"),
        ("alice (tcp://a)", "fetches", "fetch sum"),
        ("alice (tcp://a)", "fetches", "fetch.queued"),
        ("alice (tcp://a)", "fetches", "request"),
        ("alice (tcp://a)", "fetches", "fetch.deserialize"),
        ("alice (tcp://a)", "thread 1", "execute: x"),
        ("carol (tcp://c)", "thread 1", "execute: l"),
        ("carol (tcp://c)", "thread 1", "run"),
        ("carol (tcp://c)", "serves", "get_data"),
        ("carol (tcp://c)", "serves", "unspill"),
    ]


def test_a_transfer_flows_from_what_was_served_to_the_fetch():
    flows = [e for e in events(draw(CASE)) if e["ph"] in ("s", "f")]
    names_ = {e["pid"]: e["args"]["name"] for e in events(draw(CASE)) if e["name"] == "process_name"}
    assert [(e["ph"], names_[e["pid"]], e["ts"]) for e in flows] == [
        ("s", "carol (tcp://c)", 0.8e6),
        ("f", "alice (tcp://a)", pytest.approx(3.8e6 - 1)),
    ]


def test_clocks_that_disagree_leave_a_flow_out_and_count_it():
    spans = draw(
        CASE.replace(
            "get_data        |        ===========================       |", "get_data        |" + " " * 39 + "=  |"
        )
    )
    document = msgspec.json.decode(to_perfetto(spans))
    check(document["traceEvents"])
    assert document["otherData"] == {"start_unix_nano": str(START), "flows_left_out": 1}


def test_what_crosses_its_parent_or_its_sibling_is_cut():
    """A user's own spans, asynchronous ones that overlap among them."""
    spans = draw(
        """
task sum      |==========| key=x worker=a
  execute     |==========| execute.run.cpu=1.0
    run       | ======== |
      mine    |  ====    |
      other   |    ==========|
"""
    )
    mine = [msgspec.structs.replace(s, scope="mine") if s.name in ("mine", "other") else s for s in spans]
    found = events(mine)
    check(found)
    assert [name for _, _, name in tracks(found)] == ["execute: x", "run", "mine", "other"]


def test_many_tasks():
    spans = list(many(500, workers=3).spans)
    found = events(spans)
    check(found)
    drawn = {e["args"]["span_id"] for e in found if e["ph"] == "X"}
    assert {s.span_id for s in spans if s.name != "task sum"} == drawn
    assert len([e for e in found if e["ph"] == "f"]) == len([s for s in spans if s.operation == names.FETCH])


def test_no_spans_are_an_empty_trace():
    assert events([]) == []
