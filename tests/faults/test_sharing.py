"""The shares of a wait on a real cluster, for the cases that the design names: they add up, and to each its own."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from distributed import Client, Scheduler, Worker, wait

from tests.faults.proxy import Fault, behind_a_proxy
from tests.faults.tools import (
    assert_near,
    calm,
    cluster,
    every,
    lasts,
    measured,
    notes,
    one,
    overlap,
    plain,
    slow,
    sums,
    until,
    use,
)
from tests.live import Live

pytestmark = pytest.mark.faults


def waited(live: Live, prefix: str) -> dict[str, float]:
    """A task's waiting by activity; it adds up to the span."""
    waiting = one(live, "waiting", prefix)
    parts = sums(waiting, "dask.wait.")
    assert abs(sum(parts.values()) - lasts(waiting)) < 1e-5
    return parts


def test_two_fetches_from_one_peer_one_after_the_other(live: Live):
    """One key a message: the second waits while the first is in flight, yet what is being done counts before that."""

    @cluster(1, {"distributed.worker.transfer.message-bytes-limit": 1000})
    async def scenario(c: Client, s: Scheduler, b: Worker):
        async with behind_a_proxy(s, name="far") as (a, proxy):
            values = [c.submit(plain, 1500 + i, key=f"plain-{i}", workers=[a.address]) for i in range(2)]
            await wait(values)
            await calm()
            proxy.arm(Fault("first", 0.4))
            proxy.arm(Fault("second", 0.4))
            assert await c.submit(use, *values, key="use-1", workers=[b.address]) == 1

    scenario()
    parts = waited(live, "use")
    assert len(every(live, "fetch use")) == 2
    assert_near(parts["network"], measured("first") + measured("second"))
    assert_near(parts.get("queued.in_flight", 0), 0)
    first, second = every(live, "fetch.queued", "use")
    assert_near(lasts(first), 0)
    ((_, ended),) = notes("first")
    assert_near(lasts(second), (ended - second.start) / 1e9)
    assert_near(second.attributes["dask.fetch.time.queued.in_flight"], lasts(second))
    live.check()


def test_two_fetches_from_two_peers_at_once(live: Live):
    @cluster(1)
    async def scenario(c: Client, s: Scheduler, b: Worker):
        async with AsyncExitStack() as stack:
            peers = [await stack.enter_async_context(behind_a_proxy(s, name=name)) for name in ("one", "two")]
            values = [c.submit(plain, 1000, key=f"plain-{a.name}", workers=[a.address]) for a, _ in peers]
            await wait(values)
            await calm()
            for a, proxy in peers:
                proxy.arm(Fault(a.name, 0.4, reply=a.name == "one"))
            assert await c.submit(use, *values, key="use-1", workers=[b.address]) == 1

    scenario()
    parts = waited(live, "use")
    (wire,), (handshake,) = notes("one"), notes("two")
    both = (min(wire[1], handshake[1]) - max(wire[0], handshake[0])) / 1e9
    assert both > 0.2
    assert_near(parts["network"], measured("one") - both / 2)
    assert_near(parts["connect.handshake"], measured("two") - both / 2)
    waiting = one(live, "waiting", "use")
    assert_near(lasts(waiting), (max(wire[1], handshake[1]) - waiting.start) / 1e9)
    live.check()


def test_a_task_that_joins_a_fetch_under_way(live: Live):
    """Each is told its own whole wait, and where they hang: the first above the fetch, the second linked to it."""

    @cluster(1)
    async def scenario(c: Client, s: Scheduler, b: Worker):
        async with behind_a_proxy(s, name="far") as (a, proxy):
            x = c.submit(plain, 1000, key="plain-1", workers=[a.address])
            await wait(x)
            await calm()
            proxy.arm(Fault("wire", 0.6))
            early = c.submit(use, x, key="early-1", workers=[b.address])
            await until(lambda: bool(b.state.in_flight_workers))
            await asyncio.sleep(0.3)
            late = c.submit(use, x, 1, key="late-1", workers=[b.address])
            assert await c.gather([early, late]) == [1, 1]

    scenario()
    for prefix in ("early", "late"):
        expected = overlap("wire", one(live, "waiting", prefix))
        assert_near(waited(live, prefix)["network"], expected, prefix)
        assert_near(lasts(one(live, "waiting", prefix)), expected, prefix)
    fetch = one(live, "fetch early")
    assert fetch.parent_id == one(live, "waiting", "early").span_id
    assert [link.span_id for link in fetch.links] == [one(live, "task late").span_id]
    assert [link.span_id for link in one(live, "task late").links] == [fetch.span_id]
    assert every(live, "fetch late") == []
    live.check()


def test_a_more_urgent_task_that_joins_while_it_connects(live: Live):
    """The fetch began before that task came, so it can't lie inside of its waiting; it is linked."""

    @cluster(1)
    async def scenario(c: Client, s: Scheduler, b: Worker):
        async with behind_a_proxy(s, name="far") as (a, proxy):
            x = c.submit(plain, 1000, key="plain-1", workers=[a.address])
            await wait(x)
            await calm()
            proxy.arm(Fault("handshake", 0.4, reply=False))
            first = c.submit(use, x, key="first-1", workers=[b.address])
            await until(lambda: bool(b.state.in_flight_workers))
            await asyncio.sleep(0.1)
            urgent = c.submit(use, x, 1, key="urgent-1", workers=[b.address], priority=10)
            assert await c.gather([first, urgent]) == [1, 1]

    scenario()
    fetch = one(live, "fetch first")
    assert fetch.parent_id == one(live, "waiting", "first").span_id
    assert [link.span_id for link in fetch.links] == [one(live, "task urgent").span_id]
    urgent = overlap("handshake", one(live, "waiting", "urgent"))
    assert_near(waited(live, "urgent")["connect.handshake"], urgent)
    live.check()


def test_a_task_that_joins_while_a_replica_connects(live: Live):
    """Nobody waited when it was issued: a root, linked to who came."""

    @cluster(1)
    async def scenario(c: Client, s: Scheduler, b: Worker):
        async with behind_a_proxy(s, name="far") as (a, proxy):
            x = c.submit(plain, 1000, key="plain-1", workers=[a.address])
            await wait(x)
            await calm()
            proxy.arm(Fault("handshake", 0.4, reply=False))
            s.request_acquire_replicas(b.address, ["plain-1"], stimulus_id="test")
            await until(lambda: bool(b.state.in_flight_workers))
            await asyncio.sleep(0.1)
            assert await c.submit(use, x, key="use-1", workers=[b.address]) == 1

    scenario()
    fetch = one(live, "fetch use")
    assert fetch.parent_id == ""
    assert [link.span_id for link in fetch.links] == [one(live, "task use").span_id]
    assert fetch.start < notes("handshake")[0][0]
    assert fetch.end > notes("handshake")[0][1]
    assert_near(waited(live, "use")["connect.handshake"], overlap("handshake", one(live, "waiting", "use")))
    live.check()


def test_a_replica_that_no_task_waits_for(live: Live):
    @cluster()
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        x = c.submit(plain, 1000, key="plain-1", workers=[a.address])
        await wait(x)
        s.request_acquire_replicas(b.address, ["plain-1"], stimulus_id="test")
        await until(lambda: "plain-1" in b.data)

    scenario()
    fetch = one(live, "fetch replica")
    assert (fetch.parent_id, fetch.links) == ("", ())
    assert fetch.attributes["dask.fetch.reason"] == "replica"
    live.check()


def test_a_key_that_three_wait_for(live: Live):
    @cluster(1)
    async def scenario(c: Client, s: Scheduler, b: Worker):
        async with behind_a_proxy(s, name="far") as (a, proxy):
            x = c.submit(plain, 1000, key="plain-1", workers=[a.address])
            await wait(x)
            await calm()
            proxy.arm(Fault("wire", 0.4))
            users = [c.submit(use, x, i, key=f"use{i}-1", workers=[b.address]) for i in range(3)]
            assert await c.gather(users) == [1, 1, 1]

    scenario()
    for i in range(3):
        assert_near(waited(live, f"use{i}")["network"], overlap("wire", one(live, "waiting", f"use{i}")))
    (fetch,) = [s for s in live.spans() if s.operation == "fetch"]
    assert fetch.attributes["dask.fetch.dependent_count"] == 3
    assert len(fetch.links) == 2
    live.check()


def test_a_dependency_that_was_here_already(live: Live):
    @cluster()
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        here = c.submit(plain, 1000, key="plain-1", workers=[b.address])
        there = c.submit(slow, name="x", pickling=0.3, key="slow-1", workers=[a.address])
        await wait([here, there])
        await calm()
        assert await c.submit(use, here, there, key="use-1", workers=[b.address]) == 1
        assert await c.submit(use, here, key="ready-1", workers=[b.address]) == 1

    scenario()
    assert_near(waited(live, "use")["peer.serialize"], measured("x.pickling"))
    assert one(live, "fetch use").attributes["dask.fetch.key_count"] == 1
    assert one(live, "task ready").attributes["dask.task.waited"] is False
    assert every(live, "waiting", "ready") == []
    live.check()


def test_a_task_cancelled_while_it_waits(live: Live):
    """The fetch goes on without it, and its waiting ends where it was given up."""

    @cluster(1)
    async def scenario(c: Client, s: Scheduler, b: Worker):
        async with behind_a_proxy(s, name="far") as (a, proxy):
            x = c.submit(plain, 1000, key="plain-1", workers=[a.address])
            await wait(x)
            await calm()
            proxy.arm(Fault("wire", 0.6))
            y = c.submit(use, x, key="use-1", workers=[b.address])
            await until(lambda: bool(b.state.in_flight_workers))
            await asyncio.sleep(0.2)
            await c.cancel(y)
            await until(lambda: not b.state.tasks)

    scenario()
    assert one(live, "task use").attributes["dask.outcome"] == "released"
    assert_near(waited(live, "use")["network"], overlap("wire", one(live, "waiting", "use")))
    fetch = one(live, "fetch use")
    assert_near(lasts(fetch), measured("wire"))
    assert fetch.end > one(live, "task use").end
    live.check()
