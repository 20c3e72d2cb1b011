"""What is open, to the nanosecond, as the recorder's records say it; and when a task is told as stuck."""

import logging
from typing import Any

import pytest

from otel_worker import names
from otel_worker.budget import Budget
from otel_worker.openings import longest, tally
from otel_worker.settings import Settings
from otel_worker.spans import Emitter
from otel_worker.stuck import MOST, Stuck
from otel_worker.testing import Switch
from tests.desk import SECOND, Desk, ns


def rows(desk: Desk, at: float, most: int = 100) -> list[tuple[Any, ...]]:
    """(kind, key, state, seconds, phase, seconds in it, peer), the longest first."""
    found, _ = longest(desk.recorder, ns(at), most)
    return [
        (o.kind, o.key, o.state, (ns(at) - o.since) / SECOND, p.name, (ns(at) - p.since) / SECOND, p.peer)
        for o, p in found
    ]


def test_a_request_without_an_answer_and_the_task_that_waits_for_it():
    desk = Desk()
    desk.held("x-1", "tcp://a")
    desk.wait(0, "sum-1", "x-1", **{"x-1": "fetch"})
    desk.fetch(1, "tcp://a", "x-1")
    assert rows(desk, 4) == [
        ("task", "sum-1", "waiting", 4.0, names.REQUEST, 3.0, "tcp://a"),
        ("fetch", "x-1", "flight", 3.0, names.REQUEST, 3.0, "tcp://a"),
    ]


def test_a_key_that_is_not_requested_says_why():
    desk = Desk()
    desk.held("x-1", "tcp://a")
    desk.held("x-2", "tcp://b")
    desk.state.data_needed = {"tcp://a": 1}
    desk.state.busy_workers.add("tcp://a")
    desk.state.in_flight_workers["tcp://b"] = {"x-0"}
    desk.wait(0, "sum-1", "x-1 x-2", **{"x-1": "fetch", "x-2": "fetch"})
    reasons = {row[1]: (row[4], row[6]) for row in rows(desk, 2)}
    assert reasons["x-1"] == (names.QUEUED_BUSY, "tcp://a")
    assert reasons["x-2"] == (names.QUEUED_IN_FLIGHT, "tcp://b")
    desk.state.running = False
    desk.move(3)
    assert {row[4] for row in rows(desk, 4)} == {names.QUEUED_PAUSED}


def test_what_is_done_counts_before_what_waits():
    desk = Desk()
    for key in ("x-1", "x-2"):
        desk.held(key, "tcp://a")
    desk.wait(0, "sum-1", "x-1 x-2", **{"x-1": "fetch", "x-2": "missing"})
    assert rows(desk, 1)[0][4] == names.QUEUED_HEAD_OF_LINE
    fetch = desk.fetch(2, "tcp://a", "x-1")
    assert rows(desk, 3)[0][4:] == (names.REQUEST, 1.0, "tcp://a")
    desk.end(4, fetch)
    assert rows(desk, 5)[0][4:] == (names.MISSING, 5.0, "")


def test_ready_and_executing_say_what_for():
    desk = Desk()
    desk.move(0, **{"a-1": "ready"})
    assert rows(desk, 1) == [("task", "a-1", "ready", 1.0, names.READY_THREAD_SLOT, 1.0, "")]
    desk.state.running = False
    assert rows(desk, 1)[0][4] == names.READY_PAUSED
    desk.move(2, **{"a-1": "executing"})
    task = desk.recorder.execute_began("a-1", ns(3))
    assert task is not None
    phases = []
    for mark in ("", "submitted", "run_begun", "run_ended", "taken"):
        if mark:
            setattr(task, mark, ns(4))
        phases.append(rows(desk, 5)[0][4])
    assert phases == [names.LOAD, names.RUN_QUEUE, names.RUN, names.LOOP, names.STORE]


def test_a_request_that_is_served():
    desk = Desk()
    serve = desk.recorder.serve_began(["x-1"], "tcp://b", ns(0))
    phases = []
    for mark in ("", "writing", "serialized", "written"):
        if mark:
            setattr(serve, mark, ns(1))
        phases.append(rows(desk, 2)[0][4])
    assert phases == [names.UNSPILL, names.SERIALIZE, names.SEND, names.ACK]
    assert rows(desk, 2)[0][:4] == ("get_data", "x-1", names.GET_DATA, 2.0)


def test_the_longest_are_told_and_all_are_counted():
    desk = Desk()
    for i in range(50):
        desk.move(i, **{f"a-{i}": "ready"})
    found, count = longest(desk.recorder, ns(60), 3)
    assert [opening.key for opening, _ in found] == ["a-0", "a-1", "a-2"]
    assert count == 50


def test_all_tasks_are_counted_by_what_they_do():
    desk = Desk()
    desk.held("x-1", "tcp://a")
    desk.wait(0, "sum-0", "x-1", **{"x-1": "fetch"})
    for i in range(1, 300):
        desk.wait(0, f"sum-{i}", "x-1")
    desk.fetch(1, "tcp://a", "x-1")
    desk.move(1, **{"a-1": "ready", "b-1": "executing"})
    found = tally(desk.recorder, ns(2))
    assert found.pop(("wait", names.REQUEST)) == pytest.approx(300)
    assert found == {("ready", names.READY_THREAD_SLOT): 1, ("execute", names.LOOP): 1}


# --- stuck -----------------------------------------------------------------------------------------------------------


class Watched:
    """A desk whose stuck tasks are told."""

    def __init__(self, after: float = 60.0) -> None:
        self.desk = Desk()
        self.desk.recorder.name = "alice"
        self.switch = Switch()
        emitter = Emitter(
            self.switch.provider.get_tracer(names.SCOPE),
            Settings(stuck_after=after),
            Budget(50, 1000, ns(0)),
            lambda: ns(0),
        )
        self.stuck = Stuck(self.desk.recorder, emitter, ns(0))

    def look(self, at: float) -> None:
        self.stuck.look(ns(at))

    @property
    def spans(self) -> list[Any]:
        return self.switch.exported.finished


def test_a_stuck_task_is_told_once(caplog: pytest.LogCaptureFixture):
    watched = Watched()
    watched.desk.held("x-1", "tcp://a")
    watched.desk.wait(0, "sum-1", "x-1", **{"x-1": "fetch"})
    watched.desk.fetch(1, "tcp://a", "x-1")
    for at in (59, 61, 66, 200):
        watched.look(at)
    assert [record.getMessage() for record in caplog.records] == [
        "otel_worker: task sum-1 is stuck on alice: waiting for 61.0 s, in request for 60.0 s with tcp://a"
    ]
    [span] = watched.spans
    assert (span.name, span.parent, span.end_time - span.start_time) == ("task.stuck", None, 61 * SECOND)
    assert dict(span.attributes) == {
        "dask.task.key": "sum-1",
        "dask.task.prefix": "sum",
        "dask.stuck.state": "waiting",
        "dask.stuck.phase": "request",
        "dask.peer.address": "tcp://a",
    }
    assert [event.name for event in span.events] == ["task.stuck"]


def test_a_task_that_computes_or_waits_for_a_thread_is_not_stuck(caplog: pytest.LogCaptureFixture):
    watched = Watched()
    watched.desk.move(0, **{"a-1": "executing", "b-1": "ready"})
    task = watched.desk.recorder.execute_began("a-1", ns(0))
    assert task is not None
    task.submitted = task.run_begun = ns(0)
    watched.look(1000)
    assert caplog.records == []
    watched.desk.state.running = False  # paused: nothing takes it
    watched.look(2000)
    assert [record.getMessage() for record in caplog.records] == [
        "otel_worker: task b-1 is stuck on alice: ready for 2000.0 s, in paused for 2000.0 s"
    ]


def test_many_stuck_tasks_are_a_few_warnings(caplog: pytest.LogCaptureFixture):
    watched = Watched()
    watched.desk.held("x-1", "tcp://a")
    watched.desk.wait(0, "sum-0", "x-1", **{"x-1": "fetch"})
    for i in range(1, 100):
        watched.desk.wait(0, f"sum-{i}", "x-1")
    with caplog.at_level(logging.WARNING):
        watched.look(61)
        watched.look(66)
    assert len(caplog.records) == MOST + 1
    assert "90 more tasks are stuck on alice" in caplog.records[-1].getMessage()
    assert len(watched.spans) == MOST


def test_zero_turns_it_off():
    assert Watched(after=0).stuck.due > ns(1e9)
