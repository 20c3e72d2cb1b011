"""Peers that die, hang up, or lose a key at the worst moment: the fetch ends once, says how, and the task goes on."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import pytest
from distributed import Client, Scheduler, Worker, wait

from tests.faults.peer import peer_process
from tests.faults.proxy import Fault, behind_a_proxy
from tests.faults.tools import (
    MEGABYTE,
    assert_near,
    below,
    calm,
    cluster,
    every,
    lasts,
    measured,
    noting,
    one,
    plain,
    slow,
    sums,
    until,
    use,
)

if TYPE_CHECKING:
    from pathlib import Path

    from otel_worker.traces import Span
    from tests.faults.peer import Peer
    from tests.live import Live

pytestmark = pytest.mark.faults


def failed(live: Live) -> Span:
    """The first fetch: it failed, and the task was computed all the same."""
    first = every(live, "fetch use")[0]
    assert (first.attributes["dask.outcome"], first.status) == ("network_failure", "error")
    assert first.attributes["error.type"]
    assert [t.attributes["dask.outcome"] for t in every(live, "task use")][-1] == "memory"
    waiting = every(live, "waiting", "use")[-1]
    assert sum(sums(waiting, "dask.wait.").values()) == pytest.approx(lasts(waiting), abs=1e-4)
    live.check()
    return first


def signalled(peer: Peer, number: signal.Signals) -> None:
    os.kill(peer._popen.pid, number)


async def wanted(c: Client, peer: Peer, **options: object) -> object:
    """A value there that is made anew elsewhere should the peer be lost."""
    x = c.submit(slow, name="x", key="slow-1", workers=[peer.address], allow_other_workers=True, **options)
    await wait(x)
    await calm()
    return x


def test_killed_in_the_handshake(live: Live, tmp_path: Path):
    """A process that is stopped: the kernel accepts its connections, and nobody answers."""

    @cluster(1, timeout=90)
    async def scenario(c: Client, s: Scheduler, b: Worker):
        async with peer_process(s, live, tmp_path) as peer:
            x = await wanted(c, peer)
            b.rpc.remove(peer.address)
            signalled(peer, signal.SIGSTOP)
            y = c.submit(use, x, key="use-1", workers=[b.address])
            await until(lambda: bool(b.state.in_flight_workers))
            with noting("stopped"):
                await asyncio.sleep(0.4)
            peer.kill()
            assert await y == 1

    scenario()
    fetch = failed(live)
    assert below(live, fetch, "connect").status == "error"
    assert every(live, "request") == []
    assert measured("stopped") <= fetch.attributes["dask.fetch.time.connect.handshake"] < measured("stopped") + 1


def test_killed_while_it_reads_from_its_disk(live: Live, tmp_path: Path):
    @cluster(1, timeout=90)
    async def scenario(c: Client, s: Scheduler, b: Worker):
        async with peer_process(s, live, tmp_path) as peer:
            # More than half of its memory: it is spilled at once, and read back to be served.
            x = await wanted(c, peer, unpickling=5, claims=int(0.6 * b.memory_manager.memory_limit))
            y = c.submit(use, x, key="use-1", workers=[b.address])
            await until(lambda: bool(b.state.in_flight_workers))
            with noting("reading"):
                await asyncio.sleep(0.4)
            peer.kill()
            await until(lambda: peer.address not in s.workers)
            await y.cancel()

    scenario()
    (fetch,) = every(live, "fetch use")
    assert (fetch.attributes["dask.outcome"], fetch.status) == ("network_failure", "error")
    request = below(live, fetch, "request")
    assert request.status == "error"
    assert measured("reading") <= lasts(request) < measured("reading") + 1
    live.check()


def test_stopped_for_a_while_it_answers_and_nothing_failed(live: Live, tmp_path: Path):
    @cluster(1, timeout=90)
    async def scenario(c: Client, s: Scheduler, b: Worker):
        async with peer_process(s, live, tmp_path) as peer:
            x = await wanted(c, peer)
            stopped = asyncio.create_task(peer.stopped(0.4, "stopped"))
            await asyncio.sleep(0)
            assert await c.submit(use, x, key="use-1", workers=[b.address]) == 1
            await stopped

    scenario()
    fetch = one(live, "fetch use")
    assert (fetch.attributes["dask.outcome"], fetch.status) == ("success", "unset")
    assert_near(lasts(fetch), measured("stopped"))
    live.check()


def test_reset_in_the_middle_of_its_reply(live: Live):
    @cluster(1, timeout=90)
    async def scenario(c: Client, s: Scheduler, b: Worker):
        async with behind_a_proxy(s, name="far") as (far, proxy):
            x = c.submit(plain, MEGABYTE, key="plain-1", workers=[far.address], allow_other_workers=True)
            await wait(x)
            await calm()
            proxy.arm(Fault("cut", after=1000, cut=True))
            assert await c.submit(use, x, key="use-1", workers=[b.address]) == 1

    scenario()
    fetch = failed(live)
    assert below(live, fetch, "request").status == "error"


def test_a_key_that_is_gone(live: Live):
    """The scheduler still believes in it: the peer replies without it, and only what came is counted."""

    @cluster(2)
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        x, y = (c.submit(plain, 1000, key=f"plain-{i}", workers=[a.address], allow_other_workers=True) for i in (1, 2))
        await wait([x, y])
        await calm()
        del a.data["plain-1"]
        z = c.submit(use, x, y, key="use-1", workers=[b.address])
        await until(lambda: any(span.name == "fetch use" for span in live.spans()))
        a.data["plain-1"] = b""
        assert await z == 1
        (metrics,) = (m for r, m in live.runtime.instruments.workers.items() if r.address == b.address)
        assert metrics.fetch_io == sum(entry["total"] for entry in b.transfer_incoming_log)

    scenario()
    first = every(live, "fetch use")[0]
    assert (first.attributes["dask.outcome"], first.attributes["dask.fetch.missing_keys"]) == ("success", 1)
    live.check()
