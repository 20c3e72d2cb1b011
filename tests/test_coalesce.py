"""Out of budget: one span stands for many tasks, sums stay complete, and no parent or link is missing."""

import pytest
from distributed import Client, Scheduler, Worker
from distributed.utils_test import gen_cluster
from opentelemetry import trace

from otel_worker import names
from otel_worker.coalesce import Coalesced
from tests.desk import SECOND, Desk
from tests.live import Live

TASKS = 120
cluster = gen_cluster(client=True, nthreads=[("127.0.0.1", 1), ("127.0.0.1", 1)])


def increment(i: int) -> int:
    with trace.get_tracer("user").start_as_current_span("users own"):
        return i + 1


def fail(i: int) -> int:
    raise ValueError(i)


@pytest.mark.parametrize("burst", [0, 30])
def test_what_is_not_recorded_is_summed(live: Live, burst: int):
    live.again(span_budget=0, span_burst=burst)
    trace._TRACER_PROVIDER = live.switch.provider  # the user's own spans go where ours go
    held = []

    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        x = c.map(increment, range(TASKS), key=[f"increment-{i}" for i in range(TASKS)])
        total = c.submit(sum, x, key="sum-1", workers=[a.address])
        assert await total == TASKS * (TASKS + 1) / 2
        error = c.submit(fail, 1, key="fail-1", workers=[b.address])
        assert "ValueError" in repr(await error.exception())
        held.extend(live.runtime.instruments.workers.values())

    try:
        scenario()
    finally:
        trace._TRACER_PROVIDER = None
    spans = live.spans()
    coalesced = [s for s in spans if s.operation == names.TASKS]
    recorded = [s for s in spans if s.operation == names.TASK]
    counts = {
        p: sum(s.attributes[names.TASKS_COUNT] for s in coalesced if s.attributes[names.TASK_PREFIX] == p)
        for p in ("increment", "sum", "fail")
    }
    for prefix, expected in (("increment", TASKS), ("sum", 1), ("fail", 1)):
        assert counts[prefix] + sum(s.attributes[names.TASK_PREFIX] == prefix for s in recorded) == expected
    if not burst:
        assert recorded == []
        told = sum(v for s in coalesced for k, v in s.attributes.items() if k.startswith(names.EXECUTE_PREFIX))
        assert told == pytest.approx(_total(worker.execute for worker in held) / 1e9, rel=1e-6)
        told = sum(v for s in coalesced for k, v in s.attributes.items() if k.startswith(names.WAIT_PREFIX))
        assert told == pytest.approx(_total(worker.wait for worker in held) / 1e9, rel=1e-6)
        [errors] = [s.attributes[names.TASKS_ERRORS] for s in coalesced if names.TASKS_ERRORS in s.attributes]
        assert list(errors) == ["ValueError: 1"]
    assert sum(s.name == "users own" for s in spans) == TASKS
    live.check()


def test_prefixes_without_end_are_one_other():
    desk = Desk()
    coalesced = Coalesced(most=3)
    for i in range(10):
        key = f"p{i}-1"
        desk.move(i, **{key: "executing"})
        desk.move(i + 1, **{key: "memory"})
        coalesced.add(desk.ended[-1], own=SECOND, computation="")
    assert {prefix: group.count for prefix, group in coalesced.groups.items()} == {
        "p0": 1,
        "p1": 1,
        "p2": 1,
        "other": 7,
    }


def test_states_of_prefixes_without_end_are_bounded_and_still_add_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("otel_worker.recorder.MAX_CELLS", 4)
    desk = Desk()
    for i in range(10):
        key = f"p{i}-1"
        desk.move(i, **{key: "executing"})
        desk.move(i + 1, **{key: "memory"})
        desk.move(i + 3, **{key: "released"})
    states = desk.recorder.states
    assert len(states) <= 6
    spent = {state: -sum(cell[1] for (_, s), cell in states.items() if s == state) for state in ("executing", "memory")}
    assert spent == {"executing": 10 * SECOND, "memory": 20 * SECOND}
    assert all(cell[0] == 0 for cell in states.values())


def _total(many):
    return sum(ns for sums in many for parts in sums.values() for ns in parts.values())
