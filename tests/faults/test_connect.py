"""Connecting has three waits, and each of them is a span of its own: for a slot of the pool, to dial, to shake hands."""

import asyncio

import pytest
from distributed import Client, Scheduler, Worker, wait

from otel_worker.traces import Span
from tests.faults.proxy import Fault, behind_a_proxy
from tests.faults.tools import (
    assert_near,
    below,
    calm,
    cluster,
    dials_that_fail,
    every,
    lasts,
    measured,
    one,
    overlap,
    plain,
    shape,
    sums,
    until,
    use,
)
from tests.live import Live

pytestmark = pytest.mark.faults

FETCH = [
    "fetch use",
    "  fetch.queued",
    "  connect",
    "    connect.pool",
    "    connect.dial",
    "    connect.handshake",
    "  request",
    "    get_data",
    "      get_data.serialize",
    "      get_data.send",
    "  fetch.deserialize",
]


def waited(live: Live) -> dict[str, float]:
    return sums(one(live, "waiting", "use"), "dask.wait.")


def only(live: Live, name: str, expected: float) -> Span:
    """Of the three waits this one lasts `expected`, the others nothing; the task's waiting says the same."""
    for child in ("connect.pool", "connect.dial", "connect.handshake"):
        want = expected if child == name else 0
        assert_near(lasts(one(live, child, "use")), want, child)
        assert_near(waited(live).get(child, 0), want, f"wait {child}")
    assert_near(lasts(one(live, "request", "use")), 0, "request")
    return one(live, name, "use")


@pytest.mark.parametrize("delay", [0.2, 0.4])
def test_a_slow_handshake(live: Live, delay: float):
    @cluster(1)
    async def scenario(c: Client, s: Scheduler, b: Worker):
        async with behind_a_proxy(s, name="far") as (a, proxy):
            proxy.arm(Fault("handshake", delay, reply=False))
            x = c.submit(plain, 1000, key="plain-1", workers=[a.address])
            await wait(x)
            await calm()
            assert await c.submit(use, x, key="use-1", workers=[b.address]) == 1

    scenario()
    only(live, "connect.handshake", measured("handshake"))
    assert shape(live, one(live, "fetch use")) == FETCH
    assert one(live, "connect").attributes["dask.connect.attempts"] == 1
    live.check()


def test_two_refused_dials(live: Live):
    @cluster(1)
    async def scenario(c: Client, s: Scheduler, b: Worker):
        async with behind_a_proxy(s, name="far") as (a, proxy):
            x = c.submit(plain, 1000, key="plain-1", workers=[a.address])
            await wait(x)
            await calm()
            proxy.refuse()
            with dials_that_fail(2, proxy.listen) as dials:
                assert await c.submit(use, x, key="use-1", workers=[b.address]) == 1
            refused.extend(dials.failed)

    refused: list[int] = []
    scenario()
    dial = only(live, "connect.dial", 0)
    assert len(refused) == 2
    assert all(dial.start < moment < dial.end for moment in refused)
    assert shape(live, one(live, "fetch use")) == FETCH
    assert one(live, "connect").attributes["dask.connect.attempts"] == 3
    live.check()


@pytest.mark.parametrize("delay", [0.2, 0.4])
def test_a_dial_that_nobody_answers(live: Live, delay: float):
    """Dask gives a first dial a fifth of its time-out, so a listener that ignores one costs exactly that."""

    @cluster(1, {"distributed.comm.timeouts.connect": f"{5 * delay}s"})
    async def scenario(c: Client, s: Scheduler, b: Worker):
        async with behind_a_proxy(s, name="far") as (a, proxy):
            x = c.submit(plain, 1000, key="plain-1", workers=[a.address])
            await wait(x)
            await calm()
            proxy.ignore()
            with dials_that_fail(1, proxy.listen) as dials:
                assert await c.submit(use, x, key="use-1", workers=[b.address]) == 1
            gave_up.extend(dials.failed)

    gave_up: list[int] = []
    scenario()
    dial = only(live, "connect.dial", delay)
    assert_near((gave_up[0] - dial.start) / 1e9, delay, "the first dial")
    assert shape(live, one(live, "fetch use")) == FETCH
    assert one(live, "connect").attributes["dask.connect.attempts"] == 2
    live.check()


@pytest.mark.parametrize("delay", [0.3, 0.6])
def test_the_pool_limit_reached(live: Live, delay: float):
    """The only connection that the pool allows serves a slow reply; the second fetch waits for it."""

    @cluster(1)
    async def scenario(c: Client, s: Scheduler, a: Worker):
        async with (
            behind_a_proxy(s, name="far") as (far, proxy),
            Worker(s.address, name="b", connection_limit=1, heartbeat_interval="60s") as b,
        ):
            x = c.submit(plain, 1000, key="plain-1", workers=[far.address])
            y = c.submit(plain, 2000, key="plain-2", workers=[a.address])
            await wait([x, y])
            await calm()
            proxy.arm(Fault("pool", delay))
            first = c.submit(use, x, key="first-1", workers=[b.address])
            await asyncio.sleep(0.05)
            second = c.submit(use, y, key="use-1", workers=[b.address])
            assert await c.gather([first, second]) == [1, 1]

    scenario()
    pool = one(live, "connect.pool", "use")
    expected = overlap("pool", pool)
    assert expected > delay / 2
    only(live, "connect.pool", expected)
    assert shape(live, one(live, "fetch use")) == FETCH
    assert one(live, "connect", "use").attributes["dask.connect.attempts"] == 1
    live.check()


@pytest.mark.parametrize("delay", [0.3, 0.6])
def test_a_peer_that_never_answers_a_dial(live: Live, delay: float):
    """Dask gives up after its time-out: the fetch failed before there was a request. It is asked again later."""

    @cluster(1, {"distributed.comm.timeouts.connect": f"{delay}s"})
    async def scenario(c: Client, s: Scheduler, b: Worker):
        async with behind_a_proxy(s, name="far") as (a, proxy):
            x = c.submit(plain, 1000, key="plain-1", workers=[a.address])
            await wait(x)
            await calm()
            proxy.refuse()
            y = c.submit(use, x, key="use-1", workers=[b.address])
            await until(lambda: "plain-1" in b.state.tasks and b.state.tasks["plain-1"].state == "missing")
            proxy.listen()
            assert await y == 1

    scenario()
    failed, found = every(live, "fetch use")
    assert [f.attributes["dask.outcome"] for f in (failed, found)] == ["network_failure", "success"]
    assert (failed.status, failed.attributes["error.type"]) == ("error", "OSError")
    assert shape(live, failed) == FETCH[:5]
    connect = below(live, failed, "connect")
    assert (connect.status, connect.attributes["error.type"]) == ("error", "OSError")
    assert_near(lasts(below(live, failed, "connect.dial")), delay)
    assert_near(waited(live)["connect.dial"], delay)
    assert shape(live, found) == FETCH
    live.check()
