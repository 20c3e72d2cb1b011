"""One monotonic clock, anchored to the wall clock."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest
from distributed import Client, Scheduler, Worker, wait
from msgspec.structs import replace

from otel_worker.checks import check
from otel_worker.facts import Clock
from otel_worker.reports import METHODS, Method, Options, build
from otel_worker.traces import Resource, Span, Traces
from tests.faults.tools import AFTER, cluster, slow, use

if TYPE_CHECKING:
    from tests.live import Live

MS = 1_000_000


class Times:
    """A monotonic clock that advances by the given steps, ns, and a wall clock that is `ahead` of it."""

    def __init__(self, *steps: int, ahead: int = 0) -> None:
        self._steps = list(steps)
        self.at = 0
        self.ahead = ahead

    def monotonic(self) -> int:
        self.at += self._steps.pop(0) if self._steps else 10
        return self.at

    def wall(self) -> int:
        return self.at + self.ahead


def clock_of(times: Times) -> Clock:
    clock = Clock()
    clock._monotonic, clock._wall = times.monotonic, times.wall
    clock.offset = clock._measure()
    return clock


def test_a_reading_that_was_interrupted_does_not_count():
    """The thread may lose the processor between the two clocks: the anchor is the best of several readings."""
    times = Times(10, 8 * MS, 10, 10, 10, 8 * MS, ahead=500 * MS)
    assert clock_of(times).offset == pytest.approx(500 * MS, abs=20)


@pytest.mark.parametrize(("jump", "anew"), [(49 * MS, 0), (51 * MS, 1), (-5000 * MS, 1), (3_600_000 * MS, 1)])
def test_the_anchor_is_set_anew_when_the_clocks_drift_apart(jump: int, anew: int):
    times = Times()
    clock = clock_of(times)
    times.ahead += jump
    clock.check()
    assert clock.reanchored == anew
    assert clock.offset == pytest.approx(jump if anew else 0, abs=20)


def test_a_week_in_which_the_clocks_drift_apart():
    """By 100 ppm, as a bad quartz does: what is shown is never wrong by more than the limit, and each anchor is counted."""
    times = Times()
    clock = clock_of(times)
    step = 60_000 * MS
    for _ in range(7 * 24 * 60):
        times.at += step
        times.ahead += step // 10_000
        clock.check()
        assert abs(times.ahead - clock.offset) <= 51 * MS
    assert clock.reanchored == pytest.approx(7 * 24 * 60 * 6 / 54, rel=0.01)  # 6 ms a minute, 54 ms each


# --- on a cluster --------------------------------------------------------------------------------------------------------

TASKS = 5


class Wall:
    """A wall clock that somebody sets anew."""

    def __init__(self) -> None:
        self.jump = 0

    def __call__(self) -> int:
        return time.time_ns() + self.jump


def jumped(live: Live, seconds: float, delay: float = 0.0) -> list[Span]:
    """What is traced of transfers, in the middle of one of which the wall clock is set by so much."""
    wall = Wall()
    clock = live.runtime.clock
    clock._wall = wall
    before = clock.offset

    def jump() -> None:
        wall.jump = int(seconds * 1e9)

    @cluster(2)
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        a.scheduler_delay = b.scheduler_delay = delay
        for i in range(TASKS):
            x = c.submit(slow, name="x", unpickling=0.1, key=f"slow-{i}", workers=[a.address])
            await wait(x)
            if i == 2:
                AFTER.append(jump)
            assert await c.submit(use, x, key=f"use-{i}", workers=[b.address]) == 1
            await asyncio.sleep(0.05)
        assert abs(clock.offset - before - seconds * 1e9) < 1e9 * (0.2 + abs(seconds) / 1e6)

    scenario()
    AFTER.clear()
    assert clock.reanchored == (1 if seconds else 0)
    live.check()
    return live.spans()


@pytest.mark.parametrize("seconds", [-5.0, 3600.0])
def test_the_wall_clock_jumps_in_a_transfer(live: Live, seconds: float):
    """Each span lasts as long as it did, and lies inside its parent; what begins later stands on the new clock."""
    spans = jumped(live, seconds)
    fetches = sorted((s for s in spans if s.operation == "fetch"), key=lambda s: str(s.attributes["dask.fetch.keys"]))
    assert len(fetches) == TASKS
    assert all(0.1 <= fetch.duration / 1e9 < 3 for fetch in fetches)
    assert all(0 <= span.duration / 1e9 < 10 for span in spans)
    early, late = fetches[0].start / 1e9, fetches[-1].start / 1e9
    assert late - early == pytest.approx(seconds, abs=10)


def test_a_scheduler_an_hour_away(live: Live):
    """Dask estimates by how much the scheduler's clock is ahead; no time of ours is moved by it."""
    spans = jumped(live, 0.0, delay=3600.0)
    now = time.time_ns()
    assert all(now - 60e9 < span.start <= span.end <= now for span in spans)


def test_hosts_whose_clocks_are_two_seconds_apart(live: Live):
    """No rule of `check` compares clocks of two processes, and the report says the same seconds."""
    spans = jumped(live, 0.0)
    (address,) = {
        str(s.attributes["dask.worker.address"]) for s in spans if s.attributes.get("dask.peer.kind") == "worker"
    }
    apart = [
        replace(
            span,
            start=span.start + 2_000_000_000,
            end=span.end + 2_000_000_000,
            resource=Resource({**span.resource.attributes, "host.name": "ahead"}),
        )
        if span.attributes.get("dask.worker.address") == address
        else span
        for span in spans
    ]
    assert check(apart) == []

    def waited(found: list[Span], method: Method) -> Any:
        report = build(Traces(tuple(found), ()), "here", Options(method=method, only={"prefix": "use"}))
        return next(child for child in report.groups[0].tree.children if child.name == "waiting")

    for method in METHODS:
        assert waited(apart, method).seconds == pytest.approx(waited(spans, method).seconds)
    assert waited(apart, "shares") == waited(spans, "shares")
