"""Why a key is not requested yet: its peer is busy, this worker is paused, nobody holds it; and what a lost peer costs."""

import asyncio
from contextlib import AsyncExitStack
from itertools import pairwise

import pytest
from distributed import Client, Scheduler, Status, Worker, wait

from tests.faults.proxy import Fault, behind_a_proxy
from tests.faults.tools import (
    SPILLS,
    assert_near,
    below,
    calm,
    cluster,
    every,
    lasts,
    measured,
    notes,
    noting,
    one,
    overlap,
    plain,
    sums,
    until,
    use,
)
from tests.live import Live

pytestmark = pytest.mark.faults


def outcomes(live: Live, name: str) -> list[str]:
    return [span.attributes["dask.outcome"] for span in every(live, name)]


@pytest.mark.parametrize("delay", [0.6, 1.2])
def test_a_busy_peer(live: Live, delay: float):
    @cluster()
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        x = c.submit(plain, 1000, key="plain-1", workers=[a.address])
        await wait(x)
        await calm()
        limit, a.transfer_outgoing_count_limit = a.transfer_outgoing_count_limit, 0
        with noting("busy"):
            y = c.submit(use, x, key="use-1", workers=[b.address])
            await asyncio.sleep(delay)
        a.transfer_outgoing_count_limit = limit
        assert await y == 1

    scenario()
    waiting = one(live, "waiting", "use")
    waited = sums(waiting, "dask.wait.")
    *before, last = every(live, "fetch use")
    assert outcomes(live, "fetch use") == ["busy"] * len(before) + ["success"]
    assert delay / 0.2 - 1 < len(before) < delay / 0.15 + 1  # Dask asks again after 0.15 s
    for fetch in (*before, last):
        assert fetch.parent_id == waiting.span_id
        assert fetch.status == "unset"
        assert "error.type" not in fetch.attributes
        assert below(live, fetch, "get_data").attributes["dask.outcome"] == ("success" if fetch is last else "busy")
        assert below(live, fetch, "request").attributes["dask.peer.instrumented"], "busy or not, it announced itself"
    pauses = sum(max(0, one.start - other.end) for other, one in pairwise(before)) / 1e9
    assert pauses < 0.1, "each attempt begins with the key's wish to be fetched again"
    asking = sum(lasts(below(live, fetch, "request")) for fetch in (*before, last))
    assert_near(waited["queued.busy"] + asking, lasts(waiting))
    assert measured("busy") <= lasts(waiting) + 0.05
    assert lasts(waiting) - overlap("busy", waiting) < 0.15 + 0.1  # until it asks again
    assert abs(sum(waited.values()) - lasts(waiting)) < 1e-5
    live.check()


@pytest.mark.parametrize("delay", [0.5, 1.0])
def test_a_paused_worker(live: Live, delay: float):
    """The second key of a peer waits for the first key's request, then for the worker to go on."""

    @cluster(1, SPILLS)  # without the memory monitor, which would let it go on
    async def scenario(c: Client, s: Scheduler, b: Worker):
        async with behind_a_proxy(s, name="far", nthreads=1) as (a, proxy):
            x = c.submit(plain, 1000, key="plain-1", workers=[a.address])
            y = c.submit(plain, 1000, key="plain-2", workers=[a.address])
            await wait([x, y])
            await calm()
            proxy.arm(Fault("first", 0.3))
            first = c.submit(use, x, key="first-1", workers=[b.address])
            await until(lambda: bool(b.state.in_flight_workers))
            second = c.submit(use, y, key="second-1", workers=[b.address])
            await until(lambda: "second-1" in b.state.tasks)
            b.status = Status.paused
            with noting("paused"):
                await asyncio.sleep(delay)
            b.status = Status.running
            assert await c.gather([first, second]) == [1, 1]

    scenario()
    waiting = one(live, "waiting", "second")
    waited = sums(waiting, "dask.wait.")
    paused = overlap("paused", waiting)
    assert_near(waited["queued.paused"], paused)
    assert_near(lasts(waiting), paused)
    ready = one(live, "ready", "first")
    assert_near(sums(ready, "dask.ready.")["paused"], overlap("paused", ready))
    assert_near(lasts(ready), overlap("paused", ready))
    assert overlap("paused", ready) > delay - 0.4
    live.check()


def test_a_key_that_nobody_holds(live: Live):
    """Its only holder is lost in the middle of the reply; the scheduler is asked once a second who has it."""

    @cluster(1)
    async def scenario(c: Client, s: Scheduler, b: Worker):
        async with behind_a_proxy(s, name="far") as (a, proxy):
            x = c.submit(plain, 100_000, key="plain-1", workers=[a.address])
            await wait(x)
            await calm()
            proxy.arm(Fault("cut", after=256, cut=True))
            assert await c.submit(use, x, key="use-1", workers=[b.address]) == 1
            dials.extend(proxy.dials)

    dials: list[int] = []
    scenario()
    ((_, cut),) = notes("cut")
    expected = (min(dial for dial in dials if dial > cut) - cut) / 1e9
    waiting = one(live, "waiting", "use")
    waited = sums(waiting, "dask.wait.")
    assert_near(waited["missing"], expected)
    assert outcomes(live, "fetch use") == ["network_failure", "success"]
    lost, found = every(live, "fetch use")
    assert (lost.status, lost.attributes["error.type"]) == ("error", "distributed.comm.core.CommClosedError")
    assert below(live, lost, "request").status == "error"
    assert found.status == "unset"
    assert_near(lasts(below(live, found, "fetch.queued")), expected)
    assert abs(sum(waited.values()) - lasts(waiting)) < 1e-5
    live.check()


def test_a_lost_peer_where_another_has_the_key(live: Live):
    """Whichever of two holders is asked first is cut off in the middle of its reply; the other one serves."""

    @cluster(1)
    async def scenario(c: Client, s: Scheduler, b: Worker):
        async with AsyncExitStack() as stack:
            (one, proxy), (other, second) = [
                await stack.enter_async_context(behind_a_proxy(s, name=name)) for name in ("one", "other")
            ]
            x = c.submit(plain, 100_000, key="plain-1", workers=[one.address])
            await wait(x)
            await c.replicate(x, workers=[one.address, other.address])
            await calm()
            second.faults = proxy.faults
            proxy.arm(Fault("cut", after=256, cut=True))
            assert await c.submit(use, x, key="use-1", workers=[b.address]) == 1

    scenario()
    lost, found = every(live, "fetch use")
    assert outcomes(live, "fetch use") == ["network_failure", "success"]
    assert (lost.status, lost.attributes["error.type"]) == ("error", "distributed.comm.core.CommClosedError")
    assert found.status == "unset"
    assert lost.attributes["dask.peer.address"] != found.attributes["dask.peer.address"]
    assert_near(sums(one(live, "waiting", "use"), "dask.wait.").get("missing", 0), 0)
    live.check()
