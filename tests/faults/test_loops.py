"""Event loops that do not answer, each in a process of its own: the peer's, and ours while the reply is there."""

import asyncio
from pathlib import Path

import pytest
from distributed import Client, Scheduler, Worker, wait

from otel_worker.traces import Span
from tests.faults.peer import peer_process
from tests.faults.tools import (
    NOTES,
    assert_near,
    block,
    calm,
    cluster,
    every,
    lasts,
    measured,
    noting,
    one,
    overlap,
    plain,
    recall,
    shape,
    slow,
    stop,
    sums,
    until,
    use,
)
from tests.live import Live

pytestmark = pytest.mark.faults

REQUEST = ["request", "  get_data", "    get_data.serialize", "    get_data.send"]


async def warm(c: Client, b: Worker, name: str) -> None:
    """From now on there is a pooled connection, so that what the peer does is seen in the request alone."""
    await c.submit(use, c.submit(plain, 10, key="warm-1", workers=[name]), key="warmed-1", workers=[b.address])


def assert_split(request: Span, **expected: float) -> None:
    for part in ("peer_loop", "peer_unspill", "peer_spill", "peer_serialize", "local_loop", "network"):
        assert_near(request.attributes[f"dask.request.{part}"], expected.get(part, 0), part)


@pytest.mark.parametrize("delay", [0.5, 1.0])
def test_the_peers_loop_is_blocked(live: Live, tmp_path: Path, delay: float):
    @cluster(1)
    async def scenario(c: Client, s: Scheduler, b: Worker):
        async with peer_process(s, live, tmp_path) as peer:
            x = c.submit(plain, 1000, key="plain-1", workers=[peer.address])
            await wait(x)
            await warm(c, b, peer.address)
            await calm()
            blocked = asyncio.create_task(c.run(block, delay, workers=[peer.address]))
            await asyncio.sleep(0.15)
            assert await c.submit(use, x, key="use-1", workers=[b.address]) == 1
            (NOTES["blocked"],) = (await blocked).values()

    scenario()
    request = one(live, "request", "use")
    expected = overlap("blocked", request)
    assert expected > delay - 0.4
    assert_split(request, peer_loop=expected)
    assert_near(sums(one(live, "waiting", "use"), "dask.wait.")["peer.loop"], expected)
    assert shape(live, request) == REQUEST
    get_data = next(s for s in every(live, "get_data") if s.parent_id == request.span_id)
    assert get_data.start >= NOTES["blocked"][0][1]
    assert_near(get_data.attributes["dask.event_loop.delay"], measured("blocked"))
    live.check()


def test_the_peers_process_is_stopped(live: Live, tmp_path: Path):
    @cluster(1)
    async def scenario(c: Client, s: Scheduler, b: Worker):
        async with peer_process(s, live, tmp_path) as peer:
            x = c.submit(plain, 1000, key="plain-1", workers=[peer.address])
            await wait(x)
            await warm(c, b, peer.address)
            await calm()
            stopped = asyncio.create_task(peer.stopped(0.8, "stopped"))
            await asyncio.sleep(0.05)
            assert await c.submit(use, x, key="use-1", workers=[b.address]) == 1
            await stopped

    scenario()
    request = one(live, "request", "use")
    expected = overlap("stopped", request)
    assert expected > 0.5
    assert_split(request, peer_loop=expected)
    assert_near(sums(one(live, "waiting", "use"), "dask.wait.")["peer.loop"], expected)
    assert shape(live, request) == REQUEST
    live.check()


@pytest.mark.parametrize("delay", [0.3, 0.6])
def test_our_loop_is_blocked_while_the_reply_is_there(live: Live, tmp_path: Path, delay: float):
    """The peer serializes for 0.3 s; our loop is blocked from before that is over until `delay` after it."""

    @cluster(1)
    async def scenario(c: Client, s: Scheduler, b: Worker):
        async with peer_process(s, live, tmp_path) as peer:
            x = c.submit(slow, name="x", pickling=0.3, key="slow-1", workers=[peer.address])
            await wait(x)
            await warm(c, b, peer.address)
            await calm()
            y = c.submit(use, x, key="use-1", workers=[b.address])
            await until(lambda: bool(b.state.in_flight_workers))
            stop(0.3 + delay)
            assert await y == 1
            (NOTES["pickling"],) = (await c.run(recall, "x.pickling", workers=[peer.address])).values()

    scenario()
    expected = (NOTES["block"][0][1] - NOTES["pickling"][0][1]) / 1e9
    request = one(live, "request", "use")
    assert_split(request, local_loop=expected, peer_serialize=measured("pickling"))
    waited = sums(one(live, "waiting", "use"), "dask.wait.")
    assert_near(waited["loop"], expected)
    assert_near(waited["peer.serialize"], measured("pickling"))
    assert shape(live, request) == REQUEST
    live.check()


def test_a_peer_killed_while_it_sends(live: Live, tmp_path: Path):
    """The fetch fails with its error; Dask makes the value anew here, and nothing needs to be fetched."""

    @cluster(1)
    async def scenario(c: Client, s: Scheduler, b: Worker):
        async with peer_process(s, live, tmp_path) as peer:
            options = {"workers": [peer.address], "allow_other_workers": True}
            x = c.submit(slow, name="x", pickling=5, key="slow-1", **options)
            await wait(x)
            await warm(c, b, peer.address)
            y = c.submit(use, x, key="use-1", workers=[b.address])
            await until(lambda: bool(b.state.in_flight_workers))
            with noting("serving"):
                await asyncio.sleep(0.2)
            peer.kill()
            assert await y == 1

    scenario()
    fetch = one(live, "fetch use")
    assert (fetch.attributes["dask.outcome"], fetch.status) == ("network_failure", "error")
    assert fetch.attributes["error.type"] == "distributed.comm.core.CommClosedError"
    assert_near(lasts(fetch), (NOTES["serving"][0][1] - fetch.start) / 1e9)
    assert [t.attributes["dask.outcome"] for t in every(live, "task use")][-1] == "memory"
